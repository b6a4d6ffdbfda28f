"""What the front page opens with: a token by llama.cpp, by the kit's best way and by the bound, each with its command.

Every number is one measurement: the engines' of ``peers.json``, which ran the same tokens in turn, or notebook 10's ways. A
machine that was busy meanwhile gives no comparison, and the page says so.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kit.lab.claims.gates import NOISE
from kit.lab.claims.records import Record
from kit.lab.engines.table import BUSY_TOLD, COMPARED, EXACT, OURS, PEER
from kit.lab.explaining.answer_table import LIMIT
from kit.lab.findings.offload import OF_RECORD, OFFLOADS, named
from kit.lab.measuring import measurements
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.minutes import Minutes, compared
from kit.lab.measuring.state import BUSY
from kit.lab.predicting.losses import format_kl
from kit.lab.prompts import PROMPT
from kit.lab.report.checklist import command_line
from kit.lab.report.run import Run
from kit.units import format_seconds

MEASURED_IN = ("07_memory_frontier", "09_your_model")
EXPERTS = "10_experts"  # a mixture in a part of the memory that it takes
MINUTES = f"{LIMIT}, these minutes"


@dataclass(frozen=True)
class Bar:
    """One bar: ``told`` in small print; ``kind``: "own", "peer" or "bound"; ``samples``: seconds of a token, one at least."""

    name: str
    told: str
    kind: str
    samples: tuple[float, ...]
    command: str

    @property
    def seconds(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def spread(self) -> str:
        """The least and the most of several samples, in words."""
        if len(self.samples) < 2:
            return ""
        return f"{format_seconds(min(self.samples))} to {format_seconds(max(self.samples))} in {len(self.samples)} samples"


@dataclass(frozen=True)
class Lead:
    """One file: ``bars``, the slowest first; ``busy``: why they are no comparison, else ""; ``notebook``: where it is from."""

    file: str
    bars: tuple[Bar, ...]
    notebook: str
    busy: str = ""
    generated: bool = False

    @property
    def best(self) -> Bar:
        """The fastest way of the kit."""
        return min((bar for bar in self.bars if bar.kind == "own"), key=lambda bar: bar.seconds)

    @property
    def peer(self) -> Bar | None:
        """llama.cpp, where it ran."""
        return next((bar for bar in self.bars if bar.kind == "peer"), None)

    @property
    def bound(self) -> Bar | None:
        """The least that the machine's bandwidth allows, where it is known."""
        return next((bar for bar in self.bars if bar.kind == "bound"), None)

    @property
    def title(self) -> str:
        """The answer in one line; no comparison of a busy machine."""
        told = f"{self.file}: {format_seconds(self.best.seconds)} per token with kit"
        if self.peer and not self.busy:
            told += f", {format_seconds(self.peer.seconds)} with llama.cpp"
        return f"{told}; at least {format_seconds(self.bound.seconds)} on this machine" if self.bound else told

    @property
    def times(self) -> float | None:
        """The speed of the kit's best way over llama.cpp's; None of a busy machine."""
        return self.peer.seconds / self.best.seconds if self.peer and not self.busy else None

    @property
    def compared(self) -> str:
        """The same in words, by the ratios of their rounds: "as fast as" where the interval of these holds 1."""
        if not self.times:
            return ""
        own, peer = self.best.samples, self.peer.samples
        if self.notebook != EXPERTS and len(own) == len(peer) > 1:
            return compared([theirs / ours for ours, theirs in zip(own, peer, strict=True)], "llama.cpp")
        told = f"{self.times:.3g} times as fast as llama.cpp"
        made = "a generated file with random weights" if self.generated else "this file"
        how = f"{len(peer)} token{'s' * (len(peer) > 1)} of llama.cpp, which has its own router and a map of the file"
        return told if self.notebook != EXPERTS else f"{told} on {made} ({how}; kit reads the recorded experts directly)"

    def share(self, bar: Bar) -> float:
        """Of the longest bar."""
        return bar.seconds / max(each.seconds for each in self.bars)

    @property
    def beaten(self) -> str:
        """What is wrong when a way is faster than the bound: that the page contradicts itself; "" where none is. The limit of
        the same minutes bounds each round by itself, so there the medians are compared."""
        best = median if self.bound and self.bound.name == MINUTES else min
        faster = [
            bar for bar in self.bars if self.bound and bar.kind != "bound" and best(bar.samples) * NOISE < self.bound.seconds
        ]
        told = [f"{bar.name}: {format_seconds(best(bar.samples))} per token" for bar in faster]
        return f"{'; '.join(told)} beats the limit of {format_seconds(self.bound.seconds)}: the limit is wrong" if told else ""


def leads(run: Run, rows: list[Record]) -> list[Lead]:
    """The run's file and, where notebook 10 ran, its mixture; of those that have a way of the kit."""
    return [lead for lead in (_of_file(run, rows), _of_mixture(run, rows)) if lead]


