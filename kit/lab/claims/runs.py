"""Several runs: the verdicts of each beside each other, the pooled verdict, and what runs of one machine differ by."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kit.errors import ReportError, library
from kit.lab.claims import book, records
from kit.lab.claims.book import Entry, strictest
from kit.lab.claims.judge import pooled
from kit.lab.claims.records import Record
from kit.lab.claims.table import NO_RECORD, WORDS
from kit.lab.measuring import drift

SETTINGS, ALIKE = ("machine", "profile", "model", "device"), ("same", "judged in none")  # ALIKE: states without news


@dataclass(frozen=True)
class ComparedClaim:
    """One claim, or one part of it (``quantity``): a verdict a run, and one from the samples of all runs."""

    claim: str
    quantity: str
    verdicts: tuple[str, ...]
    pooled: str
    reason: str = ""

    @property
    def flips(self) -> bool:
        """Whether two runs decided it, and not alike. Undecided, not measurable and not there contradict nothing."""
        return len({word for word in self.verdicts if WORDS[word].decides}) > 1

    @property
    def differs(self) -> bool:
        """Whether the runs do not all say the same."""
        return len(set(self.verdicts)) > 1

    @property
    def state(self) -> str:
        """``flips``, ``judged in none``, ``open`` (undecided in a run and decided in another), ``differs`` in what was there,
        or ``same``."""
        if self.flips or set(self.verdicts) == {NO_RECORD}:
            return "flips" if self.flips else "judged in none"
        decides = {WORDS[word].decides for word in self.verdicts if word != NO_RECORD}
        return "open" if len(decides) > 1 else "differs" if self.differs else "same"


def compare(folders: Sequence[Path]) -> list[ComparedClaim]:
    """Every claim over runs of one experiment (machine, profile, model and device), each followed by its parts if it has
    several. Of runs of several models only the parts that no model changes (``several_models``). ReportError: fewer than two
    runs, a folder without verdicts, two experiments, or no notebook in common."""
    if len({Path(folder).resolve() for folder in folders}) < 2:
        raise ReportError("one run cannot be compared: name two or more")
    books = [book.read(folder) for folder in folders]
    if several_models(folders, books):
        _one_experiment(folders, books, [name for name in SETTINGS if name != "model"])
        computed = lambda entry: tuple(part for part in entry.parts if part.record.how != "measured")  # noqa: E731
        books = [[replace(entry, parts=computed(entry)) for entry in one] for one in books]
    else:
        _one_experiment(folders, books, SETTINGS)
    if not set.intersection(*({part.record.notebook for entry in one for part in entry.parts} for one in books)):
        raise ReportError(
            "these runs have no notebook in common, so no verdict can be compared: name runs of the same notebooks"
        )
    return [row for entries in zip(*books, strict=True) for row in _rows(entries)]


def several_models(folders: Sequence[Path], books: Sequence[list[Entry]] | None = None) -> bool:
    """Whether runs have different models: then only what no model changes is compared, what was counted, computed or read."""
    books = books or [book.read(folder) for folder in folders]
    return len({_setting(folder, one)["model"] for folder, one in zip(folders, books, strict=True)}) > 1


def machine_rows(folders: Sequence[Path]) -> tuple[list[str], list[ComparedClaim]]:
    """(machine ids, a row a claim with the pooled verdict of each machine). ReportError when the runs are of one machine, or of
    several profiles, models or devices."""
    books = [book.read(folder) for folder in folders]
    settings = _one_experiment(folders, books, SETTINGS[1:])
    by_name = defaultdict(list)
    for setting, one in zip(settings, books, strict=True):
        by_name[setting["machine"]].append(one)
    if len(by_name) < 2:
        raise ReportError(f"these runs are all of one machine, {', '.join(by_name)}: leave out --across")
    columns = [[_rows(entries)[0] for entries in zip(*books, strict=True)] for books in by_name.values()]
    words = [(rows[0].claim, tuple(row.pooled for row in rows)) for rows in zip(*columns, strict=True)]
    rows = [ComparedClaim(claim, "", each, strictest(set(each) - {NO_RECORD})) for claim, each in words]
    return [f"{name} ({len(books)})" for name, books in by_name.items()], rows


def _rows(entries: Sequence[Entry]) -> list[ComparedClaim]:
    """The claim's row, then its parts'."""
    claim, parts = entries[0].claim.id, [_by_quantity(entry) for entry in entries]
    claims = []
    for quantity in dict.fromkeys(quantity for one in parts for quantity in one):
        held = [one.get(quantity, []) for one in parts]
        words = tuple(strictest(record.verdict for record in rows) for rows in held)
        claims.append(ComparedClaim(claim, quantity, words, *pooled([record for rows in held for record in rows])))
    whole = ComparedClaim(claim, "", tuple(entry.verdict for entry in entries), strictest(part.pooled for part in claims),
                claims[0].reason if len(claims) == 1 else "")  # fmt: skip
    return [whole, *claims] if len(claims) > 1 else [whole]


def _by_quantity(entry: Entry) -> dict[str, list[Record]]:
    """Quantity and device of each part -> its records."""
    by_quantity = defaultdict(list)
    for part in entry.parts:
        device = part.record.parameters.get("device", "cpu")
        by_quantity[part.record.quantity + f" ({device})" * (device != "cpu")].append(part.record)
    return by_quantity


def _one_experiment(folders: Sequence[Path], books: Sequence[list[Entry]], names: Iterable[str]) -> list[dict[str, str]]:
    settings = [_setting(folder, one) for folder, one in zip(folders, books, strict=True)]
    for name in names:
        values = [setting[name] for setting in settings]
        if len(set(values)) > 1:
            raise ReportError(f"these runs differ in their {name}: {', '.join(map(repr, dict.fromkeys(values)))}")
    return settings


def machine_of(folder: Path) -> str:
    """The id of the machine that a run is of."""
    return _setting(folder, book.read(folder))["machine"]


def _setting(folder: Path, entries: Sequence[Entry]) -> dict[str, str]:
    rows = [part.record for entry in entries for part in entry.parts]
    if not rows:
        raise ReportError(f"{folder} holds no verdicts: name the folder of a run")
    given = rows[0].parameters
    devices = {row.parameters.get("device", "cpu") for row in rows}
    model, device = str(given.get("model", "")).rsplit("/", 1)[-1], " and ".join(sorted(devices))
    values = rows[0].machine_id, given.get("profile", ""), model, device
    return dict(zip(SETTINGS, map(str, values), strict=True))


# --- quantity by quantity ---------------------------------------------------------------------------------------------


def aligned(columns: Sequence[Iterable[Record]], settings: bool = True) -> list[list[Record | None]]:
    """Records of several runs by what they measure, a column a run: of one notebook, claim, quantity and unit, and with
    ``settings`` of the same parameters (of a model file only its name counts). Several that agree pair in their order."""
    by_row = defaultdict(lambda: [None] * len(columns))
    for number, rows in enumerate(columns):
        seen = Counter()
        for row in rows:
            given = {"device": "cpu"} | row.parameters | {"model": str(row.parameters.get("model", "")).rsplit("/", 1)[-1]}
            same = json.dumps(given, sort_keys=True, default=str) if settings else ""
            seen[key := (row.notebook, row.claim, row.quantity, row.unit, same)] += 1
            by_row[*key, seen[key]][number] = row
    return list(by_row.values())


STATES = {  # in the order of a report
    "changed": "the interval of the difference of medians excludes 0",
    "too few samples": "the medians differ, and so few samples could differ by chance",
    "only in A": "B has no such record",
    "only in B": "A has no such record",
    "same": "equal, or the interval of the difference includes 0",
}


CHANGE = "notebook claim quantity unit state a b ratio low high verdict_a verdict_b matters".split()


def changes(a: Iterable[Record], b: Iterable[Record], confidence=0.99, resamples=4000, seed=0):
    """A DataFrame with the columns CHANGE, a row a quantity of two runs, first those that matter: changed beyond the noise, or
    judged otherwise. ``low`` and ``high`` bound B's median minus A's, in ``unit``; what a run has not is None.

    Records pair as ``aligned`` says, with their parameters.
    """
    generator = np.random.default_rng(seed)
    rows = [_change(one, other, confidence, resamples, generator) for one, other in aligned([a, b])]
    rows.sort(key=lambda row: (not row["matters"], list(STATES).index(row["state"])))
    return library("pandas").DataFrame(rows, columns=CHANGE, dtype=object)


def _change(a: Record | None, b: Record | None, confidence: float, resamples: int, generator) -> dict:
    row = a or b
    interval = a and b and median_difference(a.samples, b.samples, confidence, resamples, generator)
    if a is None or b is None:
        state = "only in B" if a is None else "only in A"
    elif interval is None or a.median == b.median:
        state = "same" if bool(a.samples) == bool(b.samples) else "changed"
    elif 2 / math.comb(len(a.samples) + len(b.samples), len(a.samples)) > 1 - confidence + 1e-12:
        state = "too few samples"  # by chance alone they separate in 2 of (a + b over a) orders
    else:
        state = "same" if interval[0] <= 0 <= interval[1] else "changed"
    low, high = interval or (None, None)
    ratio = b.median / a.median if a and b and a.median and b.median else None
    verdicts, medians = [one.verdict if one else "" for one in (a, b)], [one and one.median for one in (a, b)]
    matters = state == "changed" or bool(a and b and a.verdict != b.verdict)
    values = row.notebook, row.claim, row.quantity, row.unit, state, *medians, ratio, low, high, *verdicts, matters
    return dict(zip(CHANGE, values, strict=True))


def median_difference(a, b, confidence: float, resamples: int, generator) -> tuple[float, float] | None:
    """Percentile bootstrap interval of median(b) - median(a); None when either has no samples (Efron 1979)."""
    if not len(a) or not len(b):
        return None
    medians = [np.median(generator.choice(np.asarray(side, float), (resamples, len(side))), axis=1) for side in (a, b)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(medians[1] - medians[0], (tail, 100 - tail))
    return float(low), float(high)


# --- what runs differ by ---------------------------------------------------------------------------------------------


def spreads(folders: Sequence[Path]) -> dict[str, dict]:
    """Kind of quantity (measuring.drift) -> ``factor`` (nine of ten medians stay within it of the middle of the runs, on both
    sides), ``most`` (all do), how many ``quantities`` and ``runs``. Ratios count where a verdict rests on them."""
    ratios = defaultdict(list)
    for of_runs in aligned([filter(_drifts, records.of_run(folder)) for folder in folders], settings=False):
        medians = [row.median for row in of_runs if row]
        if len(medians) > 1:
            kind = drift.kind_of_unit(next(filter(None, of_runs)).unit)
            ratios[kind].append(np.sqrt(max(medians) / min(medians)))
    return {
        kind: {"factor": round(float(np.quantile(ratios[kind], 0.9)), 2), "most": round(float(max(ratios[kind])), 2),
               "quantities": len(ratios[kind]), "runs": len(folders)}
        for kind in drift.KINDS if ratios[kind]
    }  # fmt: skip


def _drifts(row: Record) -> bool:
    kind = drift.kind_of_unit(row.unit)
    timed = kind and row.how == "measured" and row.status == "ok" and row.median and row.median > 0
    return bool(timed and (row.verdict or kind != "ratio"))


def keep(path: Path, folders: Sequence[Path]) -> dict[str, dict]:
    """Replace the rows of the runs' machine in data/drift.yaml by ``spreads(folders)``; the comment that opens the file and the
    rows of other machines stay."""
    spread = spreads(folders)
    missing = [kind for kind in drift.KINDS if kind not in spread]
    if missing:
        raise ReportError(f"these runs share no quantity of the kind {missing[0]}: name runs with more notebooks")
    machine = machine_of(folders[0])
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.endswith(f"machine: {machine}}}")]
    rows = [f"- {{id: {kind}, {', '.join(f'{name}: {value}' for name, value in row.items())}, machine: {machine}}}"
            for kind, row in spread.items()]  # fmt: skip
    path.write_text("\n".join([*lines, *rows]) + "\n", encoding="utf-8")
    drift.table.cache_clear()
    return spread
