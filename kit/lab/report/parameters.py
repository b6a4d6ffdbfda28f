"""The typed parameters of a notebook: read from its one `parameters` cell, and checked before anything runs.

papermill only warns of an unknown parameter, does not know ``str | None`` and turns ``-p 007`` into 7; here the
annotation decides, as in ``samples: int = 9  # how often each thing is timed``.
"""

import ast
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.errors import ReportError, some_of
from kit.lab.profiles import check_size

TAG = "parameters"


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell. ``type`` is int, float, str or bool; ``default`` is of that type."""

    name: str
    type: type
    default: int | float | str | bool
    help: str = ""

    def parse(self, text: str) -> int | float | str | bool:
        """The value that ``text`` (from a command line) means for this parameter; ReportError when it means none."""
        check_size(self.name, text)
        try:
            return _PARSERS[self.type](text)
        except (ValueError, KeyError):
            example = _EXAMPLES[self.type]
            raise ReportError(f"parameter {self.name}: {text!r} is not {example} ({self})") from None

    def __str__(self) -> str:
        text = f"{self.name}: {self.type.__name__} = {self.default!r}"
        return f"{text}  # {self.help}" if self.help else text


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def from_here(text: str) -> str:
    """``text`` (NAME=VALUE) as a notebook takes it, which works in the folder of its run: a file of this folder by its absolute
    path, but a table (.json) by its name alone, because the run keeps a copy (``tables``)."""
    name, sign, value = text.partition("=")
    return name + sign + ",".join(map(_seen_from_elsewhere, value.split(",")))


def _seen_from_elsewhere(text: str) -> str:
    path = Path(text)
    if not path.is_file():
        return text
    return path.name if path.suffix == ".json" else str(path.absolute())


def tables(texts: Iterable[str]) -> list[Path]:
    """The .json files of this folder that ``texts`` (NAME=VALUE) name."""
    values = (Path(value) for text in texts for value in text.partition("=")[2].split(","))
    return [path for path in values if path.suffix == ".json" and path.is_file()]


_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_PARSERS = {int: int, float: _finite, str: str, bool: lambda text: _BOOLS[text.lower()]}
_EXAMPLES = {int: "an int", float: "a finite float", str: "a str", bool: "a bool (true or false)"}
_TYPES = {kind.__name__: kind for kind in _PARSERS}


def read(cells: Iterable[Mapping], notebook: str) -> dict[str, Parameter]:
    """The parameters of a notebook's cells (nbformat), by name and in their order.

    ReportError (naming ``notebook`` and the line) when there is not exactly one cell tagged ``parameters`` or when
    it holds anything but ``name: type = literal  # help``.
    """
    tagged = [cell for cell in cells if TAG in cell.get("metadata", {}).get("tags", [])]
    if len(tagged) != 1:
        raise ReportError(f"{notebook}: needs exactly one cell tagged '{TAG}', has {len(tagged)}")
    source = tagged[0]["source"]
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ReportError(f"{notebook}: parameters cell, line {error.lineno}: {error.msg}") from None
    parameters = [_parameter(node, source, notebook) for node in statements]
    return {parameter.name: parameter for parameter in parameters}


def _parameter(node: ast.stmt, source: str, notebook: str) -> Parameter:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind), value=value) if kind in _TYPES:
            try:
                default = ast.literal_eval(value)
            except ValueError:
                default = None
            if _TYPES[kind] is float and type(default) is int:
                default = float(default)
            if type(default) is _TYPES[kind]:
                rest = source.splitlines()[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
                return Parameter(name, _TYPES[kind], default, rest.lstrip(" #").rstrip())
    line = ast.get_source_segment(source, node)
    raise ReportError(
        f"{notebook}: parameters cell, line {node.lineno}: {line!r} is not `name: type = literal  # help` "
        f"with a type of {', '.join(_TYPES)}"
    )


def assign(known: Mapping[str, Mapping[str, Parameter]], texts: Iterable[str]) -> dict[str, dict]:
    """The values that ``name=value`` texts give to each notebook: notebook -> parameter -> value.

    ``known``: the parameters of each notebook that will run. A text sets every notebook that has such a parameter; one
    that none has, a value of the wrong type or a text without ``=`` is a ReportError (the first lists the known ones).
    """
    values: dict[str, dict] = {notebook: {} for notebook in known}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ReportError(f"-p {text}: write it as -p name=value")
        owners = [notebook for notebook, parameters in known.items() if name in parameters]
        if not owners:
            raise ReportError(f"unknown parameter {name!r}{_known(name, known)}")
        for notebook in owners:
            values[notebook][name] = known[notebook][name].parse(value)
    return values


def _known(name: str, known: Mapping[str, Mapping[str, Parameter]]) -> str:
    """The parameter that was meant, with the notebooks that have it; else the names of all."""
    lines: dict[str, list[str]] = {}
    for notebook, parameters in known.items():
        for parameter in parameters.values():
            lines.setdefault(str(parameter), []).append(notebook)
    names = {line.partition(":")[0]: None for line in lines}
    near = difflib.get_close_matches(name, names)
    if not near:
        return f"; known are {some_of(names)}: kit reproduce --list describes them"
    told = {line: owners for line, owners in lines.items() if line.startswith(f"{near[0]}:")}
    return f": is {near[0]} meant?" + "".join(f"\n  {line}  [{', '.join(owners)}]" for line, owners in told.items())


def notebook_names(folder: Path, only: Iterable[str] = (), asked: str = "--only ") -> list[str]:
    """Names (without .ipynb) of the notebooks in ``folder``, sorted; with ``only``, those that start with one of them.

    ReportError when the folder has none, or when a prefix fits none, which was ``asked`` for so.
    """
    names = sorted(path.stem for path in Path(folder).glob("*.ipynb") if not path.name.startswith("."))
    if not names:
        raise ReportError(f"{folder}: has no notebooks; run from a checkout, or name a folder with --notebooks")
    prefixes = tuple(prefix.removesuffix(".ipynb") for prefix in only)
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise ReportError(f"{asked}{prefix}: no such notebook in {folder}; there are: {', '.join(names)}")
    return [name for name in names if not prefixes or name.startswith(prefixes)]
