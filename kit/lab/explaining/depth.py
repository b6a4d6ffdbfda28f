"""A token's time by its depth (the positions before it) and by kind of layer: attention grows, states do not."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

import kit
from kit.gguf import cut
from kit.gguf.names import layer_of
from kit.gguf.reader import GGUFFile
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.engines.table import EXACT
from kit.lab.explaining.tables import DEPTH, formatted
from kit.lab.explaining.to_measure import left
from kit.lab.measuring.kept import once_a_run
from kit.lab.predicting import sampling
from kit.lab.predicting.attention import DecodeStep
from kit.lab.predicting.remembered import by_kind, held, kind_of
from kit.lab.predicting.ways import BLOCKS
from kit.model.config import Config
from kit.model.hyperparameters import read_config
from kit.model.kvcache import KV_TYPES
from kit.model.layers import KINDS
from kit.system import last_level_cache

DEPTHS = (64, 4096, 16384, 32768, 131072)
REST = "weights and the rest"
CHOOSING = {"index": ", index", "choice": ", choosing"}  # span -> what follows the kind: scores of an index, the best of them
_SPANS = {span for kind in KINDS for span in kind.spans}
_MOST = 512 << 20  # bytes of keys and values that are filled to measure a token
_WARM, _SAMPLES = 2, 3  # tokens: the second records the program


def depths_of(config: Config, depths: Sequence[int] = DEPTHS) -> list[int]:
    """Those that leave room for a token in the model's context."""
    return [depth for depth in depths if depth < config.context] or [config.context - 1]


def least(
    config: Config, nbytes: float, gbps: float, kv: str = "float32", depths: Sequence[int] = DEPTHS, times: float = 1.0
) -> list[dict]:
    """The least seconds of a token per depth: the bytes of its weights (``nbytes``), of keys and values, and of states, which
    are read and written, at ``gbps``. ``times``: how many layers each layer represents. Keys: "positions", "by", a kind each,
    the same and each of CHOOSING for a kind that chooses positions, whose scores are in no memory, REST, "token"."""
    rows, width = [], KV_TYPES[kv]
    for depth in depths_of(config, depths):
        moved = {}
        for kind, memories in by_kind(config).items():
            index = times * width * sum(memory.indexed(depth + 1) for memory in memories)
            moved[kind] = times * sum(memory.read(depth + 1, width) + memory.written(width) for memory in memories) - index
            if any(memory.index for memory in memories):
                moved |= {kind + CHOOSING["index"]: index, kind + CHOOSING["choice"]: 0}
        parts = {name: count / (gbps * 1e9) for name, count in (moved | {REST: nbytes}).items()}
        rows.append({"positions": depth, "by": "least"} | parts | {"token": sum(parts.values())})
    return rows


def of(study) -> list[dict]:
    """``least`` of a study's file (kit.lab.explaining.study), and rows as measured where all its layers are; [] for a file that
    the kit does not run."""
    if not study.runs:
        return []
    rows = least(read_config(study.file), bytes_used(study.read), study.limit_gbps)
    if study.part is None and study.room.fits and left(study) > 0 and not study.gives_way:
        study.say("measuring a token at several context lengths")
        real = study.measured.get(BLOCKS)
        rows += anchored(measured(study.file), real and real.seconds)
    return rows


@once_a_run
def measured(
    file, linear: str = "fused", kv: str = "float32", depths: Sequence[int] = DEPTHS, times: float = 1.0
) -> list[dict]:
    """The same as measured, after random keys and values, at the depths whose KV cache takes up to 512 MiB. ``times``: how many
    layers each layer of the file represents."""
    config, rows = kit.Transformer(kit.Weights(file)).config, []
    for depth in depths_of(config, depths):
        if held(config, depth)["kv"][kv] <= _MOST:
            step = DecodeStep(kit.Weights(file), linear, "fused", depth, times, kv)
            rows.append({"positions": depth, "by": "measured"} | _parts(step))
    return anchored(rows)


