"""What would make a token faster, as Lighthouse lists it: each change with its gain and its cost, the largest gain first.

A change that gains nothing is no row; what is fine is one line.
"""

from typing import NamedTuple

from kit.gguf.formats import FORMATS
from kit.gguf.uses import bytes_used
from kit.lab.engines.table import PEER
from kit.lab.explaining import answer, answer_table
from kit.lab.explaining.lines import paragraph
from kit.lab.explaining.study import Study
from kit.lab.measuring import pages
from kit.lab.measuring.busy import WORTH
from kit.lab.predicting.ways import BLOCKS, predict, used_tensors
from kit.units import format_bytes, format_rate, format_seconds

_FEWER = ("Q4_0", "Q3_K")  # formats of fewer bits that kit quants makes
_INDENT = " " * 27


class Opportunity(NamedTuple):
    """A change. ``times``: as fast as ``now``, "measured" or "predicted" (``by``); ``seconds``: of a token after it. ``cost``:
    in words. ``command``: makes it, or measures what it costs; "": none does."""

    change: str
    now: str
    times: float
    by: str
    seconds: float
    cost: str
    command: str = ""

    @property
    def rate(self) -> str:
        return f"{format_rate(1 / self.seconds)} tok/s"


def gather(study: Study) -> list[Opportunity]:
    """The changes that gain, the largest first; none on a busy machine, and none of a file whose tokens were not run."""
    if study.busy or (study.part or study).order.reason:
        return []
    found = [*_ways(study), *_memory(study), *_bits(study)]
    return sorted((each for each in found if each.times >= WORTH), key=lambda each: -each.times)


def _ways(study: Study) -> list[Opportunity]:
    """Other ways of kit than that of `kit generate` without options."""
    found_now = answer.of(study)
    first, *others = zip(study.predictions, study.advice().itertuples(), strict=True)
    default = found_now.ways.get(first[0].way)
    found = []
    for prediction, row in others:
        way, time = prediction.way, found_now.ways.get(prediction.way)
        both = default and time and answer.measured(default) and answer.measured(time)
        if time is None or (both and not answer.gains(time, default)):
            continue
        costs = []
        if way.precision != "float32":
            costs.append(answer_table.quality(found_now.same(way.precision)) or "a loss of quality that is not measured")
        if (more := study.room.needs(prediction) - study.room.needs(first[0])) > 0:
            costs.append(f"{format_bytes(more)} more memory")
        seconds = time.seconds if row.by == "measured" else first[0].seconds / row.faster
        found.append(Opportunity(way.told, "kit's default", row.faster, row.by, seconds, "; ".join(costs) or "nothing",
                                 answer.command(study, way)))  # fmt: skip
    return found


def _memory(study: Study) -> list[Opportunity]:
    """Memory for the whole file, where it does not fit."""
    if study.room.fits or study.part is not None:
        return []
    now, tensors = study.predictions[0], used_tensors(study.file, study.order)
    then = predict(BLOCKS, tensors, study.order, study.costs, study.machine, None)
    needs = study.room.beside + study.room.nbytes
    cost = f"{format_bytes(max(0, needs - study.room.limit))} more memory"
    change = f"{format_bytes(needs)} of memory, which hold the whole file"
    return [Opportunity(change, "kit's default", now.seconds / then.seconds, "predicted", then.seconds, cost)]


def _bits(study: Study) -> list[Opportunity]:
    """Fewer bits, where an engine is near the limit of memory, so that its time follows the bytes."""
    times = {None: answer.peer(study)} | answer.reached(study)
    near = [way for way, time in times.items() if time and answer.measured(time)
            and answer.share(study, way, time).median >= answer_table.NEAR]  # fmt: skip
    if not near or study.file.path is None:
        return []
    way, nbytes, found, seconds = near[0], bytes_used(study.read), [], times[near[0]].seconds
    now = (way.label if way else PEER).partition(",")[0]
    now = f"kit, {answer_table.SHORT.get(way.precision, way.label)}" if way and not way.holds else now
    for name in _FEWER:
        width = FORMATS[name].bits_per_weight / 8
        fewer = sum(bytes_used([use], min(width, use.nbytes / use.elements)) for use in study.read)
        command = f"kit quants {answer.name_of(study)} --to {name}"
        found.append(Opportunity(f"{name} in place of formats of more bits", now, nbytes / fewer, "predicted",
                                 seconds * fewer / nbytes, "quality, which the command measures", command))  # fmt: skip
    return found


def fine(study: Study, found: list[Opportunity]) -> list[str]:
    """What needs no change."""
    told = ["the file fits in memory"] * study.room.fits
    if study.map_found and study.map_found.ratio >= pages.SMALL:
        told.append("its pages are read as fast as a copy in memory")
    if (other := answer.peer(study)) and (share := answer.share(study, None, other).median) >= answer_table.NEAR:
        told.append(f"llama.cpp is at {share:.0%} of the limit")
    others = len(study.predictions) - 1 - sum(each.now == "kit's default" and bool(each.command) for each in found)
    return told + [f"kit's {others} other ways to hold weights gain nothing"] * bool(others)


def advice(study: Study) -> list[str]:
    """The changes as sentences of a page, each with its command; else why there is none."""
    found = [
        f"{each.change}: {each.times:.1f} times as fast as {each.now}, {each.by}; it costs {each.cost}"
        + (f": `{each.command}`" if each.command else ".")
        for each in gather(study)
    ]
    return found or [study.busy.line or f"No change gains more than {WORTH - 1:.0%} here."]


def told(study: Study, found: list[Opportunity]) -> str:
    """The list as text: gain, seconds of a token and change in a line, then what it costs and its command."""
    lines = ["OPPORTUNITIES, the largest gain first"] if found else ["OPPORTUNITIES: none that was measured or predicted"]
    for each in found:
        lines.append(f"{each.times:5.2f}x {each.by:<9}  {format_seconds(each.seconds):>7}, {each.rate}  {each.change}")
        lines += [f"{_INDENT}compared with {each.now};", f"{_INDENT}costs {each.cost}"]
        lines += [f"    {each.command}"] * bool(each.command)
    passed = fine(study, found)
    return "\n".join([*lines, *([paragraph(f"Fine: {'; '.join(passed)}.")] if passed else [])])
