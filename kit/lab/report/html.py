"""The page of one notebook: its answer and picture first, then text, code, figures and tables, records at the end."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup
from nbconvert.preprocessors.coalescestreams import CoalesceStreamsPreprocessor

from kit.lab.claims import evidence, records
from kit.lab.claims import table as claims
from kit.lab.measuring import machine, state
from kit.lab.report import content, theme
from kit.lab.report.checklist import checklist, command_line
from kit.lab.report.run import Run, read_notebook

_MARKERS = {"papermill-error-cell-tag"}  # cells that papermill adds around a failure
_HIDDEN = {"remove-cell"}  # of use in JupyterLab only, as Jupyter Book names it
ANSWER = "answer"  # tag of the cell whose text opens the page
TABLE = "table"  # tag of the cell whose table is under the answer, and on the front page
MORE = "more"  # tag of a text whose section a page folds under its heading and its first bold sentence
MECHANISM = "mechanism"  # tag of a cell whose code is the point: a page folds all other code away
_joined = CoalesceStreamsPreprocessor().preprocess_cell  # pieces of one stream
_HEADING = re.compile(r"<h2\b[^>]*>.*?</h2>", re.DOTALL)
_FINDING = re.compile(r"<strong>(.*?)</strong>", re.DOTALL)
_TITLE = re.compile(r"<h1\b[^>]*>.*?</h1>", re.DOTALL)
_RESULT = re.compile(r"<strong>(.*?)\.?</strong>\s*", re.DOTALL)  # the bold sentence that begins an answer


def write(run: Run, name: str) -> Path:
    """Render ``<run>/<name>.ipynb`` (which a failed run may lack) with its records to ``<run>/<name>.html``."""
    cells = cells_of(run.folder / f"{name}.ipynb")
    rows = run.records_of(name)
    headings = [heading for cell in cells for heading in cell["headings"]]
    neighbors = dict(pairwise([None, *run.planned, None]))
    before = {after: this for this, after in neighbors.items()}
    return theme.write(
        run.folder / f"{name}.html",
        "notebook.html.j2",
        name=name,
        title=result(cells) or (headings[0][2] if headings else name),
        question=headings[0][2] if headings and result(cells) else "",
        answer=answer(cells),
        table=table(cells),
        picture=picture(cells),
        sections=sections(cells),
        cells=cells,
        headings=headings,
        state=run.notebooks.get(name),
        run=run,
        before=before.get(name),
        after=neighbors.get(name),
        warnings=run.warnings_of(name),
        made=made(run, name, [row for row, _ in rows]),
        verdicts=[(row, anchor, claims.load().get(row.claim)) for row, anchor in rows if row.verdict],
        measurements=[row for row, _ in rows if not row.verdict and row.status != records.WARNED],
        records_uri=records_uri(run, [name]),
        environment=environment(run.folder),
        checklist=checklist(run, [row for row, _ in rows], [name]),
    )


def made(run: Run, name: str, rows: list[records.Record]) -> dict:
    """What is under a page's title: its command, the reports that it judges, the public record on them, the machine's state
    while it ran. ``varied``: by how much memory's speed did, where it did. (Not that speed: a probe is shorter than what the
    limits are taken from, and partly from the caches. Page 01 said 68 GB/s under a limit of 36.)"""
    judged = [claims.load()[key] for key in dict.fromkeys(row.claim for row in rows if row.verdict) if key in claims.load()]
    states = [row.state for row in rows if row.state]
    reads = [each["read_gbps"] for each in states if each.get("read_gbps")]
    return {
        "command": command_line(run, name),
        "reports": {claim.source: evidence.report_of(claim) for claim in judged},
        "facts": list({fact.id: fact for claim in judged for fact in evidence.bearing_on(claim)}.values()),
        "varied": max(reads) / min(reads) if reads and max(reads) >= state.NEAR * min(reads) else None,
        "busy": next((each["busy"] for each in states if each.get("busy")), ""),
    }


def records_uri(run: Run, names: Iterable[str]) -> str:
    """The raw records of these notebooks, to download from a page; empty when there are none."""
    logs = b"".join(path.read_bytes() for name in names if (path := run.folder / f"{name}.jsonl").exists())
    return content.data_uri(logs, "application/x-ndjson") if logs else ""


def environment(folder: Path) -> dict | None:
    """The machine of a run, as in its environment.json; None before it has been measured."""
    known = machine.kept(folder)
    return asdict(known) | {"told": known.told} if known else None


def cells_of(path: Path) -> list[dict]:
    """The cells of an executed notebook for the template, numbered from 1 as in the run's messages; [] without a file."""
    if not path.exists():
        return []
    source = [cell for cell in read_notebook(path).cells if not _MARKERS & set(cell.metadata.get("tags", []))]
    cells, section = [], ""
    for number, cell in enumerate(source, start=1):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type not in ("markdown", "code") or _HIDDEN & set(tags):
            continue
        shown = {"number": number, "kind": cell.cell_type, "headings": [], "outputs": [], "section": section, "verdicts": False}
        if cell.cell_type == "markdown":
            body, shown["headings"] = content.markdown(cell.source, f"cell-{number}")
            shown["more"] = MORE in tags
            shown["body"] = body if any(one["headings"] for one in cells) else _TITLE.sub("", body, count=1)
            section = shown["headings"][-1][2] if shown["headings"] else section
        else:
            shown |= {
                "lines": len(cell.source.splitlines()), "body": content.code(cell.source), "tags": tags,
                "seconds": cell.metadata.get("papermill", {}).get("duration"),
                "outputs": [content.output(item) for item in _joined(cell, {}, number)[0].outputs],
                "opens": bool({ANSWER, TABLE} & set(tags)), "open": MECHANISM in tags, "drawn": "lab.picture(" in cell.source,
                "verdicts": "lab.verdicts()" in cell.source,  # the page has a fuller table of them
            }  # fmt: skip
        cells.append(shown)
    return cells