def anchored(rows: list[dict], token: float | None = None) -> list[dict]:
    """Rows of one by one, whose weights are the same work: REST is one number in all of them, the median, or what makes the
    first row the ``token`` that was measured elsewhere; each row's token is the sum of its parts."""
    if not rows:
        return rows
    grown = [row["token"] - row[REST] for row in rows]
    rest = float(np.median([row[REST] for row in rows])) if token is None else max(0.0, token - grown[0])
    return [row | {REST: rest, "token": rest + more} for row, more in zip(rows, grown, strict=True)]


def falls(rows: list[dict]) -> str:
    """Why a token that was measured is not slower at a greater depth; "" where each is."""
    taken = sorted((row for row in rows if row["by"] == "measured"), key=lambda row: row["positions"])
    for near, far in pairwise(taken):
        if far["token"] < near["token"]:
            return (
                f"A token after {far['positions']:,} positions was not slower than one after {near['positions']:,}: what "
                "attention adds there is less than its time varied."
            )
    return ""


def _parts(step: DecodeStep) -> dict[str, float]:
    """Seconds by kind of layer, of the rest and of all, of the token that took the median time."""
    layers, rows = step.model.config.layers, []
    for _ in range(_WARM + _SAMPLES):
        step.model.trace.clear()
        step.cache.back_to(step.mark)
        step.model.step([0], step.cache)
        kinds = by_kind(step.model.config)
        indexed = [kind for kind, memories in kinds.items() if any(memory.index for memory in memories)]
        row, token = dict.fromkeys([*kinds, *(kind + each for kind in indexed for each in CHOOSING.values())], 0.0), 0.0
        for span in step.model.trace.spans:
            layer, seconds = layer_of(span.tensor) if span.layer < 0 else span.layer, (span.end - span.start) / 1e9
            if span.what in _SPANS:
                row[kind_of(layers[layer].mixer) + CHOOSING.get(span.what, "")] += step.times * seconds
            if span.what == "token":
                token += seconds
            elif layer >= 0:
                token += (step.times - 1) * seconds
        rows.append(row | {REST: token - sum(row.values()), "token": token})
    return sorted(rows[_WARM:], key=lambda row: row["token"])[_SAMPLES // 2]


def table(rows: list[dict]) -> pd.DataFrame:
    """Rows of ``least`` and ``measured`` as a table of seconds, by depth."""
    frame = pd.DataFrame(sorted(rows, key=lambda row: (row["positions"], row["by"])))
    frame.index = pd.Index([f"{depth:,}, {by}" for depth, by in zip(frame.pop("positions"), frame.pop("by"), strict=True)])
    return frame.rename_axis(DEPTH)


def attending(file, most: int) -> tuple[GGUFFile, int, str]:
    """A file of up to ``most`` layers that attend, how many layers of ``file`` attend, and what is said of the others."""
    layers = read_config(file).layers
    numbers = [number for number, layer in enumerate(layers) if layer.mixer.memory.position]
    others = len(layers) - len(numbers)
    told = f"; {others} recurrent layers are left out, but for the times by depth" * bool(others)
    return sampling.what_fits(cut.cut(file, numbers) if others else file, most=most), len(numbers), told


def of_run(lab, file, times: float, nbytes: float, longest: int) -> pd.DataFrame:
    """The table of page 04: ``least`` at the run's bandwidth, and ``measured`` after up to ``longest`` positions, with units,
    which is recorded beside its bound. ``nbytes``: of the weights that a token reads, where a layer of ``file`` represents
    several (``times``); else the file says it."""
    read = nbytes if times != 1 else bytes_used(uses_of(file))
    rows = least(read_config(file), read, lab.machine.read_gbps, times=times)
    taken = measured(file, depths=[depth for depth in DEPTHS if depth <= longest], times=times)
    bounds = {row["positions"]: row["token"] for row in rows} if read > last_level_cache() else {}
    for row in taken:
        name = f"{EXACT.quantity}{', each layer for several' * (times != 1)}, after {row['positions']:,} positions"
        lab.record(quantity=name, unit="s", samples=[row["token"]], lower=bounds.get(row["positions"]),
                   lower_source="its weights, keys and values at the measured bandwidth")  # fmt: skip
    return formatted(table(rows + taken))
