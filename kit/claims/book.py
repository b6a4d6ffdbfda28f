"""The book of a run: every claim, the records that judge it, one verdict by one rule; and the same over several runs."""

import bisect
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.claims import records
from kit.claims import table as claims
from kit.claims.records import Record
from kit.claims.table import NO_RECORD, VERDICTS, WORDS, Claim
from kit.errors import ReportError

STATE = "run.json"  # in the folder of a run: what was asked, and how each notebook ended
OWN = "08_claims"  # the notebook that reads this book, and so does not stand in it
RULE = (
    "A claim has as many parts as records judge it, and it holds only as far as all of them hold: its verdict is the "
    f"strictest of theirs, in the order {', '.join(list(VERDICTS)[:-1])}. A part that is not measurable here decides only "
    "when there is no other."
)


@dataclass(frozen=True)
class Part:
    """One record that judges a claim, and the link to the cell that measured it; empty without a page."""

    record: Record
    link: str = ""


@dataclass(frozen=True)
class Entry:
    """One claim with its parts in the order of the notebooks; ``missing`` says why there are none."""

    claim: Claim
    parts: tuple[Part, ...]
    missing: str = ""

    @property
    def verdict(self) -> str:
        """The claim's verdict by RULE, or NO_RECORD."""
        return strictest(part.record.verdict for part in self.parts)

    @property
    def decisive(self) -> Part | None:
        """The part that decides: of those with the claim's verdict, one that the reported figure can stand beside."""
        deciding = [part for part in self.parts if part.record.verdict == self.verdict]
        return max(deciding, key=lambda part: bool(reported_in(self.claim, part.record.unit)), default=None)


def strictest(verdicts) -> str:
    """One verdict for several, by RULE."""
    return min(verdicts, key=list(VERDICTS).index, default=NO_RECORD)


def read(folder: Path) -> list[Entry]:
    """An entry for every claim, from the records of all notebooks in ``folder`` but this book's own."""
    folder, state = Path(folder), state_of(folder)
    found: dict[str, list[Part]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem == OWN:
            continue
        page = next((name for name in (f"{path.stem}.html", f"{path.stem}.ipynb") if (folder / name).exists()), "")
        for record, anchor in anchored(path, state.get(path.stem)):
            if record.verdict:
                found.setdefault(record.claim, []).append(Part(record, page and page + anchor))
    return [
        Entry(claim, tuple(found.get(name, ())), "" if name in found else _missing(claim, folder, state))
        for name, claim in claims.load().items()
    ]


def state_of(folder: Path) -> dict[str, dict]:
    """How each notebook of a run ended (status, reason, cell, records_before), by name; empty outside a run."""
    path = Path(folder) / STATE
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["notebooks"]) if path.exists() else {}
    except (ValueError, TypeError, KeyError) as error:
        raise ReportError(f"{path} is not the state of a run ({error}): start a new one in another folder") from None


def anchored(path: Path, ended: dict | None) -> list[tuple[Record, str]]:
    """The records of a notebook, each with the anchor on its page of the cell that wrote it (``#cell-7``)."""
    before = ended["records_before"] if ended else []
    rows = enumerate(records.read([path]))
    return [(record, f"#cell-{bisect.bisect_right(before, number)}" if ended else "") for number, record in rows]


def _missing(claim: Claim, folder: Path, state: dict[str, dict]) -> str:
    ended = state.get(claim.notebook)
    if ended and ended["status"] != "ok":
        return f"{claim.notebook} failed in cell {ended['cell']} before it judged this: {ended['reason']}"
    if ended or (folder / f"{claim.notebook}.jsonl").exists():
        return f"{claim.notebook} ran and wrote no verdict for it"
    return f"{claim.notebook} has not run in this folder; kit reproduce --resume --only {claim.notebook[:2]} adds it"


def tally(entries: Sequence[Entry]) -> dict[str, int]:
    """Claims by verdict, every verdict named, the strictest first."""
    counted = Counter(entry.verdict for entry in entries)
    return {word: counted[word] for word in WORDS}


def reported_in(claim: Claim, unit: str) -> tuple[float, float] | None:
    """The reported figure (least, most) in ``unit``; a ratio ("x") also from a before and an after. None: not in it."""
    if claim.unit and claim.unit == unit:
        return claim.after, claim.after
    if unit == "x" and claim.ratio:
        return tuple(claim.ratio)
    if unit == "x" and claim.before and claim.after:
        faster = max(claim.before, claim.after) / min(claim.before, claim.after)
        return faster, faster
    return None


# --- several runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Across:
    """The verdicts of one claim, or of one part of it (``quantity``), a run each."""

    claim: str
    quantity: str
    verdicts: tuple[str, ...]

    @property
    def flips(self) -> bool:
        """Whether two runs decided it, and not alike. Undecided, not measurable and not there contradict nothing."""
        return len({word for word in self.verdicts if WORDS[word].decides}) > 1

    @property
    def differs(self) -> bool:
        """Whether the runs do not all say the same."""
        return len(set(self.verdicts)) > 1


def across(folders: Sequence[Path]) -> list[Across]:
    """Every claim over the runs, each followed by those of its parts on which they differ. ReportError when a folder holds no
    records, or the runs are not of one experiment: one machine, profile, model and device."""
    books = [read(folder) for folder in folders]
    settings = [_setting(folder, book) for folder, book in zip(folders, books, strict=True)]
    for name in settings[0]:
        values = [setting[name] for setting in settings]
        if len(set(values)) > 1:
            raise ReportError(f"these runs are not of one {name}: {', '.join(map(repr, dict.fromkeys(values)))}")
    rows = []
    for entries in zip(*books, strict=True):
        claim, parts = entries[0].claim.id, [_by_quantity(entry) for entry in entries]
        rows.append(Across(claim, "", tuple(entry.verdict for entry in entries)))
        for quantity in dict.fromkeys(quantity for words in parts for quantity in words):
            part = Across(claim, quantity, tuple(words.get(quantity, NO_RECORD) for words in parts))
            rows += [part] * (part.differs and any(len(words) > 1 for words in parts))
    return rows


def _by_quantity(entry: Entry) -> dict[str, str]:
    """Quantity and device of each part -> verdict; the strictest where several parts agree in both."""
    found = defaultdict(list)
    for part in entry.parts:
        device = part.record.parameters.get("device", "cpu")
        found[part.record.quantity + f" ({device})" * (device != "cpu")].append(part.record.verdict)
    return {name: strictest(verdicts) for name, verdicts in found.items()}


def _setting(folder: Path, book: Sequence[Entry]) -> dict[str, str]:
    rows = [part.record for entry in book for part in entry.parts]
    if not rows:
        raise ReportError(f"{folder} holds no verdicts: name the folder of a run")
    given = rows[0].parameters
    model, devices = str(given.get("model", "")).rsplit("/", 1)[-1], {row.parameters.get("device", "cpu") for row in rows}
    return {"machine": rows[0].machine_id, "profile": str(given.get("profile", "")), "model": model,
            "device": " and ".join(sorted(devices))}  # fmt: skip
