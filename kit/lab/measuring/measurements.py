"""The store of measurements: one key, one value, wherever it is shown.

A key is what was measured (``way``), of which file (a digest), on which machine (an id) and with which settings (code, cores,
vectors). `kit explain` and `kit generate` share a store in the models folder; a run of notebooks has one of its own, and adds
to the shared one. Each line of the file is one Reading as JSON; lines are only ever added.

Three other files of a run hold measured numbers, because they hold what is no reading:

- records (kit.lab.claims.records, ``<notebook>.jsonl``): what a page states, with verdict, bound and reason. They are published
  and compared between machines, so their key has the run's parameters in place of a digest of the file.
- ``peers.json`` (explaining.peers): the engines' table, which README and the index draw of a committed run. Its key is this
  store's, and its seconds per token and divergences are in this store as well.
- kept values (measuring.kept): any object of one command, so that a page that is rendered again shows the same ones. They
  are deleted when the command ends. Their key is the name of the function with all its arguments.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kit.gguf.metadata import MetadataArray
from kit.lab.measuring import sound
from kit.lab.measuring.conditions import settings as settings
from kit.lab.measuring.machine import machine_id
from kit.lab.measuring.measure import interval_of
from kit.lab.measuring.state import BUSY, NEAR
from kit.system.paths import measurements_folder
from kit.units import format_quantity, from_json

NAME = "measurements.ndjson"  # not .jsonl, which are the records of notebooks
PEERS = "peers.json"
READ = "reading memory that kit made, more than the caches hold"  # GB/s: the way of a probe of the machine, of no file
QUALITY = "quality, "  # nats from float32: the ways of kit.lab.predicting.quality begin so, and end with what was rounded
_SAMPLE = 4096  # bytes of each end of a tensor that are part of a file's digest
USE = "one use: "  # s: the ways of predicting.measured begin so; of two that are subtracted 0 may be left
_RATES = ("s", "GB/s")  # units of which no value is 0


@dataclass(frozen=True)
class Reading:
    """``way``, ``file``, ``machine``, ``settings``, ``unit``: the key. ``samples``: of a token, where the unit is "s".
    ``others``: cores that other processes used meanwhile. ``by``: the command or page that measured; ``at``: when, ISO 8601.
    ``row``: what was measured together with it, by name. ``result``: what this process computed meanwhile, to compare ways; a
    store does not keep it."""

    way: str
    file: str
    samples: tuple[float, ...]
    unit: str = "s"
    settings: str = ""
    others: float = 0.0
    by: str = ""
    row: dict[str, float] = field(default_factory=dict)
    machine: str = field(default_factory=machine_id)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    result: object = field(default=None, repr=False, compare=False)
    how = "measured"  # a Prediction (predicting.ways) is "predicted"

    def __str__(self):
        return f"{format_quantity(self.median, self.unit)} ({self.how})"

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What a value is of: equal keys should have equal values."""
        return self.way, self.file, self.machine, self.settings, self.unit

    @property
    def busy(self) -> bool:
        """Whether other processes disturbed it."""
        return self.others > BUSY

    @property
    def median(self) -> float:
        """The value."""
        return float(np.median(self.samples))

    @property
    def seconds(self) -> float:
        """The value of a way: seconds of a token."""
        return self.median

    @property
    def spread(self) -> tuple[float, float]:
        """The 95 % interval of the value. That of three samples is wide, and their range would hold the median in 75 %."""
        return interval_of(self.samples)

    @property
    def told(self) -> str:
        """The value with its spread: ``46.8 ms (46.1 to 47.9)``."""
        value, unit = format_quantity(self.median, self.unit), self.unit
        if len(self.samples) < 2:
            return f"{value} (measured once)"
        return f"{value} ({' to '.join(format_quantity(end, unit) for end in self.spread)})"

    def disagrees(self, other: "Reading") -> bool:
        """Whether two quiet values of one key differ by more than their spreads, and by more than NEAR."""
        if self.key != other.key or self.busy or other.busy:
            return False
        (low, high), (other_low, other_high) = interval_of(self.samples), interval_of(other.samples)
        return (low > other_high or other_low > high) and not 1 / NEAR < self.median / other.median < NEAR


class Readings:
    """Measurements in the file ``path``; a store that is missing is empty, and one that cannot be written forgets."""

    def __init__(self, path: Path):
        self.path = Path(path)

    def __iter__(self) -> Iterator[Reading]:
        """Every measurement, the oldest first; what is none is left out (``left_out``)."""
        return (row for row in self._rows() if row)

    @property
    def left_out(self) -> int:
        """Lines that are no measurement: of another version, of a crash, or edited."""
        return sum(row is None for row in self._rows())

    def _rows(self) -> Iterator[Reading | None]:
        """A Reading of each line, None for one that is none: line by line, so that one bad byte costs one line."""
        data = b""
        with suppress(OSError):
            data = self.path.read_bytes() if self.path.is_file() else b""  # a pipe has no end
        for line in data.split(b"\n"):
            if line.strip():
                try:
                    yield _read(line)
                except ValueError:
                    yield None

    def add(self, reading: Reading) -> Reading:
        """Append it, in one write, so that two processes may; returns it. It begins a line of its own after one that a crash
        tore."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not self.path.is_file():
                return reading
            with self.path.open("a+b", buffering=0) as out:
                size = out.seek(0, os.SEEK_END)
                out.seek(max(0, size - 1))
                torn = size and out.read(1) != b"\n"
                row = {name: value for name, value in vars(reading).items() if name != "result"}
                out.write(b"\n" * bool(torn) + json.dumps(row).encode() + b"\n")
        return reading

    def known(self, way: str, file: str, key: str | None = None, unit: str = "s", busy: bool = False) -> Reading | None:
        """The latest value of a way on this machine that no other process disturbed; ``busy``: else the latest at all. ``key``:
        the settings, None: those of now."""
        asked = way, file, machine_id(), settings() if key is None else key, unit
        rows = [row for row in self if row.key == asked and row.samples]
        quiet = [row for row in rows if not row.busy]
        return (quiet or rows * busy or [None])[-1]

    def best(self, way: str, unit: str, file: str = "", machine: str = "") -> Reading | None:
        """The quiet reading of a ``machine`` (empty: this one) with the largest sample, whatever its settings: of a bandwidth,
        the limit."""
        rows = [row for row in self if (row.way, row.unit, row.file, row.machine) == (way, unit, file, machine or machine_id())]
        return max((row for row in rows if row.samples and not row.busy), key=lambda row: max(row.samples), default=None)


def shared() -> Readings:
    """The store of this user's commands."""
    return Readings(measurements_folder() / NAME)


