"""What the results of a notebook follow from besides its cells: the modules of the kit that it imports, data, libraries."""

import ast
import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import kit
from kit.lab.measuring import machine
from kit.system import paths

LIBRARIES = ("numpy", "torch", "numba", "llvmlite", "gguf", "pandas", "triton")
_DATA = ("*.yaml", "*.csv", "*.csv.gz")


def digest(code: Iterable[str], *facts) -> str:
    """Of the source of cells, the modules that they use in turn, the kit's data and the libraries, and of ``facts``."""
    code = list(code)
    total = hashlib.sha256(repr((code, facts, _surroundings())).encode())
    for path in sorted(modules(code)):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def of_package() -> str:
    """A digest of all of the kit's code: two machines with the same one compute the same."""
    total = hashlib.sha256()
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        total.update(path.relative_to(paths.PACKAGE).as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


def modules(code: Iterable[str]) -> set[Path]:
    """Files of the kit's modules that source imports, at its top, lazily, as ``kit.name`` or by a name in a string, and what
    those import in turn. Importing a module runs the packages that it lies in."""
    waiting = {name for text in code for name in _named(_python(text))}
    files: dict[str, Path] = {"kit": paths.PACKAGE / "__init__.py"}  # its table of names is no use of them
    while waiting:
        parts = waiting.pop().split(".")
        for stop in range(2, len(parts) + 1):
            name, path = ".".join(parts[:stop]), _file(parts[1:stop])
            if path and name not in files:
                files[name] = path
                waiting |= _of_file(path)
    return set(files.values())


def _file(parts: list[str]) -> Path | None:
    place = paths.PACKAGE.joinpath(*parts)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@cache
def _of_file(path: Path) -> set[str]:
    return _named(path.read_text(encoding="utf-8"))


def _named(source: str) -> set[str]:
    """Dotted names of ``kit`` in a piece of source; some name a function of a module, some nothing."""
    names = set()
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the cell fails when it runs
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kit":
            names.add(kit._HOME.get(node.attr) or kit._ALIASES.get(node.attr) or f"kit.{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return {name for name in names if name.startswith("kit.")}


def _python(text: str) -> str:
    """A cell without IPython's own lines, which import nothing."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines())


@cache
def _surroundings() -> tuple:
    """Python, libraries, and digests of the data files."""
    data = paths.data_file("claims.yaml").parent
    files = sorted(path for pattern in _DATA for path in data.rglob(pattern) if "models" not in path.parts)
    digests = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return platform.python_version(), *((name, machine.library_version(name)) for name in LIBRARIES), *digests