def _of_file(run: Run, rows: list[Record]) -> Lead | None:
    peers = measurements.peers(run.folder)
    ran = measurements.engines(peers)
    notebook = peers.get("by") or next((name for name in MEASURED_IN if any(row.notebook == name for row in rows)), "")
    own = [row for row in rows if row.notebook in MEASURED_IN and row.status == "ok" and row.median]
    measured = {name: row.samples for name, row in ran.items()}
    if not OURS.keys() & measured.keys():  # llama.cpp is not installed: the notebook's own
        recorded = {name: next((row for row in own if row.quantity == way.quantity), None) for name, way in OURS.items()}
        measured |= {name: tuple(row.samples) for name, row in recorded.items() if row}
    if not OURS.keys() & measured.keys():
        return None
    model, busy = run.request.model, _busy(ran, [row for row in rows if row.notebook == notebook])
    best = min(OURS.keys() & measured.keys(), key=lambda name: median(measured[name]))
    bars = [Bar(OURS[best].title, _quality(ran, best, model), "own", measured[best],
                generate(run, OURS[best].product.option))]  # fmt: skip
    explain = f"kit explain {shlex.quote(model)}" if model else ""
    if PEER in measured:
        bars.append(Bar(COMPARED[PEER].title, _quality(ran, PEER, model), "peer", measured[PEER], explain))
    if now := in_turn(peers):
        told = f"bytes of a token at {now.read_gbps:.1f} GB/s: the file's pages, read between the runs of these programs"
        bars.append(Bar(MINUTES, told, "bound", (now.least,), explain))
    elif least := [row.lower for row in own if row.quantity == EXACT.quantity and row.lower]:
        bars.append(Bar(LIMIT, "bytes of a token, read once from memory in its best minutes", "bound", (min(least),), explain))
    name = str(model or peers.get("file") or f"the model of the profile {run.request.profile}").rsplit("/", 1)[-1]
    return Lead(name, _slowest_first(bars), notebook, busy, not model)


def in_turn(peers: dict) -> Minutes | None:
    """The limit of the minutes in which a run's engines ran (peers.json); None where the file's pages were not read then."""
    rates = next(filter(None, (measurements.listed(row, "gbps") for row in peers.get("engines", {}).values())), [])
    seconds = {name: row.samples for name, row in measurements.engines(peers).items() if len(row.samples) == len(rates)}
    return Minutes(peers["bytes"], tuple(rates), seconds) if seconds and peers.get("bytes") else None


def _of_mixture(run: Run, rows: list[Record]) -> Lead | None:
    rows = [row for row in rows if row.notebook == EXPERTS]
    own = [row for row in rows if row.quantity in OF_RECORD and row.unit == "s" and row.status == "ok" and row.median]
    ours = [row for row in own if OFFLOADS[OF_RECORD[row.quantity]].holds != "llama.cpp"]
    if not ours:
        return None
    best, command = min(ours, key=lambda row: row.median), command_line(run, EXPERTS)
    bars = [Bar(f"kit, {named(OF_RECORD[best.quantity])}", "", "own", tuple(best.samples), command)]
    bars += [Bar(COMPARED[PEER].title, "", "peer", tuple(row.samples), command) for row in own if row not in ours]
    if best.lower:
        bars.append(Bar("limit of memory and disk", best.lower_source, "bound", (best.lower,), command))
    name = str(best.parameters.get("mixture") or "a mixture of experts that memory does not hold")
    own = bool(run.request.model) and name.startswith(Path(run.request.model).stem)  # else page 10 generated one
    name += f", {limit}" if (limit := best.parameters.get("limit")) else ""
    return Lead(name, _slowest_first(bars), EXPERTS, _busy({}, rows), not own)


def generate(run: Run, options: str = "") -> str:
    """The command that runs the kit's way on the run's model; of a generated model, the one that measures it."""
    if run.request.model:
        return f"kit generate {shlex.quote(run.request.model)} -p '{PROMPT}'{options}"
    return command_line(run, MEASURED_IN[0])


def _busy(ran: dict[str, Reading], rows: list[Record]) -> str:
    """Why the ways are no comparison, by what other processes used meanwhile; "" where they left the cores."""
    others = max((row.others for row in ran.values()), default=0.0)
    if others > BUSY:
        return f"{BUSY_TOLD}: other processes used {others:.1f} cores meanwhile"
    said = next((row.state["busy"] for row in rows if row.state.get("busy")), "")
    return f"{BUSY_TOLD}: {said}" if said else ""


def _quality(ran: dict[str, Reading], name: str, model: str) -> str:
    """What a way loses to float32, with its error; "" of generated weights, which have nothing to lose."""
    row = ran[name].row if name in ran else {}
    kl, error = (row.get(key) for key in ("kl", "kl_error"))
    if not model:
        return ""
    if kl is None:
        return "quality not measured in this run"
    if error is None:
        return "KL to float32 without its error"
    return f"KL to float32 {format_kl(kl, error)} nats per token"


def _slowest_first(bars: list[Bar]) -> tuple[Bar, ...]:
    return tuple(sorted(bars, key=lambda bar: -bar.seconds))