def sections(cells: list[dict]) -> list[dict]:
    """The cells in parts, each from a heading of the second level on: ``cells``; of a part that is folded its ``id``, ``title``
    and ``finding``, the first bold sentence that its code says ("" without one), as HTML."""
    parts = [{"cells": [], "id": "", "title": ""}]
    for cell in cells:
        if any(level == 2 for level, *_ in cell["headings"]):
            parts.append({"cells": [], "id": "", "title": ""})
            if cell.get("more"):
                parts[-1] |= {"id": cell["headings"][0][1], "title": cell["headings"][0][2]}
                cell = cell | {"body": _HEADING.sub("", cell["body"], count=1)}
        parts[-1]["cells"].append(cell)
    for part in parts:
        told = "\n".join(output["body"] for cell in part["cells"] for output in cell["outputs"] if output["kind"] == "html")
        found = _FINDING.search(told)
        part["finding"] = found[1].rstrip(",:") if found else ""  # it ends here, though its sentence goes on
    return [part for part in parts if part["cells"]]


def _tagged(cells: list[dict], tag: str) -> str:
    """What the cells of a tag show, as HTML; "" before they have run."""
    return "\n".join(output["body"] for cell in cells if tag in cell.get("tags", ()) for output in cell["outputs"])


def table(cells: list[dict]) -> str:
    """The page's table of the answer (kit.lab.explaining.answer_table), as HTML; "" of a page without one."""
    return _tagged(cells, TABLE)


def question(cells: list[dict]) -> str:
    """The first heading, which asks what the page answers; "" before the notebook is there."""
    return next((text for cell in cells for *_, text in cell["headings"]), "")


def result(cells: list[dict]) -> str:
    """The result in a few words, with which the answer begins; "" before it has run, or without one."""
    told = _RESULT.search(_tagged(cells, ANSWER))
    return "" if told is None or told[1] == "Answer" else Markup(told[1]).striptags()


def answer(cells: list[dict]) -> str:
    """What the cell tagged ``answer`` shows after the result, as HTML; empty before it has run."""
    return _RESULT.sub("", _tagged(cells, ANSWER), count=1) if result(cells) else _tagged(cells, ANSWER)


def summary(cells: list[dict]) -> str:
    """The text of a notebook's answer, or of its first paragraph while there is none: its question."""
    if told := answer(cells):
        return Markup(told).striptags().removeprefix("Answer. ")
    for cell in cells:
        if cell["kind"] == "markdown" and (match := re.search(r"<p>(.*?)</p>", cell["body"], re.DOTALL)):
            return Markup(match[1]).striptags().removeprefix("Question. ")
    return ""


def picture(cells: list[dict]) -> dict | None:
    """The output with the first image of the cell that calls ``lab.picture``: ``body``, a data URI, and ``alt``."""
    return next((one for cell in cells if cell.get("drawn") for one in cell["outputs"] if one["kind"] == "image"), None)
