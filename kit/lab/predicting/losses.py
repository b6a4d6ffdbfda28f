"""A loss of quality: where it is among those that are known, and how it is written on every page, in explain and in tables."""

import math
from decimal import Decimal


def of(losses: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """The row of ``losses`` of a precision, or of a program of any version; {} where it was not measured."""
    return next((row for key, row in losses.items() if key.startswith(name)), {})


_NONE = 1e-9  # nats


def format_kl(kl: float, error: float) -> str:
    """A KL divergence in nats with its standard error; an upper limit if the error is more than half of the value. Below _NONE
    it is 0, as that of the same weights in another order of sums is."""
    if abs(kl) < _NONE or math.isnan(kl):
        return "not measured" if math.isnan(kl) else "0"
    if not error <= abs(kl) / 2:  # NaN of one position, too
        return "not known" if math.isnan(error) else f"less than {abs(kl) + 2 * error:.1g}"
    if kl < 1e-4:
        return f"{kl:.2g} ± {error:.1g}"
    return " ± ".join(f"{Decimal(text):f}" for text in (f"{kl:.2g}", f"{error:.1g}"))  # 0.00006, not 6e-05
