"""The front page of a run: the reader's own speeds, what to do, five answers, the notebooks, every claim, what was not run."""

from pathlib import Path

from kit.errors import ReportError
from kit.lab.claims import book, evidence, gates
from kit.lab.claims.book import Entry
from kit.lab.claims.judge import OWN, SOURCE
from kit.lab.claims.records import WARNED, Record
from kit.lab.measuring import machine
from kit.lab.report import content, html, lead, planning, theme
from kit.lab.report import run as runs
from kit.lab.report.checklist import checklist
from kit.lab.report.run import Run
from kit.system import paths

ANSWERED = {  # the claims that a reader comes for, and what each asks
    "first-token-preload": "Does preloading bring the first token from minutes to an instant?",
    "variance-45-1100": "Can one build give 45 and 1100 tokens per second?",
    "hit-rate-85": "Do 20 entries for 155 layers hit 85%?",
    "tile-295-5": "Does a tile need 295 ms, and a GPU to be fast?",
    "five-tokens": "Can five tokens go from 8 hours to 35 seconds?",
}
RATIOS = {  # what their "139.6x" is of: the names of such records are for who knows the pages
    "first-token-preload": "as long for a first token that dequantizes as for one whose float32 weights are in memory",
    "tile-295-5": "as long with the reported search as with the fastest decoder, on one core",
    "five-tokens": "as long with the reported decoder as with kit's, on one core",
}
NOT_HERE = ("computed", OWN, SOURCE)  # of the claim's own model and machine
YOUR_MODEL = "09_your_model"  # its table and its answer open the front page; its card is the first
TO_DO = (YOUR_MODEL, "07_memory_frontier")  # the first that has an answer says what to do


def write(run: Run, running: bool = False) -> Path:
    """Render ``<run>/index.html`` from the run's state, records, pages and environment.

    While the run is ``running`` the page reloads itself.
    """
    rows = [row for name in run.planned for row, _ in run.records_of(name)]
    cells = {name: html.cells_of(run.folder / f"{name}.ipynb") for name in run.planned}
    entries, first = book.read(run.folder), lead.leads(run, rows)
    table = html.table(cells.get(YOUR_MODEL, []))
    to_do = next((name for name in TO_DO if html.answer(cells.get(name, []))), "")
    return theme.write(
        run.folder / "index.html",
        "index.html.j2",
        run=run,
        running=running,
        title=title(run),
        environment=html.environment(run.folder),
        cards=[card(run, name, cells[name]) for name in sorted(run.planned, key=lambda name: name != YOUR_MODEL)],
        pages={name for name in run.planned if (run.folder / f"{name}.html").exists()},
        failed=run.failed,
        unfinished=[name for name in run.planned if name not in run.notebooks],
        ledger=entries,
        groups=groups(entries),
        file=first[0].file if first else "this run's models",
        table=table,
        result=html.result(cells.get(YOUR_MODEL, [])),
        leads=[each for each in first if not table and each.notebook != lead.EXPERTS],
        mixtures=[each for each in first if each.notebook == lead.EXPERTS and not (run.request.model and each.generated)],
        busy=busy(rows),
        answers=answers(entries),
        evidence={entry.claim.id: evidence.bearing_on(entry.claim) for entry in entries},
        report_of=evidence.report_of,
        to_do=(to_do, html.answer(cells.get(to_do, [])), html.question(cells.get(to_do, []))),
        tally=[(word, count) for word, count in book.tally(entries).items() if count],
        warnings=wrong(run, rows),
        measurements=[row for row in rows if not row.verdict and row.status != WARNED],
        records_uri=html.records_uri(run, run.planned),
        checklist=checklist(run, rows, run.planned),
    )


def title(run: Run) -> str:
    """What was measured on what: the model's name, or the profile of generated ones, and the processor."""
    model = Path(run.request.model or "").name.removesuffix(".gguf")
    known = machine.kept(run.folder)
    return " on ".join([model or f"Generated models ({run.request.profile})", *([known.told] if known else [])])


