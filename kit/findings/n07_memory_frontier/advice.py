"""What the frontier says: the error of its predictions, what to do with so much memory, and the records of both."""

import numpy as np

from kit.costs.ways import Measured, Prediction, Way
from kit.units import format_bytes, format_seconds


def ratios(predictions: list[Prediction], measured: list[Measured]) -> list[float]:
    """Predicted over measured seconds, one number a measured way."""
    seconds = {found.way: found.seconds for found in predictions}
    return [seconds[found.way] / found.seconds for found in measured]


def error(predictions: list[Prediction], measured: list[Measured]) -> str:
    """The error of the predictions in a sentence."""
    off = np.abs(np.array(ratios(predictions, measured)) - 1)
    worst = measured[int(off.argmax())].way.label
    typical = f"{np.median(off):.0%} in the median of {len(off)} ways"
    return f"The predictions are off by {typical}, {off.max():.0%} at worst ({worst})."


def best(predictions: list[Prediction], memory: int) -> tuple[Prediction, Prediction]:
    """The fastest way whose weights and file pages fit into ``memory`` together, and the fastest whose weights alone do."""
    fastest = sorted(predictions, key=lambda found: found.seconds)
    return next(p for p in fastest if p.total <= memory), next(p for p in fastest if p.held <= memory)


def answer(name: str, predictions: list[Prediction], memory: int) -> str:
    """What to do with ``memory`` bytes, in sentences."""
    reported = next(p for p in predictions if p.way == Way("LRU", memory))
    inside, beside = best(predictions, memory)
    whole = min((p for p in predictions if p.way.policy == "HashMap"), key=lambda p: p.seconds)
    text = [
        f"{name} with {format_bytes(memory)}: an LRU of f32 weights ({reported.way.label}) hits {reported.hit_rate:.0%} and "
        f"takes {format_seconds(reported.seconds)} a token.",
        f"With the file in the page cache beside it ({format_bytes(beside.pages)}), the fastest is {beside.way.label}: "
        f"{format_seconds(beside.seconds)}, {reported.seconds / beside.seconds:.1f} times faster, "
        f"{beside.way.precision}, {format_bytes(beside.held)} held.",
        f"With not a byte more than {format_bytes(memory)}, file included, it is {inside.way.label}: "
        f"{format_seconds(inside.seconds)}.",
        f"To keep everything decoded ({whole.way.label}) needs {format_bytes(whole.held)} and takes "
        f"{format_seconds(whole.seconds)}.",
    ]
    return " ".join(text)


def record(lab, predictions: list[Prediction], measured: list[Measured], left_out: dict) -> None:
    """A record for every measured way, one for the error of all predictions, and a row for what could not be measured."""
    predicted = {found.way: found for found in predictions}
    for found in measured:
        said = predicted[found.way]
        lab.record(
            quantity=f"a token, {found.way.label}", unit="s", samples=list(found.samples), lower=said.bound,
            lower_source="its bytes at the measured bandwidth", tolerance="predictions within a quarter",
            reason=f"predicted {format_seconds(said.seconds)} ({said.seconds / found.seconds - 1:+.0%}), "
            f"{format_bytes(said.held)} held and {format_bytes(said.pages)} of the file",
        )  # fmt: skip
    lab.record(
        quantity="predicted over measured seconds a token, all ways", unit="x", samples=ratios(predictions, measured),
        lower=0.8, lower_source="a quarter too fast", upper=1.25, upper_source="a quarter too slow",
        tolerance="a quarter", reason=error(predictions, measured),
    )  # fmt: skip
    for way, reason in left_out.items():
        lab.record(quantity=f"a token, {way.label}", unit="s", status="skipped", reason=reason)
