"""Writing files that appear whole or not at all, and reading YAML."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import yaml

from kit.errors import GGUFError, KitError, ReportError
from kit.units import format_bytes


@contextmanager
def replacing(path: Path, size: int = 0, error: type[KitError] = GGUFError, remedy: str = "") -> Iterator[BinaryIO]:
    """A new binary file that replaces ``path`` when the ``with`` body succeeds, and is deleted when it fails.

    ``size``: expected bytes, 0 if unknown. Raises ``error``, whose message ends with ``remedy``.
    """
    path = Path(path)
    if path.is_dir():
        raise error(f"{path}: cannot be written: it is a folder, expected the name of a file")
    if not path.parent.is_dir():
        raise error(f"{path}: cannot be written: there is no folder {path.parent}")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise error(
                f"{path}: needs {format_bytes(size)}, but {path.parent} has {format_bytes(free)} free; "
                "ask for fewer layers or write elsewhere"
            )
        with partial.open("wb", buffering=1 << 20) as handle:
            yield handle
        os.replace(partial, path)
    except OSError as problem:
        raise error(f"{path}: cannot be written: {problem.strerror or problem}{remedy}") from None
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path, inputs: Iterable[Path], error: type[KitError]) -> None:
    """``error`` when ``path`` is one of the ``inputs``, or is a link to it, or lies in it (an input may be a folder)."""
    path = Path(path)
    for source in map(Path, inputs):
        same = path.exists() and path.samefile(source)
        if same or (source.is_dir() and source.resolve() in path.resolve().parents):
            what = "is the input itself" if same else "lies in the input"
            raise error(f"{path}: {what}, {source}, which it would change: write elsewhere")


def read_yaml(path: Path):
    """The content of a YAML file as plain data. ReportError names the file."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or an impossible date
        raise ReportError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
