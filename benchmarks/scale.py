"""How costs grow: microseconds for each of 10, 100, 1,000 ... objects, tensors, spans and tokens, and the exponent."""

import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from click.testing import CliRunner

import kit
from benchmarks._files import cached_model
from kit.cache import POLICIES
from kit.cache.traces import popular
from kit.gguf import writer
from kit.gguf.reader import TensorInfo
from kit.lab.commands.cli import main as command
from kit.lab.measuring import measure
from kit.lab.predicting.bounds import stack_distances
from kit.system.paths import models_folder

OBJECTS, TENSORS, PARTS = (10, 100, 1_000, 10_000, 100_000), (10, 100, 1_000, 10_000, 100_000), (10, 100, 1_000)
SPANS, TOKENS = (10, 100, 1_000, 10_000, 100_000, 1_000_000), (10, 100, 1_000)
ACCESSES, SKEW, HELD = 3, 0.7, 1 / 3  # a trace has so many for each object, popularity falls as rank^-SKEW, a share is held
SHORTEST = 10_000  # accesses of a trace, at least
LEAST = 1e-3  # seconds of a sample
GOALS = {  # microseconds (bytes, where the row says so) for each at the largest count, at most
    **{f"an access, {name}": 3.0 for name in POLICIES}, "open, a tensor": 12.5, "kit inspect, a tensor": 20.0,
    "kit inspect, a part": 2_000.0, "Weights[name] of 4 KB": 50.0, "frame, a span": 1.0, "frame, a span, bytes": 157.0,
}  # fmt: skip


def run(only: str = "", samples: int = 3) -> pd.DataFrame:
    """One row for each thing that is done: microseconds for one, by how many there are; ``exponent``: of its growth over the
    last three counts, 0 where it is flat; ``goal``: at the largest count, at most. ``only``: rows whose name holds this."""
    with tempfile.TemporaryDirectory() as folder:
        rows: dict[str, dict[int, float]] = {}
        for what, count, seconds in _measured(Path(folder), only, samples):
            rows.setdefault(what, {})[count] = seconds * 1e6
    table = []
    for what, costs in rows.items():
        last = dict(list(costs.items())[-3:])
        exponent = np.polyfit(np.log(list(last)), np.log(list(last.values())), 1)[0] if len(last) > 1 else np.nan
        goal = GOALS.get(what, np.nan)
        row = {"what": what, **{f"{count:,}": cost for count, cost in costs.items()}, "exponent": exponent, "goal": goal}
        table.append(row | {"ratio": goal / list(costs.values())[-1], "least": 1, "hoped": 1} if goal > 0 else row)
    counts = sorted({count for costs in rows.values() for count in costs})
    return pd.DataFrame(table).set_index("what").reindex(
        columns=[*(f"{count:,}" for count in counts), "exponent", "goal", "ratio", "least", "hoped"]
    )  # fmt: skip


def _measured(folder, only, samples) -> Iterator[tuple[str, int, float]]:
    """(what, count, seconds for each) of every row that was asked for."""

    def each(what: str, count: int, times: int, function: Callable[[], object]):
        if only in what:
            yield what, count, measure.time(function, samples, LEAST).median / times

    for count in OBJECTS:
        trace = popular(count, max(SHORTEST, ACCESSES * count), SKEW)
        for name, make in POLICIES.items():
            policy = make(max(1, int(HELD * count)))
            yield from each(f"an access, {name}", count, len(trace), lambda p=policy, t=trace: kit.replay(t, p))
        yield from each("an access, LRU at all budgets", count, len(trace), lambda t=trace: stack_distances(t))
    for count in TENSORS:
        path = tensors(folder / f"{count}.gguf", count)
        yield from each("open, a tensor", count, count, lambda p=path: kit.open(p).close())
        yield from each("kit inspect, a tensor", count, count, lambda p=path: inspect(p))
        with kit.open(path) as file:
            weights, names = kit.Weights(file), list(file.tensors)[-1000:]
            yield from each("Weights[name] of 4 KB", count, len(names), lambda w=weights, n=names: [w[name] for name in n])
    for count in PARTS:
        path = parts(folder, count)
        yield from each("kit inspect, a part", count, count, lambda p=path: inspect(p))
    for count in SPANS:
        yield from each("Trace.add", count, count, lambda c=count: spans(c))
        trace = spans(count)
        yield from each("frame, a span", count, count, trace.frame)
        if only in "frame, a span, bytes":
            yield "frame, a span, bytes", count, peak(trace.frame) / count / 1e6
    with kit.open(cached_model("tiny-llama", folder=models_folder())) as file:
        model = kit.Transformer(kit.Weights(file))
        for count in TOKENS:
            prompt = [token % model.config.vocabulary for token in range(count)]
            yield from each("a prompt, a token", count, count, lambda p=prompt: model.logits(p, -1))
            cache = model.new_cache(count + 8)
            yield from each("a token after so many", count, 8, lambda c=cache, n=count: decode(model, c, n))


def tensors(path: Path, count: int, first: int = 0, more=()) -> Path:
    """A file of ``count`` tensors, each of 4 KB in float32; all blocks are zero, a hole."""
    specs = [TensorInfo.new(f"blk.{number}.ffn_up.weight", "Q4_K", (4, 256)) for number in range(first, first + count)]
    head = writer.header({"general.architecture": "llama", **dict(more)}, specs)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + sum(writer.padded(spec.nbytes) for spec in specs))
    return path


def parts(folder: Path, count: int) -> Path:
    """A model split into ``count`` files of one tensor."""
    for part in range(count):
        more = {"split.no": part, "split.count": count, "split.tensors.count": count}
        first = tensors(folder / f"m-{part + 1:05d}-of-{count:05d}.gguf", 1, part, more)
    return first


def inspect(path: Path) -> str:
    """The output of kit inspect."""
    found = CliRunner().invoke(command, ["inspect", str(path)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def spans(count: int) -> kit.Trace:
    """A trace of so many spans, as a cache adds them."""
    trace = kit.Trace()
    for number in range(count):
        trace.add("access", number, number + 10, "blk.0.ffn_up.weight", 0, number, 4096, "hit")
    return trace


def peak(function: Callable[[], object]) -> int:
    """The most bytes that Python and numpy held at once while it ran."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def decode(model, cache, held: int) -> None:
    """Eight tokens after ``held`` whose keys and values are in the cache, whatever they are."""
    cache.truncate(held)
    cache.advance(held - cache.length)
    for _ in range(8):
        model.step([0], cache)
