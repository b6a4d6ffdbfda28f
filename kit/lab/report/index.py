"""The front page of a run: one decision, five answers, what to do, the notebooks, every claim, and what was not run."""

import json
import math
import re
from pathlib import Path

from kit.errors import ReportError
from kit.lab.claims import book, evidence
from kit.lab.claims.book import Entry
from kit.lab.claims.records import WARNED, Record
from kit.lab.report import content, html, theme
from kit.lab.report import run as runs
from kit.lab.report.checklist import checklist
from kit.lab.report.run import Run
from kit.system import paths

ANSWERED = {  # the claims that a reader comes for, and what each asks
    "first-token-preload": "Does preloading bring the first token from minutes to an instant?",
    "variance-45-1100": "Can one build give 45 and 1100 tokens a second?",
    "hit-rate-85": "Do 20 entries for 155 layers hit 85%?",
    "tile-295-5": "Does a tile need 295 ms, and a GPU to be fast?",
    "five-tokens": "Can five tokens go from 8 hours to 35 seconds?",
}
TO_DO = "07_memory_frontier"  # its answer is what to do
BARS = {  # the ways that the page opens with -> the quantity of the notebook that measured all of them, as a pattern, and the
    # engine of peers.json that computes the same: dequantized float32 is what the others' KL divergence is from
    "float32 weights, an LRU": (r"a token, LRU of .*, f32", ""),
    "the file's blocks": (r"a token, blocks as they lie", "kit"),
    "the file's blocks, 8-bit activations": (r"a token, blocks, int8 activations", "kit, int8 activations"),
}
MEASURED_IN = (TO_DO, "09_your_model")


def write(run: Run, running: bool = False) -> Path:
    """Render ``<run>/index.html`` from the run's state, records, pages and environment.

    While the run is ``running`` the page reloads itself.
    """
    rows = [row for name in run.planned for row, _ in run.records_of(name)]
    cells = {name: html.cells_of(run.folder / f"{name}.ipynb") for name in run.planned}
    entries = book.read(run.folder)
    return theme.write(
        run.folder / "index.html",
        "index.html.j2",
        run=run,
        running=running,
        environment=html.environment(run.folder),
        cards=[card(run, name, cells[name]) for name in run.planned],
        pages={name for name in run.planned if (run.folder / f"{name}.html").exists()},
        failed=run.failed,
        unfinished=[name for name in run.planned if name not in run.notebooks],
        ledger=entries,
        groups=groups(entries),
        decision=decision(run, rows),
        answers=answers(entries),
        evidence={entry.claim.id: evidence.bearing_on(entry.claim) for entry in entries},
        report_of=evidence.report_of,
        to_do=(TO_DO, html.answer(cells.get(TO_DO, []))),
        tally=[(word, count) for word, count in book.tally(entries).items() if count],
        warnings=[(name, anchor, text) for name in run.planned for anchor, text in run.warnings_of(name)],
        measurements=[row for row in rows if not row.verdict and row.status != WARNED],
        records_uri=html.records_uri(run, run.planned),
        checklist=checklist(run, rows, run.planned),
    )


def one_page(folder: Path, request: runs.Request) -> Path:
    """Run the one notebook of a request in a new folder; the path of its page. ReportError where it fails, too."""
    jobs = runs.plan(request, paths.notebooks_folder())
    run = runs.start(folder, request)
    runs.perform(run, jobs)
    page = html.write(run, jobs[0].name)
    write(run)
    for name, row in run.failed.items():
        raise ReportError(f"{name} failed in cell {row.cell}: {row.reason}; {page} shows how far it came")
    return page


