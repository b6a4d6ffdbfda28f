"""The artifact checklist of a page: what a reader needs to repeat and to trust a run, filled from the run itself."""

import shlex
from dataclasses import dataclass

from kit.lab.claims.records import Record
from kit.lab.measuring import drift
from kit.lab.report import parameters
from kit.lab.report.run import Run, read_notebook


@dataclass(frozen=True)
class Item:
    """One line: ``met`` is True, False, or None where it is neither (a fact)."""

    title: str
    met: bool | None
    text: str


def checklist(run: Run, rows: list[Record], names: list[str]) -> list[Item]:
    """The items for the notebooks ``names`` of a run and their records."""
    measured = [row for row in rows if row.status == "ok"]
    judged = [row for row in measured if row.verdict]
    commits = [*dict.fromkeys(row.commit for row in rows if row.commit)] or [run.commit]  # a resumed run may have several
    not_run = [f"{name}: not run yet" for name in names if name not in run.notebooks]
    not_run += [f"{name}: failed" for name in names if name in run.failed]
    not_run += [f"{row.claim or row.quantity}: {row.reason}" for row in rows if row.status == "skipped"]
    seeds = sorted({str(row.parameters["seed"]) for row in rows if "seed" in row.parameters})
    counts = sorted({len(row.samples) for row in measured})
    return [
        Item("Command", None, command_line(run)),
        Item("Commit", not any(commit.endswith("+") or not commit for commit in commits), _commit(run, commits)),
        Item("Version pins", None, "pyproject.toml; the versions that ran are under Environment"),
        Item("Machine", None, run.machine_id),
        Item("Seeds", bool(seeds) if rows else None, ", ".join(seeds) or "no record states one"),
        Item("Samples", None, _samples(counts, len(measured))),
        Item("Between runs", None, f"verdicts allow for what runs differ by, from {drift.source(run.machine_id)}"),
        _stated("Tolerances", [row.tolerance for row in judged]),
        _stated("Limits", [row.lower_source or row.upper_source for row in judged]),
        Item("Not run", not not_run, "; ".join(not_run) or "nothing: everything planned was measured"),
    ]  # fmt: skip


def command_line(run: Run, notebook: str = "") -> str:
    """The command that repeats a run, or one ``notebook`` of it, with the parameters that this has."""
    request, only, texts = run.request, run.request.only, run.request.texts
    if notebook:
        only, path = (notebook[:2],), run.folder / f"{notebook}.ipynb"
        known = parameters.read(read_notebook(path).cells, notebook) if texts and path.exists() else {}
        texts = [text for text in texts if text.partition("=")[0] in known]
    words = ["kit", "reproduce", "--profile", request.profile]
    words += [word for name in only for word in ("--only", name)]
    words += ["--model", request.model] * bool(request.model) + ["--device", request.device] * (request.device != "cpu")
    return shlex.join(words + [word for text in texts for word in ("-p", text)])


def _commit(run: Run, commits: list[str]) -> str:
    if not all(commits):
        return "unknown: not run from a git checkout"
    told = [commit.replace("+", ", with uncommitted changes") for commit in commits]
    return f"{' and '.join(told)}; kit {run.kit_version}"


def _samples(counts: list[int], measured: int) -> str:
    if not counts:
        return "no measurement yet"
    span = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{span} per measurement, {measured} measurements; the raw ones are in the records"


def _stated(title: str, sources: list[str]) -> Item:
    if not sources:
        return Item(title, None, "no verdicts here")
    count = sum(map(bool, sources))
    return Item(title, count == len(sources), f"stated by {count} of {len(sources)} verdicts")
