"""A study of one file: everything that kit explain and notebook 09 say about it, gathered once."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import Requests
from kit.errors import KitError
from kit.gguf import cut
from kit.gguf.foreign import check_model
from kit.gguf.formats import FORMATS
from kit.gguf.names import layer_of
from kit.gguf.uses import Use, assumed, bytes_used, uses_of
from kit.lab.engines.table import ROUNDED
from kit.lab.explaining import peers, tables
from kit.lab.explaining import to_measure as measuring
from kit.lab.measuring import pages
from kit.lab.measuring.busy import Busy
from kit.lab.measuring.limits import KnownLimits
from kit.lab.measuring.machine import Machine
from kit.lab.measuring.measurements import Reading, Readings, shared
from kit.lab.measuring.minutes import Minutes
from kit.lab.predicting import sampling
from kit.lab.predicting.divergence import CONTEXT, tokens_for
from kit.lab.predicting.measured import Cost, Kind, is_kept, keep_pass, measure_costs, of_pass, of_run
from kit.lab.predicting.order import Order, draw, kind_of, order_of
from kit.lab.predicting.quality import kept, quality
from kit.lab.predicting.room import Room
from kit.lab.predicting.ways import BLOCKS, Prediction, Way, faster_than_probed, roofed
from kit.lab.summary import summarize
from kit.system import last_level_cache, memory_available, memory_limit, note
from kit.units import format_count

_ROUNDED = tuple(row.precision for row in ROUNDED)
_PRECISIONS = ("float32", *_ROUNDED), ("float32", "float16", "bfloat16", *_ROUNDED)  # of a large file, of any other
_LARGE = 6e8  # weights that are rounded again for each step of a text: seconds, not minutes, on two cores
_MEASURED = 4e9  # bytes of float32 a token: where all layers use more, a sample of them is measured
_SHARE = 20.0  # seconds for the engines on a busy machine, where more rounds are no comparison either
_TEXT = CONTEXT + 256 + 1  # tokens of a text on a busy machine
_LARGEST = 4e9  # bytes of a file whose tokens all engines run in seconds; ten times as much where it is thorough


@dataclass(eq=False)
class Study:
    """``file``: an open GGUF; ``probe``: measures the machine, or says what is known of it (KnownLimits); ``memory``: bytes of
    a cache of dequantized weights; ``tokens``: decoded. ``trace``: accesses recorded elsewhere, for the table of policies; the
    file's own order when None. ``via``: whose forward pass, ``skew``: of experts that are drawn, both as in
    kit.lab.predicting.order.order_of. ``whole``: bytes that the whole process may take; None: what is free.

    Of a file whose layers would take minutes a sample is run and measured, unless ``thorough``; ``cut``: the layers that
    ``file`` was cut to. ``minute``: seconds for the engines, and after which no further way is measured, the compiling of
    kernels not counted. ``store``: of measurements, read and written; ``again``: measure what it has, too; ``by``: who
    measures. ``name``: of the file in commands; "": its path. ``folder``: of a run, whose other pages' costs of single uses
    are read. ``busy``: what other processes used. ``seen_gbps``: of memory, in a probe before this; it counts for limits, too.
    """

    file: object
    probe: Callable[[], Machine | KnownLimits]
    memory: int
    tokens: int = 16
    trace: Requests | None = None
    progress: bool = False
    via: str = ""
    skew: float = 0.0
    thorough: bool = False
    cut: tuple[int, ...] = ()
    minute: float = np.inf
    began: float = field(default_factory=time.perf_counter)
    measured: dict[Way, Reading] = field(default_factory=dict)
    unmeasured: dict[Way, str] = field(default_factory=dict)
    compiled: list[float] = field(default_factory=list)
    whole: int | None = None
    store: Readings = field(default_factory=shared)
    again: bool = False
    by: str = "kit explain"
    name: str = ""
    folder: Path | None = None
    busy: Busy = field(default_factory=Busy)
    seen_gbps: float = 0.0

    def __post_init__(self):
        check_model(self.file)

    @property
    def gives_way(self) -> bool:
        """Whether what serves a comparison or takes long is left out, because other processes use the cores."""
        return bool(self.busy) and self.minute < np.inf

    def say(self, what: str) -> None:
        """A line of progress on standard error."""
        if self.progress:
            print(f"[{time.perf_counter() - self.began:5.1f} s] {what}", file=sys.stderr, flush=True)

    @cached_property
    def facts(self) -> dict:
        """What the file is: kit.lab.summary."""
        return summarize(self.file, memory_limit(), memory_available())

    @cached_property
    def limits(self) -> KnownLimits:
        """This machine, measured, and what is known of it."""
        if not self.cut:
            self.say("measuring this machine")
        limits = self.probe()
        limits = limits if isinstance(limits, KnownLimits) else KnownLimits(limits, limits.read_gbps)
        self.busy.seen(limits.others)
        return limits

    @cached_property
    def map_found(self) -> pages.MapSpeed | None:
        """How fast the file reads through its map as it was found; None where that says nothing of memory."""
        return None if self.cut or self.file.path is None or not self.room.fits else pages.speed(self.file)

    @cached_property
    def map_speed(self) -> pages.MapSpeed | None:
        """The same now: what ran the file may have read it again, by larger pages (kit.gguf.large_pages)."""
        if self.map_found is None or self.map_found.ratio >= pages.SMALL:
            return self.map_found
        measuring.measure_engines(self)
        self.settle()
        return pages.speed(self.file)

    @cached_property
    def machine(self) -> Machine:
        """This machine at its best known bandwidth, and the file's map at its share of that."""
        found = [speed for speed in (self.map_found, self.map_speed) if speed]
        seen = max([self.limits.machine.read_gbps, self.seen_gbps, *(max(speed.gbps, speed.memory_gbps) for speed in found)])
        return pages.with_map(replace(self.limits.machine, read_gbps=seen), self.map_speed)  # whatever read faster is the limit

    @cached_property
    def runs(self) -> bool:
        """Whether the kit's own pass runs the file, whole or in part."""
        order = (self.part or self).order
        return not order.reason and order.via == "kit"

    @cached_property
    def engines(self) -> dict[str, Reading]:
        """Engine (engines.processes) -> a token in a process of its own, in turn with the others; {} for a file that the
        kit does not run, that does not fit, or whose tokens take minutes."""
        most, nbytes = _LARGEST * (1 + 9 * self.thorough), sum(use.nbytes for use in self.uses)
        if self.cut or not self.runs or not self.room.fits or self.file.path is None or nbytes > most:
            return {}
        self.settle()
        share = _SHARE if self.gives_way else self.minute
        self.say(f"measuring a token with each engine{f', about {share:.0f} s at most' * (share < np.inf)}")
        asked = self.file, self.by, self.store, self.again, share, not self.gives_way
        rows = peers.readings(*asked, busy=self.folder is not None)
        self.busy.seen(max((row.others for row in rows.values()), default=0.0))
        return rows

    def settle(self) -> None:
        """Wait until the file is mapped by large pages, if it is being read again for that (kit.gguf.large_pages)."""
        if again := self.file.reading_again:
            again.join()

    @cached_property
    def uses(self) -> list[Use]:
        """What a token uses, by the table of tensors and the metadata."""
        return uses_of(self.file)

    @cached_property
    def room(self) -> Room:
        """The memory of the process, and whether the file's blocks stay in it."""
        return Room(self.file, sum(use.nbytes for use in self.uses), self.whole, bool(self.cut))

    @cached_property
    def layers(self) -> list[int]:
        """The layers that are run and measured: all, or such a sample that a token uses a few GB of float32."""
        each = Counter()
        for use in self.uses:
            each[layer_of(use.name)] += 4 * use.elements * use.share()
        every = sorted(set(each) - {-1})
        if self.thorough or self.cut or not every or every != list(range(len(every))):
            return every
        return sampling.sample(self.file, every, _MEASURED, lambda layers: each[-1] + sum(each[layer] for layer in layers))

    @cached_property
    def part(self) -> "Study | None":
        """The study of the sampled layers, with their share of the memory; None where the whole file is measured."""
        if len(self.layers) == len({layer_of(use.name) for use in self.uses} - {-1}):
            return None
        file = cut.cut(self.file, self.layers)
        share = bytes_used(uses_of(file), 4) / bytes_used(self.uses, 4)
        return replace(
            self, file=file, probe=lambda: self.machine, memory=max(1, int(share * self.memory)), tokens=min(self.tokens, 4),
            cut=tuple(self.layers), measured={}, unmeasured={}, whole=None,
        )  # fmt: skip

    @cached_property
    def order(self) -> Order:
        """What a decode of ``tokens`` tokens asks for: recorded, or drawn where only a sample of the layers was run, whose time
        outside uses of weights grows with the layers. What its passes cost is what the store has of them; else it is kept."""
        recorded = self._recorded()
        known = recorded if self.again or self.cut else of_pass(self.store, self.file, recorded)
        if known is recorded and not (recorded.reason or self.cut or self.busy):
            keep_pass(self.store, self.file, recorded, self.by)
        return known

    def _recorded(self) -> Order:
        if self.map_found:  # measured before a decode, which may read the file again
            self.say(f"the file's pages: {self.map_found.told()}")
        if self.part is None:
            self.say(f"recording a decode of {self.tokens} tokens")
            with note.compilation() as self.compiled:
                return order_of(self.file, self.tokens, self.via, self.skew)
        usable = [use for use in self.uses if self.file.tensors[use.name].qtype in FORMATS]
        tokens, more = draw(usable, self.tokens, self.skew), self.facts["layers"] / len(self.layers)
        return replace(self.part.order.scaled(more, tokens, usable), assumed=assumed(self.file, usable))

    @cached_property
    def costs(self) -> dict[Kind, Cost]:
        """What one use of each kind of tensor costs on this machine."""
        if self.part is not None and not (self.folder and is_kept(self.folder, self.file)):
            return self.part.costs
        names, weights = self.order.names, kit.Weights(self.file)
        self.say(f"measuring {len({kind_of(weights, name) for name in names})} kinds of tensors: one use of each")
        return of_run(self.folder, self.file, names) if self.folder else measure_costs(self.file, names)

    @cached_property
    def accesses(self) -> Requests:
        """The trace to replay: the one from elsewhere, or the file's own order at float32."""
        return self.trace or self.order.requests(kit.Weights(self.file).nbytes)

    @cached_property
    def _predicted(self) -> list[Prediction]:
        room = self.room
        return tables.advice(self.file, self.order, self.costs, self.machine, self.memory, room.disk, room.pinned, room.slots)

    @property
    def _factor(self) -> float:
        """How many times faster than the best known memory was, by all that was predicted and measured."""
        factor = faster_than_probed(self._predicted, self.measured)
        return max(factor, self.part._factor) if self.part else factor

    @property
    def predictions(self) -> list[Prediction]:
        """What `kit generate` does by itself first, then every other way, the fastest first. No bound exceeds a time here."""
        return roofed(self._predicted, factor=self._factor)

    @property
    def read_gbps(self) -> float:
        """The best bandwidth that this machine has shown: in its probe, or in what a way predicts or measures."""
        return self.machine.read_gbps * self._factor

    @property
    def read(self) -> list[Use]:
        """What a token reads: what its order uses, and tensors of a format that the kit does not know, whose bytes it does."""
        return [*self.order.uses, *(use for use in self.uses if self.file.tensors[use.name].qtype not in FORMATS)]

    @property
    def least(self) -> float:
        """Least seconds of a token from the blocks: memory's, or the disk's where they do not stay."""
        return self._least(self.read_gbps)

    def bounds(self) -> pd.DataFrame:
        """The roofline of a token: the least that reading once what it uses takes, by how weights are held."""
        machine = replace(self.machine, read_gbps=self.read_gbps)
        table = tables.token_bounds(self.file, machine, self.read)
        return table[["bytes of a token", "least seconds per token", "most tokens per second"]]

    def parts(self, way: Way = BLOCKS) -> pd.DataFrame:
        """Where the time of a token from the blocks goes (kit.lab.explaining.tables.parts_of)."""
        linear = (way if way.product else BLOCKS).linear
        costs = {} if self.order.programs.get(linear) else self.costs
        real = self.measured.get(way)
        most = self.read_gbps if bytes_used(self.read) > last_level_cache() else np.inf
        return tables.parts_of(self.file, self.order, costs, linear, real and real.seconds, most)

    @cached_property
    def text(self) -> int:
        """Tokens of the text that shows what rounding does: fewer on a busy machine that has not measured more before. KitError
        where the file has no tokenizer or pass of the kit."""
        tokens = tokens_for(self.facts["parameters"], self.thorough)
        return _TEXT if self.gives_way and tokens > _TEXT and not kept(self.file, tokens) else tokens

    @cached_property
    def losses(self) -> dict[str, dict[str, float]] | str:
        """Precision or engine -> the columns of ``quality`` that were measured of this file, or why none can be."""
        try:
            if not (tokens := self.text):
                return f"a text through {format_count(self.facts['parameters'])} weights takes minutes: `--thorough` takes them"
            return kept(self.file, tokens)
        except KitError as error:  # no tokenizer or pass of the kit
            return str(error)

    @cached_property
    def quality(self) -> pd.DataFrame | str:
        """What rounding weights or activations does to the answers (kit.lab.predicting.quality), or why that cannot be said."""
        if isinstance(self.losses, str):
            return self.losses
        weights, tokens = self.facts["parameters"], self.text
        self.say(f"measuring what rounding does to the answers, on {tokens:,} tokens of text")
        try:
            table = quality(self.file, _PRECISIONS[self.thorough or (weights < _LARGE and not self.gives_way)], tokens)
        except KitError as error:
            return str(error)
        self.losses.update(table.to_dict("index"))
        return table

    @cached_property
    def minutes(self) -> Minutes | None:
        """How fast the file's pages were read in the rounds in which the engines ran; None where they did not."""
        return peers.in_turn(self.file, self.store, self.engines, bytes_used(self.read)) if self.engines else None

    @property
    def now_gbps(self) -> float:
        """The bandwidth of these minutes: in turn with the engines, else of the file's map, else of the probe."""
        if self.minutes:
            return self.minutes.read_gbps
        shown = [bytes_used(self.read) / each.seconds / 1e9 for each in self.measured.values()] if self.room.fits else []
        return max([self.map_speed.gbps if self.map_speed else self.limits.now, *shown])

    @property
    def limit_gbps(self) -> float:
        """The bandwidth by which all of an answer is limited: of these minutes, and of busy ones the best that is known."""
        return self.read_gbps if self.busy else self.now_gbps

    @property
    def least_now(self) -> float:
        """Least seconds of a token at the bandwidth of these minutes: what the answer's limit is."""
        return self._least(self.now_gbps)

    def _least(self, gbps: float) -> float:
        least = bytes_used(self.read) / (gbps * 1e9)
        return least if self.room.fits else max(least, self.predictions[0].from_disk)

    def quantity(self, way: Way) -> str:
        """A way's name in records, with the layers that the file was cut to."""
        return f"{way.quantity}, layers {self.cut}" if self.cut else way.quantity

    def checked(self) -> pd.DataFrame:
        """What was measured, with its prediction; if there is a sample of layers, of these alone."""
        ran = self.part or self
        table = ran.advice()
        if "measured" not in table:
            return tables.frame([(way.label, why) for way, why in ran.unmeasured.items()], "way", "not measured")
        return table.loc[table["measured"].notna(), ["predicted", "measured", "factor", "faster", "by", "least", "hit rate"]]

    def advice(self) -> pd.DataFrame:
        """What to change and what it brings, predicted, and measured where it was."""
        table = tables.advice_table(self.predictions, self.measured)
        return table.assign(memory=[self.room.needs(each) for each in self.predictions],
                            fits=["yes" if self.room.stays(each) else "no" for each in self.predictions])  # fmt: skip
