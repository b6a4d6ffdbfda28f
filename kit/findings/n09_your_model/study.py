"""A study of one file: everything that kit explain and notebook 09 say about it, gathered once."""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

import kit
from kit.cache import oracle
from kit.cache.traces import Requests, requests
from kit.costs.measured import Cost, Kind, measure_costs
from kit.costs.order import Order, order_of
from kit.costs.quality import PRECISIONS, quality
from kit.costs.ways import Measured, Prediction, Way, measure, roofed
from kit.errors import KitError, TraceError
from kit.findings.n00_start_here.overview import token_bounds
from kit.findings.n09_your_model import tables
from kit.gguf.summary import summarize
from kit.lab.machine import memory_available, memory_limit
from kit.units import format_bytes, format_count, format_seconds, printable

_PRECISIONS = ("f32", "f16", "bf16", "int8 activations")  # of the ways that advice compares
_QUALITY_WORK = 2e10  # weights times tokens: seconds, not minutes, on two cores
_TRIES = 3  # of a measurement that other processes disturb


@dataclass
class Study:
    """``file``: an open GGUF; ``machine``: measured; ``memory``: bytes that dequantized weights may take; ``tokens`` decoded.
    ``trace``: accesses recorded elsewhere, for the table of policies; the file's own order when None. ``via``: whose forward
    pass, ``skew``: of experts that are drawn, both as in kit.costs.order.order_of."""

    file: object
    machine: object
    memory: int
    tokens: int = 16
    trace: Requests | None = None
    progress: bool = False
    via: str = ""
    skew: float = 0.0
    measured: dict[Way, Measured] = field(default_factory=dict)

    @cached_property
    def facts(self) -> dict:
        """What the file is: kit.gguf.summary."""
        return summarize(self.file, memory_limit(), memory_available())

    @cached_property
    def order(self) -> Order:
        """What a decode of ``tokens`` tokens asks for."""
        return order_of(self.file, self.tokens, self.via, self.skew)

    @cached_property
    def costs(self) -> dict[Kind, Cost]:
        """What one use of each kind of tensor costs on this machine."""
        return measure_costs(self.file, self.order.names, progress=self.progress)

    @cached_property
    def accesses(self) -> Requests:
        """The trace to replay: the one from elsewhere, or the file's own order at float32."""
        return self.trace or self.order.requests(kit.Weights(self.file).nbytes)

    @cached_property
    def _predicted(self) -> list[Prediction]:
        return tables.advice(self.file, self.order, self.costs, self.machine, self.memory)

    @property
    def predictions(self) -> list[Prediction]:
        """The reports' cache first, then every other way, the fastest first. No bound exceeds a time of this page."""
        return roofed(self._predicted, self.measured.values())[0]

    @property
    def read_gbps(self) -> float:
        """The best bandwidth that this machine has shown: in its probe, or in what a way predicts or measures."""
        return self.machine.read_gbps * roofed(self._predicted, self.measured.values())[1]

    def bounds(self) -> pd.DataFrame:
        """The roofline of a token: the least that reading once what it uses takes, by how weights are held."""
        machine = replace(self.machine, read_gbps=self.read_gbps)
        table = token_bounds(self.file, machine, self.order.uses).drop(columns=["bytes"])
        return table.rename(columns={"fits in memory": "fits", "most tokens a second": "most tok/s"})

    def families(self) -> pd.DataFrame:
        """Where a token's time goes, by family of tensors."""
        return tables.families(self.file, self.order, self.costs)

    def policies(self) -> pd.DataFrame:
        """Hits by policy for the memory given."""
        return tables.policies(self.accesses, self.memory)

    def largest(self) -> str:
        """What the largest weight does to an LRU."""
        name, size = max(self.accesses.objects.items(), key=lambda item: item[1])
        return (
            f"The largest weight, {printable(name)}, is {format_bytes(size)} of {format_bytes(self.accesses.working_set)}. A "
            "smaller cache lets it pass and keeps others; an LRU just large enough takes it in at every token and throws the "
            "others out for it, so there its curve can fall."
        )

    def exactness(self) -> pd.DataFrame:
        """Format by backend on this file's own blocks."""
        return tables.exactness_of(self.file)

    @cached_property
    def quality(self) -> pd.DataFrame | str:
        """What rounding weights or activations does to the answers (kit.costs.quality), or why that cannot be said."""
        tokens = min(64, max(16, int(_QUALITY_WORK / self.facts["parameters"])))
        try:
            return quality(self.file, _PRECISIONS, tokens)
        except KitError as error:
            return str(error)

    def measure_best(self, best: int = 2) -> dict[Way, Measured]:
        """Measure the reports' cache and the ``best`` fastest of the others; again where other processes disturbed it."""
        for prediction in self.predictions[: best + 1]:
            self.measured[prediction.way] = measure(prediction.way, self.file, self.order, min(self.tokens, 5), _TRIES)
        return self.measured

    def advice(self) -> pd.DataFrame:
        """What to change and what it brings, predicted, and measured where it was."""
        return tables.advice_table(self.predictions, self.measured)

    # --- sentences ---------------------------------------------------------------------------------------------------

    def what(self) -> str:
        """What the file is, in a sentence or two."""
        facts = self.facts
        types = ", ".join(f"{row['qtype']} {row['bytes'] / facts['working_sets']['blocks']['bytes']:.0%}"
                          for row in facts["types"][:3])  # fmt: skip
        blocks, decoded = (format_bytes(facts["working_sets"][name]["bytes"]) for name in ("blocks", "float32"))
        return (
            f"{Path(facts['path']).name}: architecture {facts['architecture']}, {format_count(facts['parameters'])} "
            f"parameters in {facts['tensors']} tensors and {facts['layers']} layers; {blocks} of blocks ({types}), "
            f"{decoded} once dequantized to float32."
        )

    def how(self) -> str:
        """Whether the file was run or only its tensors were, and what was left out."""
        if not self.order.reason:
            whose = " through transformers (kit.hf): the kit's own pass was not used" * (self.order.via == "transformers")
            return f"The order of weight accesses was recorded from a decode of {len(self.order.tokens)} tokens{whose}."
        text = (
            f"No token was generated ({self.order.reason}): a token stands for every tensor used once, in the order of their "
            "roles, and what is measured below is that walk."
        )
        if self.order.assumed:
            how = f"with popularity falling as rank^-{self.skew:g}" if self.skew else "evenly"
            text += f" Assumed from the metadata: {self.order.assumed}; experts are drawn {how}."
        if self.order.left_out:
            text += f" Left out, for their format is not known: {len(self.order.left_out)} of {self.facts['tensors']} tensors."
        return text

    def advise(self) -> str:
        """What to do, in sentences, with what was measured."""
        now, *others = self.predictions
        text = [f"Now, with an LRU of {format_bytes(self.memory)} in float32: {self._speed(now)}."]
        for found in others[:2]:
            label, rounded = found.way.label, PRECISIONS[found.way.precision].told
            text.append(
                f"{label[0].upper()}{label[1:]}: {self._speed(found)}; {rounded}; {format_bytes(found.held)} held and "
                f"{format_bytes(found.pages)} of the file in the page cache."
            )
        if now.held > self.memory:
            text.append(
                f"The LRU keeps {format_bytes(self.memory)} at most; the {format_bytes(now.held)} held count the largest "
                "weight that misses, dequantized for its use, beside it."
            )
        return " ".join(text)

    def _speed(self, found: Prediction) -> str:
        text = f"{format_seconds(found.seconds)} a token predicted"
        if real := self.measured.get(found.way):
            text += f", {format_seconds(real.seconds)} measured"
            if now := self.measured.get(self.predictions[0].way):
                text += f" ({now.seconds / real.seconds:.1f}x)" * (real is not now)
            text += ", while other processes used the cores" * real.disturbed
        return text

    def to_dict(self) -> dict:
        """Everything as plain data, for JSON."""
        frames = {
            "roofline": self.bounds(), "families": self.families(), "policies": self.policies(),
            "exactness": self.exactness(), "advice": self.advice(),
        }  # fmt: skip
        facts = {key: value for key, value in self.facts.items() if key not in ("metadata", "tensor_table")}
        return {
            "file": facts,
            "machine": {key: value for key, value in asdict(self.machine).items() if key not in ("samples", "methods")},
            "memory_bytes": self.memory,
            "runs": not self.order.reason,
            "reason": self.order.reason,
            "left_out": list(self.order.left_out),
            "seconds_a_token_from_blocks": list(self.order.seconds),
            "quality": [] if isinstance(self.quality, str) else self.quality.reset_index().to_dict("records"),
            "no_quality": self.quality if isinstance(self.quality, str) else "",
            **{name: frame.reset_index().to_dict("records") for name, frame in frames.items()},
            "measured": [
                {"way": way.label, "seconds": list(found.samples), "hit_rate": found.hit_rate, "resident": found.resident}
                for way, found in self.measured.items()
            ],
            "says": [self.what(), self.how(), self.advise()],
        }


def read_trace(path: str | Path) -> Requests:
    """A trace of weight accesses recorded elsewhere: CSV with the columns tensor and nbytes (token), or oracleGeneral."""
    path = Path(path)
    if path.suffix.lower() != ".csv":
        return oracle.read(path)
    try:
        frame = pd.read_csv(path, dtype={"tensor": str, "nbytes": np.uint64}, keep_default_na=False)
    except (OSError, ValueError, OverflowError) as error:
        message = f"cannot be read as CSV ({str(error).strip()}); it needs the columns tensor and nbytes, whole numbers"
        raise TraceError(f"{path}: {message}") from None
    found = requests(frame)
    if not len(found):
        raise TraceError(f"{path}: holds no access; a row needs a tensor and its nbytes")
    return found
