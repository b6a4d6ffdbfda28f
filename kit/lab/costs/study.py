"""A study of one file: everything that kit explain and notebook 09 say about it, gathered once."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import Requests
from kit.errors import KitError
from kit.gguf import cut
from kit.gguf.formats import FORMATS
from kit.gguf.names import layer_of
from kit.gguf.sources import largest_part
from kit.gguf.summary import check_model, summarize
from kit.lab.costs import tables
from kit.lab.costs.divergence import tokens_for
from kit.lab.costs.measured import Cost, Kind, measure_costs
from kit.lab.costs.order import Order, kind_of, order_of
from kit.lab.costs.quality import quality
from kit.lab.costs.uses import Use, assumed, bytes_used, draw, uses_of
from kit.lab.costs.ways import (
    BackingStore,
    Measured,
    Prediction,
    Way,
    faster_than_probed,
    measure,
    measure_apart,
    roofed,
    used_tensors,
)
from kit.lab.disk import read_gbps
from kit.lab.machine import Machine
from kit.system import memory_available, memory_limit, note
from kit.units import format_bytes, format_count, format_seconds, printable

_PRECISIONS = ("f32", "int8 activations"), ("f32", "f16", "bf16", "int8 activations")  # of a large file, of any other
_LARGE = 6e8  # weights that are rounded again for each step of a text: seconds, not minutes, on two cores
_TRIES = 3  # of a measurement that other processes disturb
_MEASURED = 4e9  # bytes of float32 a token: where all layers use more, a sample of them is measured
_SCRATCH = 1 << 30  # bytes that a decode takes beside weights: libraries, activations, buffers
_EACH = 4.0  # seconds that measuring a way should take


@dataclass
class Study:
    """``file``: an open GGUF; ``probe``: measures the machine; ``memory``: bytes that dequantized weights may take; ``tokens``:
    decoded. ``trace``: accesses recorded elsewhere, for the table of policies; the file's own order when None. ``via``: whose
    forward pass, ``skew``: of experts that are drawn, both as in kit.lab.costs.order.order_of.

    Of a file whose layers would take minutes a sample is run and measured, unless ``thorough``; ``cut``: the layers that
    ``file`` was cut to. ``minute``: seconds after which no further way is measured, the compiling of kernels not counted.
    """

    file: object
    probe: Callable[[], Machine]
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
    measured: dict[Way, Measured] = field(default_factory=dict)
    unmeasured: dict[Way, str] = field(default_factory=dict)
    compiled: list[float] = field(default_factory=list)

    def __post_init__(self):
        check_model(self.file)

    def say(self, what: str) -> None:
        """A line of progress on standard error."""
        if self.progress:
            print(f"[{time.perf_counter() - self.began:5.1f} s] {what}", file=sys.stderr, flush=True)

    @cached_property
    def facts(self) -> dict:
        """What the file is: kit.gguf.summary."""
        return summarize(self.file, memory_limit(), memory_available())

    @cached_property
    def machine(self) -> Machine:
        """This machine, measured."""
        if not self.cut:
            self.say("measuring this machine")
        return self.probe()

    @cached_property
    def uses(self) -> list[Use]:
        """What a token uses, by the table of tensors and the metadata."""
        return uses_of(self.file)

    @cached_property
    def layers(self) -> list[int]:
        """The layers that are run and measured: all, or such a sample that a token uses a few GB of float32."""
        each = Counter()
        for use in self.uses:
            each[layer_of(use.name)] += 4 * use.elements * use.share()
        every = sorted(set(each) - {-1})
        if self.thorough or self.cut or not every or every != list(range(len(every))):
            return every
        return cut.sample(self.file, every, _MEASURED, lambda layers: each[-1] + sum(each[layer] for layer in layers))

    @cached_property
    def part(self) -> "Study | None":
        """The study of the sampled layers, with their share of the memory; None where the whole file is measured."""
        if len(self.layers) == len({layer_of(use.name) for use in self.uses} - {-1}):
            return None
        file = cut.cut(self.file, self.layers)
        share = bytes_used(uses_of(file), 4) / bytes_used(self.uses, 4)
        return replace(
            self, file=file, probe=lambda: self.machine, memory=max(1, int(share * self.memory)), tokens=min(self.tokens, 4),
            cut=tuple(self.layers), measured={}, unmeasured={},
        )  # fmt: skip

    @cached_property
    def order(self) -> Order:
        """What a decode of ``tokens`` tokens asks for: recorded, or drawn where only a sample of the layers was run, whose time
        outside uses of weights grows with the layers."""
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
        if self.part is not None:
            return self.part.costs
        names, weights = self.order.names, kit.Weights(self.file)
        self.say(f"measuring the cost of a use of each of {len({kind_of(weights, name) for name in names})} kinds")
        return measure_costs(self.file, names)

    @cached_property
    def accesses(self) -> Requests:
        """The trace to replay: the one from elsewhere, or the file's own order at float32."""
        return self.trace or self.order.requests(kit.Weights(self.file).nbytes)

    @cached_property
    def disk(self) -> BackingStore | None:
        """The disk under the file; None where nothing is read from it once the page cache is warm, or it cannot be measured."""
        if self.file.path is None or self.fits:
            return None
        gbps = read_gbps(largest_part(self.file.path))
        return BackingStore(gbps, memory_available()) if gbps else None

    @cached_property
    def fits(self) -> bool:
        """Whether the file stays in the page cache beside the memory for weights."""
        return sum(use.nbytes for use in self.uses) <= memory_available() - self.memory

    @cached_property
    def _predicted(self) -> list[Prediction]:
        return tables.advice(self.file, self.order, self.costs, self.machine, self.memory, self.disk)

    @property
    def _factor(self) -> float:
        """By which memory was faster than in its probe, by all that was predicted and measured."""
        found = faster_than_probed(self._predicted, self.measured.values())
        return max(found, self.part._factor) if self.part else found

    @property
    def predictions(self) -> list[Prediction]:
        """The reports' cache first, then every other way, the fastest first. No bound exceeds a time of this page."""
        return roofed(self._predicted, factor=self._factor)

    @property
    def read_gbps(self) -> float:
        """The best bandwidth that this machine has shown: in its probe, or in what a way predicts or measures."""
        return self.machine.read_gbps * self._factor

    def holds(self) -> pd.DataFrame:
        """What the weights take, held in several ways: all of them, and what a token reads."""
        return tables.held(self.file, self.uses).drop(columns="bytes")

    def bounds(self) -> pd.DataFrame:
        """The roofline of a token: the least that reading once what it uses takes, by how weights are held."""
        machine = replace(self.machine, read_gbps=self.read_gbps)
        table = tables.token_bounds(self.file, machine, self.order.uses)
        return table[["a token", "least seconds a token", "most tokens a second"]]

    def families(self) -> pd.DataFrame:
        """Where a token's time goes, by family of tensors."""
        return tables.families(self.file, self.order, self.costs)

    def of_a_use(self) -> str:
        """What a weight that is not kept costs at every use, however small it is; "" where no vector is used."""
        cost = {kind: cost.load["float32"] + cost.multiply["float32"] for kind, cost in self.costs.items()}
        tensors, names = used_tensors(self.file, self.order), self.order.tokens[-1]
        vectors = [cost[tensors[name].kind] for name in names if len(tensors[name].kind.shape) == 1]
        if not vectors:
            return ""
        least, uses = min(vectors), len(names)
        return (
            f"What is not kept costs {format_seconds(least)} a use, however small it is (lookup, buffer, spans): "
            f"{format_seconds(uses * least)} for the {uses} uses of a token, and {least * len(vectors) / sum(vectors):.0%} of "
            f"what its {len(vectors)} vectors take."
        )

    def policies(self) -> pd.DataFrame:
        """Hits by policy for the memory given."""
        return tables.policies(self.accesses, self.memory)

    def largest(self) -> str:
        """What the largest weight does to an LRU."""
        name, size = max(self.accesses.objects.items(), key=lambda item: item[1])
        return (
            f"The largest weight, {printable(name)}, is {format_bytes(size)} of {format_bytes(self.accesses.working_set)}: an "
            "LRU just large enough for it throws the others out for it at every token, so there its curve can fall."
        )

    def exactness(self) -> pd.DataFrame:
        """Format by backend on this file's own blocks."""
        return tables.exactness_of(self.file)

    @cached_property
    def quality(self) -> pd.DataFrame | str:
        """What rounding weights or activations does to the answers (kit.lab.costs.quality), or why that cannot be said."""
        weights = self.facts["parameters"]
        if not (tokens := tokens_for(weights, self.thorough)):
            return f"a text through {format_count(weights)} weights takes minutes: `--thorough` takes them"
        self.say(f"measuring what rounding does to the answers, by {tokens:,} tokens of text")
        try:
            return quality(self.file, _PRECISIONS[self.thorough or weights < _LARGE], tokens)
        except KitError as error:
            return str(error)

    def _left(self) -> float:
        """Seconds of the minute that are left; the compiling of kernels does not count."""
        return self.minute + sum(self.compiled) - (time.perf_counter() - self.began)

    def measure_best(self, best: int = 2) -> dict[Way, Measured]:
        """Measure the reports' cache and the ``best`` fastest of the others; again where other processes disturbed it."""
        if self.part is not None:
            self.part.measure_best(best)
            return self.measured
        for prediction in self.predictions[: best + 1]:
            way, free = prediction.way, memory_available()
            if way in self.measured:
                continue
            needed, room = prediction.held + _SCRATCH, free - max(1 << 30, memory_limit() // 20)  # some is the system's
            tokens = max(3, min(self.tokens, 5, int(_EACH / prediction.seconds)))  # of two the median is a mean
            self.say(f"measuring {way.label}: {format_seconds(prediction.seconds)} a token predicted")
            if self._left() < 3 * prediction.seconds:
                found = "was not measured: a minute had passed (`--thorough` takes more)"
            elif needed > room:
                found = f"did not fit: needed {format_bytes(needed)}, {format_bytes(room)} are free"
            else:
                apart = needed > room / 4
                for _ in range(_TRIES):  # again while other processes disturb it and the minute has room for as long a try
                    start = time.perf_counter()
                    if apart:
                        found = measure_apart(way, self.file, self.order, tokens, 1, room, self.cut)
                    else:
                        found = measure(way, self.file, self.order, tokens)
                    took = time.perf_counter() - start
                    if isinstance(found, str) or not found.disturbed or self._left() < 2 * took:
                        break
            (self.unmeasured if isinstance(found, str) else self.measured)[way] = found
        return self.measured

    def checked(self) -> pd.DataFrame:
        """What was measured beside its prediction, of the sampled layers alone where there is a sample."""
        ran = self.part or self
        table = ran.advice()
        if "measured" not in table:
            return tables.frame([(way.label, why) for way, why in ran.unmeasured.items()], "way", "not measured")
        return table.loc[table["measured"].notna(), ["predicted", "measured", "factor", "faster", "by", "least", "hit rate"]]

    def advice(self) -> pd.DataFrame:
        """What to change and what it brings, predicted, and measured where it was."""
        return tables.advice_table(self.predictions, self.measured)


def room_for_weights(file) -> int:
    """The default of --memory: 70 % of what is free beside the largest weight, which a miss dequantizes, and the scratch."""
    largest = max((4 * use.elements // use.of for use in uses_of(file)), default=0)
    return max(1 << 20, int(0.7 * (memory_available() - largest - _SCRATCH)))
