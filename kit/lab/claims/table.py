"""The claims of the field reports (data/claims.yaml) and the verdicts that a record may give them."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kit.errors import ReportError, known
from kit.system.files import read_yaml
from kit.system.paths import data_file


class Verdict(NamedTuple):
    """What the word means, its color on pages and in figures (readable on white), its letter where there is no room, and
    whether it decides a claim."""

    meaning: str
    color: str
    letter: str
    decides: bool = True


VERDICTS = {  # the words that a record may carry, the strictest first
    "impossible": Verdict("a stated limit forbids it; the limit is measured or sourced", "#a4332b", "I"),
    "contradicts its own figures": Verdict("arithmetic on the claim's own figures gives another one", "#96306f", "C"),
    "not reproduced": Verdict("measured, counted or read in the source, and it is otherwise", "#a15c00", "N"),
    "undecided here": Verdict("the samples leave it open; the reason says what would decide it", "#6a4fa3", "U", False),
    "reproduced in ratio": Verdict("the effect at another size or on another machine, within a tolerance", "#1d6fa5", "Q"),
    "reproduced": Verdict("measured here within the stated tolerance", "#00795a", "R"),
    "not measurable here": Verdict("something is missing: a GPU, memory, a file", "#6b747d", "M", False),
}
NO_RECORD = "no record"
WORDS = VERDICTS | {NO_RECORD: Verdict("nothing in this run judges it", "#7d6e63", "-", False)}


def counted(count: float, word: str) -> str:
    """``"7 contradict their own figures"``: how many claims have a verdict, in words."""
    return f"{count:.0f} {word if count == 1 else word.replace('contradicts its', 'contradict their')}"


@dataclass(frozen=True)
class Claim:
    """One row of claims.yaml. ``report``: "000" to "004", or what names a public thread. ``before`` and ``after`` are the
    report's figures in ``unit``, where it gives any. ``evidence``: ids of data/evidence.yaml that bear on it. ``parts``: what
    is judged by a rule that no run changes, arguments of kit.lab.claims.judge.judge."""

    id: str
    report: str
    claim: str
    reported: str
    notebook: str
    before: float | None = None
    after: float | None = None
    unit: str = ""
    ratio: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()
    parts: tuple[dict, ...] = ()

    @property
    def source(self) -> str:
        """Who claims it, in words: ``report 001``, or the name of a thread."""
        return f"report {self.report}" if self.report.isdigit() else self.report


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_list(value, of: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


@cache
def load() -> dict[str, Claim]:
    """All claims by id, in the order of the file."""
    return read(data_file("claims.yaml"))


def read(path: Path) -> dict[str, Claim]:
    """The claims of a YAML file by id. ReportError names the file, the row and its key."""
    checks = {
        "before": is_number, "after": is_number, "ratio": lambda value: is_list(value, is_number) and len(value) == 2,
        "evidence": lambda value: is_list(value, lambda name: isinstance(name, str)),
        "parts": lambda value: is_list(value, lambda part: isinstance(part, dict) and {"quantity", "unit"} <= part.keys()),
    }  # fmt: skip
    return rows(path, Claim, "claim", checks)


def get(claim_id: str) -> Claim:
    """The claim of that id; ReportError lists the known ones."""
    return known("data/claims.yaml: claim", claim_id, load(), ReportError)


def rows(path: Path, kind: type, noun: str, checks: dict[str, Callable[[object], bool]]) -> dict:
    """The rows of a YAML file as ``kind``, a dataclass, by id; what ``checks`` does not name must be a string. ReportError
    names the file, the row and its key."""
    checks = {field.name: lambda value: isinstance(value, str) for field in fields(kind)} | checks
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    entries = read_yaml(path)
    if not isinstance(entries, list) or not all(isinstance(row, dict) for row in entries):
        raise ReportError(f"{path}: expected a list of {noun}s, each with the keys {', '.join(checks)}")
    by_id = {}
    for number, row in enumerate(entries, 1):
        wrong = [repr(key) for key, value in row.items() if key not in checks or not checks[key](value)]
        missing = [key for key in needed if key not in row]
        if wrong or missing:
            raise ReportError(f"{path}: {noun} {number}: wrong or unknown: {', '.join(wrong)}; missing: {', '.join(missing)}")
        if row["id"] in by_id:
            raise ReportError(f"{path}: {noun} {number}: the id {row['id']!r} is already used: give every {noun} its own")
        by_id[row["id"]] = kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
    return by_id
