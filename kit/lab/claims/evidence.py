"""The public record behind the claims (data/evidence.yaml): facts with their figures, where each stands, and how firm it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kit.errors import ReportError, known
from kit.lab.claims import table as claims
from kit.lab.claims.table import Claim, is_list, is_number
from kit.system.paths import data_file

GRADES = {  # how firm a fact is -> what the word means
    "log": "a committed output",
    "code": "follows from the source",
    "doc": "one of their own documents says so",
    "calc": "arithmetic on the former",
    "absence": "searched for in every commit, not found",
    "thread": "said in a public thread",
    "paper": "published",
    "open": "no record shows it",
}


@dataclass(frozen=True)
class Evidence:
    """One fact. ``figure``: its numbers in words; ``value``: the number, or several, in ``unit``, where there is one.
    ``grade``: one of GRADES, or several. ``file``: of the repository at its ``commit``; without one a thread of the repository
    (pull/5, issues/44), a paper's link, or a file of the kit."""

    id: str
    fact: str
    file: str
    grade: str
    figure: str = ""
    value: float | tuple[float, ...] | None = None
    unit: str = ""
    repository: str = ""
    commit: str = ""
    lines: str = ""

    def __post_init__(self):
        wrong = [word for word in self.grade.split(", ") if word not in GRADES]
        if wrong:
            raise ReportError(f"data/evidence.yaml: {self.id}: grade {wrong[0]!r} is not one of {', '.join(GRADES)}")

    @property
    def source(self) -> str:
        """A citation: ``Enreign/woolly@9f209c0, preload_test_results.txt, line 3190``."""
        where = f"{self.repository}{f'@{self.commit}' * bool(self.commit)}" if self.repository else ""
        lines = f"line{'s' * (not self.lines.isdigit())} {self.lines}" if self.lines else ""
        return ", ".join(filter(None, (where, self.file, lines)))

    @property
    def url(self) -> str:
        """A link to the file at its commit, and to its first lines, or to a thread or paper; "" to a file of the kit."""
        if not self.repository:
            return self.file if self.file.startswith("https://") else ""
        if not self.commit:
            return f"https://github.com/{self.repository}/{self.file}"
        start, _, end = self.lines.split(",")[0].partition("-")
        anchor = f"#L{start}{f'-L{end}' * bool(end)}" if start else ""
        return f"https://github.com/{self.repository}/blob/{self.commit}/{self.file}{anchor}"


@cache
def load() -> dict[str, Evidence]:
    """All facts by id, in the order of the file."""
    return read(data_file("evidence.yaml"))


def read(path: Path) -> dict[str, Evidence]:
    """The facts of a YAML file by id. ReportError names the file, the row and its key."""
    checks = {"value": lambda value: is_number(value) or (is_list(value, is_number) and value)}
    return claims.rows(path, Evidence, "fact", checks)


def get(fact_id: str) -> Evidence:
    """The fact of that id; ReportError lists the known ones."""
    return known("data/evidence.yaml: fact", fact_id, load(), ReportError)


def bearing_on(claim: Claim | str) -> list[Evidence]:
    """The facts that a claim names."""
    return [get(name) for name in (claims.get(claim) if isinstance(claim, str) else claim).evidence]


def report_of(claim: Claim) -> Evidence | None:
    """Where the claim's report can be read: a row of its own, or the first fact that the claim names."""
    return load().get(f"report-{claim.report}") or next(iter(bearing_on(claim)), None)


def beside(measured: Mapping[str, object] | Iterable[str]):
    """A DataFrame of facts by id: what the record shows, its figure, what was found here (of a mapping: the value, as it is to
    be printed), grade and source."""
    from kit.lab import tables  # no command needs pandas

    here = dict(measured) if isinstance(measured, Mapping) else dict.fromkeys(measured, "")
    facts = [(get(name), value) for name, value in here.items()]
    rows = [(fact.fact, fact.figure, value, fact.grade, fact.source) for fact, value in facts]
    frame = tables.frame(rows, "the public record", "figure", "here", "grade", "source")
    return frame if any(map(str, here.values())) else frame.drop(columns="here")
