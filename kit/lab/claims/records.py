"""Records: one JSON line a measurement, one schema for all notebooks; verdicts and reports read only these."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from kit.errors import ReportError
from kit.lab.claims.table import VERDICTS
from kit.units import finite, from_json

SCHEMA_VERSION = 2
WARNED = "warned"  # a gate of a notebook that did not hold; its reason says which
STATUSES = ("ok", "failed", "skipped", WARNED)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured (or failed, or skipped) quantity.

    ``samples`` are raw, in ``unit``; ``lower`` and ``upper`` bound the quantity, each with its source in words;
    ``accept`` is the region (low, high) in which the claim holds, ``tolerance`` says it in words, ``interval`` is what the
    samples leave open, ``how`` one of kit.lab.claims.judge.HOW, ``cure`` what cured it here when the report names another cure.
    ``state`` is the machine's, around the measurement; ``machine_id`` is its hardware.
    ``verdict`` is one of kit.lab.claims.table.VERDICTS, empty for a plain measurement.
    """

    run_id: str = ""
    notebook: str = ""
    quantity: str
    unit: str
    claim: str = ""
    parameters: dict = field(default_factory=dict)
    machine_id: str = ""
    commit: str = ""
    kit_version: str = ""
    samples: list[float] = field(default_factory=list)
    median: float | None = None
    lower: float | None = None
    lower_source: str = ""
    upper: float | None = None
    upper_source: str = ""
    tolerance: str = ""
    interval: list[float] | None = None
    accept: list[float | None] | None = None
    how: str = "measured"
    cure: str = ""
    state: dict = field(default_factory=dict)
    verdict: str = ""
    reason: str = ""
    status: str = "ok"
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self):
        if self.verdict and self.verdict not in VERDICTS:
            raise ReportError(f"verdict {self.verdict!r} is not one of {', '.join(VERDICTS)}")
        if self.status not in STATUSES:
            raise ReportError(f"status {self.status!r} is not one of {', '.join(STATUSES)}")
        if self.status == "ok" and not self.samples:
            raise ReportError(f"record {self.quantity!r} has no samples: only a failed or skipped one may have none")
        if not self.reason and (self.verdict or self.status != "ok"):
            raise ReportError(f"record {self.quantity!r} needs a reason for its verdict")
        if self.median is None and self.samples:
            object.__setattr__(self, "median", float(np.median(self.samples)))

    def to_json(self) -> str:
        """One line of JSON; infinite and NaN numbers become null."""
        return json.dumps(finite(asdict(self)), ensure_ascii=False)


def append(path: Path, record: Record) -> None:
    """Add one record to a .jsonl file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(record.to_json() + "\n")


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of .jsonl files, in order; ReportError names the file and line of a broken one."""
    known = {entry.name for entry in fields(Record)}
    records = []
    for path in paths:
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            try:
                row = from_json(line)
                records.append(Record(**{key: value for key, value in row.items() if key in known}))
            except (ValueError, TypeError, AttributeError) as error:
                raise ReportError(f"{path}, line {number}: not a record ({error})") from None
    return records


def of_run(folder: Path, notebook: str = "*") -> list[Record]:
    """The records in the folder of a run, of one notebook or of all."""
    return read(sorted(Path(folder).glob(f"{notebook}.jsonl")))
