"""Notes of what a notebook's process is doing, in files that other processes can read even after it has died."""

import mmap
import os
from contextlib import contextmanager
from pathlib import Path

_BYTES = 4096


class Note:
    """One line of text in the file named by the environment variable ``name``; without that variable, no file."""

    def __init__(self, name: str):
        self.text, self._page = "", None
        if path := os.environ.get(name):
            with open(path, "a+b") as handle:
                handle.truncate(_BYTES)
                self._page = mmap.mmap(handle.fileno(), _BYTES)

    def __bool__(self):
        return self._page is not None

    def write(self, text: str) -> None:
        """Replace the line (a copy into a memory map)."""
        self.text = text
        if self._page is not None:
            self._page[:] = text.encode()[:_BYTES].ljust(_BYTES)


def read(path: Path) -> str:
    """The line that a Note of another process wrote to ``path``; "" when there is none: no file, or NULs before the first."""
    return path.read_bytes().decode(errors="replace").strip(" \0\n") if path.exists() else ""


_doing = Note("KIT_DOING")


@contextmanager
def doing(what: str):
    """Note ``what`` until the ``with`` ends; the progress line of `kit reproduce` shows it."""
    before = _doing.text
    _doing.write(what)
    try:
        yield
    finally:
        _doing.write(before)


@contextmanager
def compilation():
    """Yields a list whose sum, after the ``with``, is the seconds that Numba compiled within it."""
    from numba.core import event

    taken = []
    with event.install_timer("numba:compile", taken.append):
        yield taken


def tell_compilation() -> None:
    """Note "compiling" whenever Numba compiles, if the note is written to a file."""
    if not _doing:
        return
    from numba.core import event

    running = []

    class Compilation(event.Listener):
        def on_start(self, event):
            running.append(doing("compiling"))
            running[-1].__enter__()

        def on_end(self, event):
            running.pop().__exit__(None, None, None)

    event.register("numba:compile", Compilation())