def wrong(run: Run, rows: list[Record]) -> list[tuple[str, str, str]]:
    """What the pages of a run say and cannot be: (the notebook, "" of them all; the anchor on its page; what)."""
    warnings = [(name, anchor, text) for name in run.planned for anchor, text in run.warnings_of(name)]
    warnings += [(one.notebook, "", one.beaten) for one in lead.leads(run, rows) if one.beaten]
    told = [text for *_, text in warnings]  # page 08 tells some of it
    return warnings + [("", "", text) for text, _ in gates.across(rows) if not any(text in said for said in told)]


def busy(rows: list[Record]) -> list[str]:
    """The notebooks with a measurement that other processes disturbed."""
    return [*dict.fromkeys(row.notebook for row in rows if row.state.get("busy"))]


def one_page(folder: Path, request: runs.Request) -> Path:
    """Run the one notebook of a request in a new folder; the path of its page. ReportError where it fails, too."""
    jobs = planning.plan(request, paths.notebooks_folder())
    run = runs.start(folder, request)
    planning.perform(run, jobs)
    page = html.write(run, jobs[0].name)
    write(run)
    for name, row in run.failed.items():
        raise ReportError(f"{name} failed in cell {row.cell}: {row.reason}; see {page} for the cells before it")
    return page


def groups(entries: list[Entry]) -> dict[str, tuple[str, list[Entry]]]:
    """The ledger by who claims it: name -> (how many have which verdict, its entries). The threads are one group."""
    by_report, threads = {}, "Public threads, on experts"
    for entry in entries:
        by_report.setdefault(evidence.report_of(entry.claim).fact if entry.claim.report.isdigit() else threads, []).append(
            entry
        )
    tallies = {name: [f"{n} {word}" for word, n in book.tally(some).items() if n] for name, some in by_report.items()}
    order = sorted(by_report, key=lambda name: (name == threads, name))
    return {name: (", ".join(tallies[name]), by_report[name]) for name in order}


def answers(entries: list[Entry]) -> list[dict]:
    """The questions of ANSWERED, each with its claim's verdict: what was claimed, what was measured or counted here (slowest
    and fastest in one unit, with their bound), and apart from it what is computed of the reports' own model and machine."""
    told, by_id = [], {entry.claim.id: entry for entry in entries}
    for name, question in ANSWERED.items():
        entry = by_id[name]
        claim, parts = entry.claim, [part.record for part in entry.parts if part.record.status == "ok"]
        if not parts:
            continue
        here = [row for row in parts if row.how not in NOT_HERE]
        here = [row for row in here if row.unit == claim.unit] or [row for row in here if row.unit == here[0].unit]
        here.sort(key=lambda row: row.median, reverse=claim.unit == "s")
        bounded = [row for row in here if row.lower is not None or row.upper is not None]
        computed = [
            row
            for row in parts
            if row.how == OWN or (row.how == "computed" and (row.lower is not None or row.upper is not None))
        ]
        computed.sort(key=lambda row: row.unit != claim.unit)
        told.append({
            "question": question, "claim": claim, "verdict": entry.verdict, "decides": entry.decisive,
            "ends": here[:1] + [row for row in here[-1:] if row.median != here[0].median],
            "ratio": RATIOS.get(name, ""),
            "bound": bounded[0] if bounded else None, "computed": computed[0] if computed else None,
        })  # fmt: skip
    return told


def card(run: Run, name: str, cells: list[dict]) -> dict:
    """What the front page shows of one notebook; of a run without its .png files, the figure at its full size."""
    state = run.notebooks.get(name)
    small, full = run.folder / f"{name}.png", html.picture(cells)
    return {
        "name": name,
        "title": html.result(cells) or html.question(cells) or name,
        "summary": html.summary(cells),
        "status": state.status if state else "not run",
        "kept": state.kept if state else "",
        "thumbnail": content.data_uri(small.read_bytes(), "image/png") if small.exists() else full and full["body"],
    }
