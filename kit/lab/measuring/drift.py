"""What runs of one machine differ by, by kind of quantity: `kit verify RUN... --keep` measured it (data/drift.yaml)."""

import re
from functools import cache

from kit.errors import ReportError
from kit.system.files import read_yaml
from kit.system.paths import data_file

KINDS = {"ratio": "x", "time": "([num]?s|min|h)( an? .+)?", "rate": ".+/s"}  # kind -> its units, as a pattern


@cache
def spreads() -> dict[str, tuple[float, float]]:
    """Kind of quantity -> (factor, most): what the medians of nine of ten such quantities, and of all, stay within around the
    middle of several runs."""
    path = data_file("drift.yaml")
    try:
        factors = {row["id"]: (float(row["factor"]), float(row["most"])) for row in read_yaml(path)}
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{path}: expected rows with id, factor and most ({error}): write the file with kit verify --keep"
        ) from None
    if set(factors) != set(KINDS) or not all(1 <= factor <= most for factor, most in factors.values()):
        raise ReportError(f"{path}: {', '.join(KINDS)} need 1 <= factor <= most: write the file with kit verify --keep")
    return factors


def kind_of_unit(unit: str) -> str | None:
    """The kind of a unit; None where no spread between runs is known of it."""
    return next((kind for kind, units in KINDS.items() if re.fullmatch(units, unit)), None)


def factor(unit: str) -> float:
    """What nine of ten quantities in such a unit stay within; of a unit that no kind has, the largest of the kinds."""
    kind = kind_of_unit(unit)
    return spreads()[kind][0] if kind else max(usual for usual, _ in spreads().values())


def most(unit: str) -> float:
    """The most by which a quantity in such a unit was ever seen to leave the middle of several runs."""
    kind = kind_of_unit(unit)
    return spreads()[kind][1] if kind else max(largest for _, largest in spreads().values())
