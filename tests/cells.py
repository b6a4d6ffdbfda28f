"""Run the cells of a notebook in this process, up to a tag or an index, with parameters and variables replaced.

    ran = cells.run("02_cache_mystery", until="evidence", out=tmp_path, replace={"limit": 2 << 30, "log": lambda log: log[:9]})
    ran["tried"], ran.words, ran.titles

What a cell assigns to a replaced name outside functions is replaced right after, so the rest of the cell sees it too.
"""

import ast
import contextlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition

import matplotlib.pyplot as plt
import nbformat

from kit.system.paths import ROOT

NUMBER, BOLD = re.compile(r"\d"), re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
LABELS = (  # bold words that state nothing
    "Question", "You meet this when", "Claim", "Answer", "Real and generated", "Generated and real",
)  # fmt: skip


@dataclass
class Ran(dict):
    """The namespace after the last cell that ran. ``words``: what each cell says, by the cell's id (Markdown, printed text);
    ``titles``: the titles of its figures; ``shown``: the values that its last lines have."""

    words: dict[str, str] = field(default_factory=dict)
    titles: dict[str, list[str]] = field(default_factory=dict)
    shown: dict[str, object] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, str]:
        """Every sentence and title by (cell id, place): what a reader takes for the outcome."""
        found = {f"{cell}: words": text for cell, text in self.words.items() if text}
        return found | {f"{cell}: title {n}": title for cell, titles in self.titles.items() for n, title in enumerate(titles)}


def read(notebook: str | Path):
    """A notebook of the kit by its name, or any by its path."""
    return nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb" if isinstance(notebook, str) else notebook, as_version=4)


def run(
    notebook: str | Path, until: str | int | Callable | None = None, replace: Mapping[str, object] | None = None, **parameters
) -> Ran:  # fmt: skip
    """The code cells in order up to and with ``until``, a cell's id, tag or index, or a function that is true of what ran, all
    that is replaced in it; None: all. ``parameters``: of the cell
    with that tag, by default those of the smoke profile. ``replace``: name -> value, or a function of the cell's own value
    (a function that stands for a value is wrapped in another). KeyError when a name or ``until`` does not occur."""
    replace, ran, used = dict(replace or {}), Ran(), set()
    ran["_replaced"] = lambda name, value: _replaced(replace[name], value)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in parameters.items()}
    parameters = {"profile": "smoke"} | plain
    plt.close("all")
    for number, cell in enumerate(read(notebook).cells):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            used |= _replace_in(tree.body, set(replace))
            _run_cell(cell.id, tree, ran)
            if "parameters" in tags:
                if unknown := set(parameters) - set(ran):
                    raise KeyError(f"{notebook} has no parameter {', '.join(unknown)}")
                ran.update(parameters)
        if set(replace) <= used and until(ran) if callable(until) else until is not None and until in (number, cell.id, *tags):
            break
    else:
        if until is not None and not callable(until):
            raise KeyError(f"{notebook} has no cell {until!r}")
    if missing := set(replace) - used:
        raise KeyError(f"no cell that ran assigns {', '.join(sorted(missing))} outside functions")
    return ran


def _replaced(new, value):
    return new(value) if isinstance(new, Callable) else new


def _replace_in(body: list[ast.stmt], names: set[str]) -> set[str]:
    """After each assignment of a name outside functions, ``name = _replaced("name", name)``; returns the names found."""
    found = set()
    for node in list(body):
        for inner in ("body", "orelse"):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found |= _replace_in(getattr(node, inner, None) or [], names)
        targets = getattr(node, "targets", []) if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        stored = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)} & names
        for name in sorted(stored):
            body.insert(body.index(node) + 1, ast.parse(f"{name} = _replaced({name!r}, {name})").body[0])
        found |= stored
    return found


def _run_cell(name: str, tree: ast.Module, ran: Ran) -> None:
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, open_before = io.StringIO(), set(plt.get_fignums())
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<{name}>", "exec"), ran)
        value = eval(compile(last, f"<{name}>", "eval"), ran) if last else None
    ran.shown[name] = value
    said = value.data if type(value).__name__ == "Markdown" else ""
    ran.words[name] = "\n".join(filter(None, (printed.getvalue().strip(), said)))
    figures = [plt.figure(number) for number in plt.get_fignums() if number not in open_before]
    ran.titles[name] = [t for figure in figures for axes in figure.axes if (t := axes.get_title("left") or axes.get_title())]
    plt.close("all")


def unfilled(ran: Ran) -> list[str]:
    """Figure titles and bold sentences of an executed run that hold no number: words that may be older than its data."""
    bold = {cell: BOLD.findall(text) for cell, text in ran.words.items()}
    told = [(cell, text) for kind in (ran.titles, bold) for cell, texts in kind.items() for text in texts]
    return [f"{cell}: {text}" for cell, text in told if not NUMBER.search(text) and text.strip(" .") not in LABELS]


def static_sentences(notebook: str | Path) -> list[str]:
    """Bold phrases of Markdown cells beside labels, and titles in code that are plain strings: neither follows the run."""
    found = []
    for cell in read(notebook).cells:
        if cell.cell_type == "markdown":
            bold = [text.strip(" .") for text in BOLD.findall(cell.source)]
            found += [f"{cell.id}: {text}" for text in bold if text not in LABELS]
        else:
            found += [f"{cell.id}: {text}" for text in _constant_titles(ast.parse(cell.source))]
    return found


def _constant_titles(tree: ast.Module) -> list[str]:
    """Constant strings given as a title: ``set_title(...)``, ``suptitle(...)``, ``title=...``."""
    given = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("set_title", "suptitle", "title"):
            given += call.args[:1]
        given += [keyword.value for keyword in call.keywords if keyword.arg == "title"]
    return [value.value for value in given if isinstance(value, ast.Constant) and isinstance(value.value, str)]


class Reentrant(Condition):
    """Opposite data for a cell with a lock: one that whoever reads may take for writing."""

    def wait_for(self, predicate, timeout=None):
        return True
