"""Files that appear whole or not at all, and YAML that a person wrote."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import yaml

from kit.errors import GGUFError, KitError, ReportError
from kit.units import format_bytes


@contextmanager
def replacing(path: Path, size: int = 0, error: type[KitError] = GGUFError, remedy: str = "") -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its place when the body succeeds, and vanishes when it does not.

    ``size``: bytes that it will have, as far as known. Raises ``error``, which ends with ``remedy``.
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


def read_yaml(path: Path):
    """What a YAML file says. ReportError names the file."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8 or no such date; nested too deep
        raise ReportError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