def decision(run: Run, rows: list[Record]) -> dict | None:
    """What to run a token from: each way of BARS as measured in one notebook, and llama.cpp in a process of its own
    (peers.json), the slowest first, each with its quality; None while no notebook has all of them. ``share``: of the longest
    bar. ``peers``: engines in a process each, the exact way first: (name, seconds, times llama.cpp's speed, quality)."""
    for name in MEASURED_IN:
        own = [row for row in rows if row.notebook == name and row.unit == "s" and row.status == "ok" and row.median]
        found = {way: next((row for row in own if re.fullmatch(told, row.quantity)), None) for way, (told, _) in BARS.items()}
        if all(found.values()):
            break
    else:
        return None
    path = run.folder / "peers.json"
    peers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"engines": {}}
    model, engines = found[next(iter(BARS))].parameters.get("model"), peers["engines"]
    bars = [{"way": way, "what": row.quantity, "seconds": row.median, "own": True,
             "quality": quality(engines, BARS[way][1], model)} for way, row in found.items()]  # fmt: skip
    ran = {way: 1 / row["speed"] for way, row in engines.items() if row.get("speed", math.nan) > 0}  # nan: it could not run
    peer = next((way for way in ran if way.startswith("llama.cpp")), None)
    if peer:
        bars.append({"way": peer, "what": "decode, in a process of its own", "seconds": ran[peer], "own": False,
                     "quality": quality(engines, peer, model)})  # fmt: skip
    beside = [(way, took, ran[peer] / took, quality(engines, way, model)) for way, took in ran.items() if peer and len(ran) > 1]
    longest = max(bar["seconds"] for bar in bars)
    bars = [bar | {"share": bar["seconds"] / longest} for bar in sorted(bars, key=lambda bar: -bar["seconds"])]
    own = [bar for bar in bars if bar["own"]]
    file = str(model or peers.get("file") or f"the model of the profile {run.request.profile}")
    return {"file": file.rsplit("/", 1)[-1], "bars": bars, "best": own[-1], "worst": own[0], "notebook": name,
            "generated": not model, "peers": beside}  # fmt: skip


def quality(engines: dict[str, dict], name: str, model: str | None) -> str:
    """What a way loses to float32, in words: by the engine of peers.json that computes it, "" for float32 itself; "" of a run
    on generated weights, which have nothing to lose."""
    kl = engines.get(name, {}).get("kl")
    if not model or not name:
        return "float32 itself" if model else ""
    return f"KL {kl:.2g} nats" if kl is not None and kl == kl else "KL not measured in this run"


def groups(entries: list[Entry]) -> dict[str, tuple[str, list[Entry]]]:
    """The ledger by who claims it: name -> (how many have which verdict, its entries). The threads are one group."""
    found, threads = {}, "Public threads, on experts"
    for entry in entries:
        found.setdefault(evidence.report_of(entry.claim).fact if entry.claim.report.isdigit() else threads, []).append(entry)
    tallies = {name: [f"{n} {word}" for word, n in book.tally(some).items() if n] for name, some in found.items()}
    order = sorted(found, key=lambda name: (name == threads, name))
    return {name: (", ".join(tallies[name]), found[name]) for name in order}


def answers(entries: list[Entry]) -> list[dict]:
    """The questions of ANSWERED, each with its claim's verdict: what was claimed, what was measured or counted here (slowest
    and fastest in one unit, with their bound), and apart from it what is computed of the reports' own model and machine."""
    found, by_id = [], {entry.claim.id: entry for entry in entries}
    for name, question in ANSWERED.items():
        entry = by_id[name]
        claim, parts = entry.claim, [part.record for part in entry.parts if part.record.status == "ok"]
        if not parts:
            continue
        here = [row for row in parts if row.how != "computed"]
        here = [row for row in here if row.unit == claim.unit] or [row for row in here if row.unit == here[0].unit]
        here.sort(key=lambda row: row.median, reverse=claim.unit == "s")
        bounded = [row for row in here if row.lower is not None or row.upper is not None]
        computed = [row for row in parts if row.how == "computed" and (row.lower is not None or row.upper is not None)]
        computed.sort(key=lambda row: row.unit != claim.unit)
        found.append({
            "question": question, "claim": claim, "verdict": entry.verdict, "decides": entry.decisive,
            "ends": here[:1] + here[-1:] * (len(here) > 1 and here[0].median != here[-1].median),
            "bound": bounded[0] if bounded else None, "computed": computed[0] if computed else None,
        })  # fmt: skip
    return found


def card(run: Run, name: str, cells: list[dict]) -> dict:
    """What the front page shows of one notebook; of a run without its .png files, the figure at its full size."""
    state = run.notebooks.get(name)
    headings = [text for cell in cells for _, _, text in cell["headings"]]
    picture = run.folder / f"{name}.png"
    return {
        "name": name,
        "title": headings[0] if headings else name,
        "summary": html.summary(cells),
        "status": state.status if state else "not run",
        "kept": state.kept if state else "",
        "thumbnail": content.data_uri(picture.read_bytes(), "image/png") if picture.exists() else html.picture(cells),
    }
