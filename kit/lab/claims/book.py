"""The book of a run: every claim, the records that judge it, one verdict by one rule."""

import bisect
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.errors import ReportError
from kit.lab.claims import records
from kit.lab.claims import table as claims
from kit.lab.claims.records import Record
from kit.lab.claims.table import NO_RECORD, VERDICTS, WORDS, Claim
from kit.units import from_json

STATE = "run.json"  # in the folder of a run: what was asked, and how each notebook ended
OWN = "08_claims"  # the notebook that reads this book, and so does not stand in it
RULE = (
    "A claim has as many parts as records judge it, and it holds only as far as all of them hold: its verdict is the "
    f"strictest of theirs, in the order {', '.join(list(VERDICTS)[:-1])}. A part that is not measurable here decides only "
    "when there is no other."
)


@dataclass(frozen=True)
class ClaimPart:
    """One record that judges a claim, and the link to the cell that measured it; empty without a page."""

    record: Record
    link: str = ""


@dataclass(frozen=True)
class Entry:
    """One claim with its parts in the order of the notebooks; ``missing`` says why there are none."""

    claim: Claim
    parts: tuple[ClaimPart, ...]
    missing: str = ""

    @property
    def verdict(self) -> str:
        """The claim's verdict by RULE, or NO_RECORD."""
        return strictest(part.record.verdict for part in self.parts)

    @property
    def decisive(self) -> ClaimPart | None:
        """The part that decides: of those with the claim's verdict, one that the reported figure can stand beside."""
        deciding = [part for part in self.parts if part.record.verdict == self.verdict]
        return max(deciding, key=lambda part: bool(reported_in(self.claim, part.record.unit)), default=None)


def strictest(verdicts) -> str:
    """One verdict for several, by RULE."""
    return min(verdicts, key=list(VERDICTS).index, default=NO_RECORD)


def read(folder: Path) -> list[Entry]:
    """An entry for every claim, from the records of all notebooks in ``folder`` but this book's own."""
    folder, state = Path(folder), state_of(folder)
    parts: dict[str, list[ClaimPart]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem == OWN:
            continue
        page = next((name for name in (f"{path.stem}.html", f"{path.stem}.ipynb") if (folder / name).exists()), "")
        for record, anchor in anchored(path, state.get(path.stem)):
            if record.verdict:
                parts.setdefault(record.claim, []).append(ClaimPart(record, page and page + anchor))
    return [
        Entry(claim, tuple(parts.get(name, ())), "" if name in parts else _missing(claim, folder, state))
        for name, claim in claims.load().items()
    ]


def state_of(folder: Path) -> dict[str, dict]:
    """How each notebook of a run ended (status, reason, cell, records_before), by name; empty outside a run."""
    path = Path(folder) / STATE
    try:
        return dict(from_json(path.read_text(encoding="utf-8"))["notebooks"]) if path.exists() else {}
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
    command = shlex.join(["kit", "reproduce", "--resume", "--out", str(folder), "--only", claim.notebook[:2]])
    return f"{claim.notebook} has not run in this folder; `{command}` adds it"


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
