"""The files that benchmarks time: no other module of benchmarks fetches or generates one (a test reads them for it).

So all sides of a benchmark read a file in one state, by pages of 2 MiB where the system gives them, and each record says how
its files lay in the page cache and how fast their maps and memory read at the start and at the end.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kit
from kit.gguf import large_pages, pagecache, trained
from kit.gguf.mapped import MappedFile
from kit.lab.measuring import pages
from kit.lab.synthetic import write
from kit.system import advise, memory_available

STATES = ("large", "small")
_PIECE = 4096  # bytes of one write of a file that is to have small pages
_first: dict[Path, dict[str, float]] = {}  # of each file since ``taken``: its state before the times


def fetch(name: str) -> Path:
    """As kit.gguf.trained.fetch."""
    return _looked_at(trained.fetch(name))


def cached_model(*what, **how) -> Path:
    """As kit.lab.synthetic.write.cached_model."""
    return _looked_at(write.cached_model(*what, **how))


@contextmanager
def lying(path: Path, pages: str) -> Iterator[Path]:
    """The path of a file in one of STATES: the file itself by large pages, or a copy by small ones, until the ``with`` ends."""
    if pages == "large":
        yield path
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = Path(folder, path.name)
        with path.open("rb") as source, copy.open("wb", buffering=0) as target:
            shutil.copyfileobj(source, target, _PIECE)
            os.fsync(target.fileno())  # it is not written while it is timed
        yield copy


def state(path: Path) -> dict[str, float]:
    """Share of a file that is mapped by pages of 2 MiB (``by 2 MiB``), GB/s of its map and of memory now; of one that is not
    all in memory its share that is; {} of a file that is too small to tell."""
    if (held := pagecache.resident_fraction(path)) < 0.99:
        return {"in memory": held}
    with kit.open(path, pages="small") as file:
        found = pages.speed(file)
    return {"by 2 MiB": found.large, "map GB/s": found.gbps, "memory GB/s": found.memory_gbps} if found else {}


def taken() -> dict[str, list[dict[str, float]]]:
    """The states of all files since the last call: name -> [before, now]."""
    found = {path.name: [before, state(path)] for path, before in _first.items() if path.exists()}
    _first.clear()
    return found


def _looked_at(path: Path) -> Path:
    if path not in _first and path.stat().st_size >= large_pages.LEAST:
        _enlarge(path)
        _first[path] = state(path)
    return path


def _enlarge(path: Path) -> None:
    """All of a file that fits in half the free memory by pages of 2 MiB, where the system gives them."""
    if path.stat().st_size < memory_available() // 2:
        data = MappedFile(path).data
        large = large_pages.share(data) if advise(data, "populate") else None
        if large is not None and large < large_pages.FEW and advise(data, "unmap"):
            with path.open("rb", buffering=0) as handle:
                large_pages.read_again(data, handle)
