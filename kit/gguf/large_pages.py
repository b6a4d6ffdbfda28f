"""A mapped file that the page cache holds by pages of 4 KiB reads more slowly than by pages of 2 MiB: read it again.

A file comes into the page cache by small pages when a program writes it in small pieces; what is read from the disk under
MADV_HUGEPAGE comes by large ones, on file systems with large folios (seen on Linux 6.18: ext4 and XFS). Each piece is taken
out of the page tables, dropped from the page cache and read again. No address changes, and no right is needed; pages that
are not yet written, or that another process maps, stay as they are.
"""

import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from kit.gguf.mapped import MappedFile
from kit.system import advise, forget, memory_available, page_sizes, resident
from kit.units import format_bytes, format_seconds

LARGE = 2 << 20
PIECE = 32 << 20  # bytes that are dropped and read again at once
LEAST = 64 << 20  # bytes of a file that are worth it
FEW = 0.9  # a file with a larger share of large pages is left alone
TRIES = 4  # the last of which only looks
LOST = 1  # pieces that may stay as they are, beyond those that gained
SLOWEST = 0.2e9  # bytes per second, while tokens take all cores: a slower disk would hold them up for longer than they gain


def share(data: np.ndarray) -> float | None:
    """Share of a mapped file that this process's page tables hold by pages of 2 MiB, of what they hold; None: not known."""
    held, large = page_sizes(data)
    return large / held if held else None


def _gains(data: np.ndarray) -> bool:
    large = share(data) if len(data) >= LEAST else None
    return large is not None and large < FEW and resident(data) > 0.99 and len(data) < memory_available()


class ReadingAgain(threading.Thread):
    """Reads mapped files again. ``told``: a line for each that is done; the span "large pages" in the trace has the same."""

    def __init__(self, files: Sequence[MappedFile], trace):
        super().__init__(name="kit-large-pages", daemon=True)
        self.told: list[str] = []
        self._trace = trace
        # a descriptor of its own: the file may be closed meanwhile
        self._files = [(file.path.name, file.data, os.fdopen(os.dup(file.descriptor), "rb", buffering=0)) for file in files]

    def run(self):
        for name, data, handle in self._files:
            with handle:
                start, before = time.perf_counter_ns(), share(data) or 0.0
                nbytes, outcome = read_again(data, handle, SLOWEST)
                end = time.perf_counter_ns()
            self._trace.add("large pages", start, end, name, token=-1, nbytes=nbytes, outcome=outcome)
            took = f"{format_bytes(nbytes)} read again in {format_seconds((end - start) / 1e9)}"
            self.told.append(f"{name}: {before:.0%} of it was in 2 MiB pages; {took}: {outcome}")


def begin(files: Sequence[MappedFile], trace) -> ReadingAgain | None:
    """Read files again in a thread, where they are wholly in the page cache and by small pages; None where none is."""
    files = [file for file in files if _gains(file.data)]
    if not files:
        return None
    thread = ReadingAgain(files, trace)
    thread.start()
    return thread


def read_again(data: np.ndarray, handle, slowest: float = 0.0) -> tuple[int, str]:
    """(bytes that were read again, "done" or why it stopped) of a whole mapped file and its open handle.

    A piece of large pages is left alone. It goes from the end to the start: a token meets the piece that is missing once. A
    token that reads a piece between two calls keeps its small pages: then it is tried again. Where most pieces stay as they
    are, as in a file that another process maps, it stops: each try takes time from the tokens.
    """
    done, gained, size = 0, 0, max(PIECE, len(data) // 64 // LARGE * LARGE)  # of a large file it takes long to ask
    for start in range((len(data) - 1) // size * size, -1, -size):
        piece = data[start : start + size]
        for attempt in range(TRIES):
            began, held = time.perf_counter(), page_sizes(data)[1]
            unmapped, left = advise(piece, "unmap"), page_sizes(data)[1]
            large = held - left >= FEW * (len(piece) // LARGE * LARGE)
            if not (unmapped and (large or forget(handle, start, len(piece))) and advise(piece, "populate")):
                return done, "this system cannot, or the file has become shorter"
            if large:
                gained += len(piece) == size and attempt > 0
                break
            done += len(piece) * (attempt == 0)
            if len(piece) == size and size / (time.perf_counter() - began) < slowest:
                return done, f"slower than {slowest / 1e9} GB/s, so the rest stays as it is"
        gained -= len(piece) == size and not large
        if gained < -LOST:
            break
    return done, "done" if gained >= 0 else "this file system gives no large pages, or another process maps the file"