def of_run(folder: Path) -> Readings:
    """The store of a run of notebooks."""
    return Readings(Path(folder) / NAME)


def peers(folder: Path) -> dict:
    """The engines' table of a run and its key; {} where the run has none, or its file is damaged."""
    told = sound.read_json(Path(folder) / PEERS)
    engines = told.get("engines") if isinstance(told, dict) else None
    rows = engines.values() if isinstance(engines, dict) else [None]
    return {"by": "", **told} if all(isinstance(row, dict) and _row_of_peers(row) for row in rows) else {}


def _row_of_peers(row: dict) -> bool:
    """Whether an engine's numbers are numbers; NaN is what an engine that could not run has."""
    lists = [row.get(name) for name in ("samples", "gbps")]
    numbers = [value for name, value in row.items() if name not in ("reason", "samples", "gbps", "together")]
    sampled = all(sound.number(each) and each > 0 for some in lists if isinstance(some, list) for each in some)
    return sampled and all(value is None or type(value) in (int, float) for value in numbers)


def engines(told: dict) -> dict[str, Reading]:
    """What ran of ``peers``, in seconds per token, by engine; ``row``: its other numbers, as far as they are known."""
    key, found = {name: told[name] for name in ("machine", "settings") if name in told}, {}
    for name, row in told.get("engines", {}).items():
        speeds = listed(row, "samples") or [row.get("speed") or 0]
        if min(speeds) > 0:  # NaN: it could not run
            samples = tuple(1 / speed for speed in speeds)
            numbers = {each: value for each, value in row.items() if sound.number(value)}
            found[name] = Reading(
                name, told.get("digest", ""), samples, others=row.get("others") or 0.0, by=PEERS, row=numbers, **key
            )
    return found


def listed(row: dict, name: str) -> list[float]:
    """Samples of a row of ``peers``; [] where it has none, or NaN in their place."""
    return row[name] if isinstance(row.get(name), list) else []


def note(store: Readings, reading: Reading) -> Reading:
    """Add what was measured, with the settings of now, to a store and to the shared one; the reading."""
    reading = replace(reading, settings=settings())
    for each in {each.path: each for each in (store, shared())}.values():
        each.add(reading)
    return reading


def once(
    store: Readings, way: str, file: str, measure: Callable[[], Reading], by: str, busy: bool = False, again: bool = False
) -> Reading:
    """The value that ``store`` has of a way, with the settings of now; else ``measure()``, which is noted as this way's of
    this file. ``busy``: a value that was disturbed is taken as well. ``again``: measured in any case."""
    known = None if again else store.known(way, file, busy=busy)
    return known or note(store, replace(measure(), way=way, file=file, by=by))


def _read(line: bytes) -> Reading:
    """The Reading of a line, whose numbers can be what it says; ValueError otherwise. This machine and this moment, which a new
    one has, are not taken for what a line does not say."""
    told = from_json(line.decode("utf-8"))
    row = sound.row_of(Reading, {"machine": None, "at": None} | told if isinstance(told, dict) else told)
    datetime.fromisoformat(row.at)
    if not row.samples or row.others < 0 or _impossible(row):
        raise ValueError(f"{row.way}: samples {row.samples}")
    return row


def _impossible(row: Reading) -> bool:
    """Whether a sample cannot be of its unit: a time or a bandwidth is above 0, and the further time of a use at least 0."""
    least = min(row.samples)
    return row.unit in _RATES and (least < 0 or (least == 0 and not row.way.startswith(USE)))


def digest_of(file) -> str:
    """A digest of an open file by its metadata, its byte order, its table of tensors and both ends of each: milliseconds,
    whatever its size. The metadata says how many experts a token uses, among others."""
    digest = hashlib.sha256(repr((file.architecture, getattr(file, "byteorder", ""))).encode())
    for key, value in sorted(getattr(file, "metadata", {}).items()):
        digest.update(repr((key, value)).encode() + (value.raw() if isinstance(value, MetadataArray) else b""))
    for name, info in file.tensors.items():
        data = np.ascontiguousarray(file.blocks(name)).reshape(-1) if info.is_known else np.empty(0, np.uint8)
        digest.update(repr((name, info.qtype, info.shape)).encode())
        digest.update(data[:_SAMPLE].tobytes() + data[-_SAMPLE:].tobytes())
    return digest.hexdigest()[:16]
