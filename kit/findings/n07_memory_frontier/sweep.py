"""Every way of holding the weights of a model: predicted from costs and replays, then measured where it is worth it."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import decode_order
from kit.codec.compressor import cached_tiles
from kit.costs import ways
from kit.costs.measured import DTYPES, Cost, measure_costs
from kit.costs.order import Decode, Kind, Order, order_of
from kit.costs.tables import advice_table
from kit.costs.uses import bytes_used
from kit.costs.ways import BLOCKS, BLOCKS_INT8, Measured, Part, Prediction, Way, parts_of
from kit.findings import reported
from kit.findings.live import relative_rms
from kit.findings.n07_memory_frontier import pressed, tiles
from kit.gguf import pagecache
from kit.gguf.names import layer_of
from kit.lab.machine import Machine, memory_available
from kit.synthetic.geometry import GEOMETRIES
from kit.units import format_bytes

SHARES = tuple(np.round(np.linspace(0.1, 0.9, 9), 3).tolist())  # of the working set
POLICIES = ("LRU", "CyclicAware", "Pinned")
LINES = (*((dtype, "dequantized") for dtype in DTYPES), *(("int8", linear) for linear in tiles.LINEARS))  # dtype, linear
PRESSED = Way("NoCache", linear="pressed")
HEADROOM = 64 << 20  # bytes that a process needs beside the blocks; too many for a limit to press a small file
PINNED_BLOCKS = "pinned blocks"  # so many bytes of the file held, the rest from the disk at every token
FROM_DISK = (PRESSED.linear, PINNED_BLOCKS)  # measured in a process of its own, in which every token is the first
TOLERANCES = {"f32": 1e-4, "f16": 2e-2, "bf16": 1e-1, "INT8 tiles": 2e-1, "int8 activations": 1e-1}


def pinned_blocks(nbytes: int) -> Way:
    """Blocks used as they lie, ``nbytes`` of them held in memory."""
    return Way("Pinned", nbytes, linear=PINNED_BLOCKS)


@dataclass(frozen=True)
class Subject:
    """What is predicted: a name, its tensors and their order, as blocks and as tiles."""

    name: str
    parts: dict[str, Part]
    order: Order
    tile_parts: dict[str, Part]
    tile_order: Order

    def working_set(self, dtype: str) -> int:
        """Bytes of everything that passes through the cache of that dtype ("int8": of tiles)."""
        parts = self.tile_parts if dtype == "int8" else self.parts
        return sum(part.elements for part in parts.values()) * ways.BYTES[dtype]

    @property
    def blocks(self) -> int:
        """Bytes of the blocks that a token reads."""
        return int(bytes_used(self.order.uses))

    @property
    def layers(self) -> int:
        """Number of layers that a token uses."""
        return len({layer for name in self.parts if (layer := layer_of(name)) >= 0})


@dataclass(frozen=True)
class Costs:
    """What this machine needs for one use of each kind of tensor, and for a byte of the file that is not in memory.
    ``disk_gbps``: reading the file through the page cache, its pages dropped (``cold``: whether they could be, by mincore);
    ``direct_gbps``: the disk itself, by O_DIRECT, None where the file system has none."""

    plain: dict[Kind, Cost]
    tiles: dict[Kind, Cost]
    disk_gbps: float
    machine: Machine
    cold: bool = True
    direct_gbps: float | None = None

    @property
    def reads(self) -> str:
        """How fast the file comes in, in words."""
        direct = f"; the disk itself, by O_DIRECT, {self.direct_gbps:.1f} GB/s" if self.direct_gbps else ""
        return f"{self.disk_gbps:.1f} GB/s {'cold' if self.cold else 'from the page cache: its pages stay'}{direct}"


def prepare(path: Path, machine: Machine, tokens: int) -> tuple[Subject, Costs]:
    """The file at ``path`` as a subject, its costs measured; compresses it on the first call (kept with the models)."""
    direct, cold = pressed.direct_gbps(path), pagecache.drop(path)
    disk = direct if direct and cold else machine.read_gbps  # what was not dropped comes from memory
    with kit.open(path) as file, cached_tiles(path) as packed:
        order = order_of(file, tokens)
        tile_parts, tile_costs = tiles.parts_and_costs(packed)
        tile_order = tiles.order_of(order, tile_parts, tied="output.weight" not in file.tensors)
        subject = Subject(Path(file.path).name, parts_of(file, order), order, tile_parts, tile_order)
        return subject, Costs(measure_costs(file, order.names), tile_costs, disk, machine, cold, direct)


def asked(file: Subject, costs: Costs, memory: int) -> tuple[Subject, int]:
    """The model of the question and its memory: granite-3.3-8b, from which the file was cut, and ``memory``. What lies outside
    its weights grows with the layers, and its tiles take the same share of their INT8 bytes. Where it has tensors whose cost
    was not measured: the file itself, with the share of its f32 weights that ``memory`` is of those of granite-3.3-8b."""
    model = GEOMETRIES[reported.MODEL]
    specs = {spec.name: spec for spec in model.tensors()}
    names = [name for name, _ in decode_order(model)]
    parts = {name: Part(Kind(specs[name].qtype, specs[name].shape), specs[name].nbytes) for name in names}
    if not {part.kind for part in parts.values()} <= set(costs.plain):
        return file, max(1, int(memory / reported.f32_bytes() * file.working_set("float32")))
    share = sum(part.blocks for part in file.tile_parts.values()) / file.working_set("int8")
    packed = {
        name: Part(Kind("I8", part.kind.shape), int(share * part.elements))
        for name, part in parts.items()
        if len(part.kind.shape) == 2
    }
    more = model.layers / file.layers
    programs = {name: found._replace(rest=more * found.rest) for name, found in file.order.programs.items()}
    order = Order([names] * 3, rest=more * file.order.rest, programs=programs, uses=reported.uses())
    return Subject(reported.MODEL, parts, order, packed, tiles.order_of(order, packed, model.tied)), memory


def all_ways(subject: Subject, memory: int | None = None, shares=SHARES) -> list[Way]:
    """Lazy, every limited cache at every share, and everything kept, in each dtype; blocks; tiles; a page cache too small.
    ``memory``: one more size for every cache, bytes."""

    def sizes(whole: int) -> list[int]:
        return [int(share * whole) for share in shares] + [memory] * (memory is not None)

    found = []
    for dtype, linear in LINES:
        policies, limits = POLICIES if linear == "dequantized" else ("Pinned",), sizes(subject.working_set(dtype))
        limited = [Way(policy, limit, dtype, linear) for policy in policies for limit in limits]
        found += [Way("NoCache", None, dtype, linear), *limited, Way("HashMap", None, dtype, linear)]
    pinned = [pinned_blocks(size) for size in sizes(subject.blocks) if size < subject.blocks]
    return [*found, *pinned, BLOCKS, BLOCKS_INT8, PRESSED]


def predict(way: Way, subject: Subject, costs: Costs) -> Prediction:
    """One way, by what it uses."""
    if way.linear in tiles.LINEARS:
        return tiles.predict(way, subject.tile_parts, subject.tile_order, costs.tiles, costs.machine)
    if way.linear in FROM_DISK:
        stepped = replace(subject.order, programs={})  # each token is the first of a model of its own
        warm = ways.predict(BLOCKS, subject.parts, stepped, costs.plain, costs.machine)
        pinned = max(0, (way.capacity or 0) - warm.held)  # vectors are held beside the blocks
        missing = max(0, subject.blocks - pinned) / 1e9
        least = missing / max(costs.disk_gbps, costs.direct_gbps or 0)
        return replace(warm, way=way, seconds=warm.seconds + missing / costs.disk_gbps, from_disk=least, pages=pinned)
    return ways.predict(way, subject.parts, subject.order, costs.plain, costs.machine)


def chosen(subject: Subject) -> list[Way]:
    """The ways to measure: the ends of every line, its middle, and for pinned f32 the quarters."""
    found = [BLOCKS, BLOCKS_INT8, PRESSED, pinned_blocks(subject.blocks // 2)]
    for dtype, linear in LINES:
        middle = int(0.5 * subject.working_set(dtype))
        found += [Way("NoCache", None, dtype, linear), Way("Pinned", middle, dtype, linear)]
        found += [Way("HashMap", None, dtype, linear)] * (linear != tiles.PREFETCHED)
    whole = subject.working_set("float32")
    quarters = [Way("Pinned", whole // 4), Way("Pinned", 3 * whole // 4)]
    return [*found, Way("LRU", whole // 2), Way("CyclicAware", whole // 2), *quarters]


def measure_all(path: Path, subject: Subject, predictions: list[Prediction], tokens: int) -> tuple[list[Measured], dict]:
    """The chosen ways, each for ``tokens`` tokens; and the way -> reason of those that cannot be measured here."""
    found, left_out = [], {}
    for way in (prediction.way for prediction in predictions if prediction.way.linear in FROM_DISK):
        # first: pages cannot be dropped while this process maps them
        limit = subject.blocks // 2 + HEADROOM if way == PRESSED and subject.blocks > 4 * HEADROOM else 0
        real = pressed.measure(path, tokens, way.capacity or 0, limit)
        if real.measured is None:
            left_out[way] = real.reason
        else:
            found.append(replace(real.measured, way=way))
            print(f"{way.label}: {real.limit}, {real.stayed:.0%} of the file in memory when a token begins", file=sys.stderr)
    with kit.open(path) as file, cached_tiles(path) as packed:
        for prediction in predictions:
            way = prediction.way
            if prediction.total > 0.9 * memory_available():
                needs, free = format_bytes(prediction.total), format_bytes(memory_available())
                left_out[way] = f"needs {needs}, {free} are free"
            elif way.linear in tiles.LINEARS:
                found.append(tiles.measure_tiles(way, packed, tokens))
            elif way.linear not in FROM_DISK:
                found.append(ways.measure(way, file, subject.order, tokens))
    return found, left_out


def equality(path: Path, measured: list[Measured]) -> pd.DataFrame:
    """RMS difference of each way's last logits from those of f32 weights, over their standard deviation; its tolerance."""
    truth = next(found.result for found in measured if found.way == ways.LAZY)
    with kit.open(path) as file:
        first = Decode(kit.Weights(file), "fused").step()
    rows = {}
    for found in measured:
        off = relative_rms(found.result, first if found.way.linear in FROM_DISK else truth)
        tolerance = TOLERANCES[found.way.precision]
        rows[found.way.label] = (off, tolerance, off <= tolerance)
    return pd.DataFrame(rows, index=["rms / std", "tolerance", "equal"]).T.astype({"equal": bool})


def pareto(predictions: list[Prediction]) -> list[Prediction]:
    """The ways that no other beats in both memory and time, by rising memory."""
    front: list[Prediction] = []
    for found in sorted(predictions, key=lambda prediction: (prediction.total, prediction.seconds)):
        if not front or found.seconds < front[-1].seconds:
            front.append(found)
    return front


def table(predictions: list[Prediction], measured: list[Measured] = ()) -> pd.DataFrame:
    """One row a way, the fastest first: seconds predicted and measured, the least, bytes held, pages of the file needed."""
    ordered = sorted(ways.roofed(predictions, measured), key=lambda prediction: prediction.seconds)
    found = advice_table(ordered, {found.way: found for found in measured}).drop(columns=["faster", "by"])
    return found.assign(together=found["held"] + found["file pages"])
