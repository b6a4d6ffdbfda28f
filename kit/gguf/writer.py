"""Write GGUF files: a file that appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kit.errors import GGUFError
from kit.units import format_bytes


@contextmanager
def replacing(path: Path, size: int) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its place when the body succeeds, and vanishes when it does not."""
    if path.is_dir():
        raise GGUFError(f"{path}: cannot be written: it is a folder, expected the name of a file")
    if not path.parent.is_dir():
        raise GGUFError(f"{path}: cannot be written: there is no folder {path.parent}")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise GGUFError(
                f"{path}: needs {format_bytes(size)}, but {path.parent} has {format_bytes(free)} free; "
                "ask for fewer layers or write elsewhere"
            )
        with partial.open("wb", buffering=1 << 20) as handle:
            yield handle
        os.replace(partial, path)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
