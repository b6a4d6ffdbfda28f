"""What the frontier says: the error of its predictions, what to do with so much memory, and the records of both."""

from collections.abc import Iterable

import pandas as pd

from kit.costs.quality import PRECISIONS
from kit.costs.tables import off_by
from kit.costs.ways import Measured, Prediction, Way, roofed
from kit.errors import CacheError
from kit.findings.n07_memory_frontier import sweep
from kit.units import format_bytes, format_seconds


def error(table: pd.DataFrame) -> str:
    """The error of the predictions in a sentence; ``table``: of sweep.table, with what was measured."""
    off = off_by(table["factor"].dropna())
    typical = f"a factor of {off.median():.2f} in the median of {len(off)} ways"
    return f"The predictions are off by {typical}, {off.max():.2f} at worst ({off.idxmax()})."


def lost(way: Way, quality) -> str:
    """What a way rounds and the KL divergence that this costs, in words; ``quality``: of kit.costs.quality."""
    kl = quality["kl"].get(way.precision, 0.0)
    return PRECISIONS[way.precision].told + (f", KL {kl:.1e} nats" if kl else "")


def best(predictions: list[Prediction], memory: int) -> Prediction:
    """The fastest way whose weights and file pages fit into ``memory`` together; CacheError when none does."""
    least = min(p.total for p in predictions)
    if memory < least:
        raise CacheError(f"{format_bytes(memory)} hold no way of keeping these weights: the least is {format_bytes(least)}")
    return min((p for p in predictions if p.total <= memory), key=lambda found: found.seconds)


def answer(name: str, predictions: list[Prediction], memory: int, off: str, quality) -> str:
    """What to do with ``memory`` bytes, in sentences."""
    reported = next(p for p in predictions if p.way == Way("LRU", memory))
    exact = best([p for p in predictions if p.way.precision == reported.way.precision], memory)
    inside, whole = best(predictions, memory), best(predictions, max(p.total for p in predictions))
    text = [
        f"With {format_bytes(memory)} for {name}, file included, take {exact.way.label}: {format_seconds(exact.seconds)} a "
        f"token predicted, {reported.seconds / exact.seconds:.1f} times faster than an LRU of f32 weights that hits "
        f"{reported.hit_rate:.0%} ({format_seconds(reported.seconds)} predicted), and {lost(exact.way, quality)}."
    ]
    if inside.way != exact.way:
        text.append(f"Faster at the price of quality: {inside.way.label}, {format_seconds(inside.seconds)} predicted, "
                    f"{lost(inside.way, quality)}.")  # fmt: skip
    text.append(
        f"With memory for more the fastest is {whole.way.label}: {format_bytes(whole.total)}, {format_seconds(whole.seconds)} "
        f"predicted, {lost(whole.way, quality)}. {off}"
    )
    return " ".join(text)


def record_ways(lab, predictions: list[Prediction], measured: Iterable[Measured]) -> None:
    """A record for every measured way, its prediction in the reason."""
    measured = list(measured)
    predicted = {found.way: found for found in roofed(predictions, measured)}
    for found in measured:
        said = predicted[found.way]
        lab.record(
            quantity=f"a token, {found.way.label}", unit="s", samples=list(found.samples), lower=said.least,
            lower_source="its bytes at the measured bandwidth", tolerance="predictions within a factor of 1.25",
            reason=f"predicted {format_seconds(said.seconds)} ({said.seconds / found.seconds:.2f} times), "
            f"{format_bytes(said.held)} held and {format_bytes(said.pages)} of the file",
        )  # fmt: skip


def record(lab, predictions: list[Prediction], measured: list[Measured], left_out: dict) -> None:
    """A record for every measured way, one for the error of all predictions, and a row for what could not be measured."""
    record_ways(lab, predictions, measured)
    table = sweep.table(predictions, measured).dropna(subset="measured")
    lab.record(
        quantity="predicted over measured seconds a token, all ways", unit="x", tolerance="a factor of 1.25",
        reason=error(table), samples=list(table["factor"]),
    )  # fmt: skip
    for way, reason in left_out.items():
        lab.record(quantity=f"a token, {way.label}", unit="s", status="skipped", reason=reason)
