"""A memory-mapped file that detects changes made after it was mapped.

If the file shrinks, reading a page beyond its new end kills the process (SIGBUS), so size and modification time are
compared before each tensor is read. What happens in the middle of a read, also of a disk or network file system that fails,
still kills it: a command of the kit then ends with one line (kit.system.lost), and a notebook's page has the tensor that was
read last, from the file that ``KIT_READING`` names.
"""

import mmap
import os
import stat
import weakref
from pathlib import Path

import numpy as np

from kit.errors import GGUFError
from kit.gguf import foreign
from kit.system import STEP, advise, lost, memory_available, reserve
from kit.system.note import Note
from kit.units import format_bytes


class MappedFile:
    """``data``: the whole file as a read-only uint8 array; it stays valid as long as any view of it exists.

    ``pages``: see kit.open.
    """

    def __init__(self, path: Path, pages: str = "large"):
        self.path = path
        try:
            status = path.stat()  # before open, which would block on a named pipe
            if not stat.S_ISREG(status.st_mode):
                raise GGUFError(f"{path}: is {'a folder' if path.is_dir() else 'not a regular file'}; name a GGUF file")
            if status.st_size == 0:
                raise GGUFError(f"{path}: byte 0: the file is empty")
            with path.open("rb") as handle:
                if pages == "copied":
                    self.data = _copied(handle, status.st_size)
                else:
                    self.data = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
                if pages == "large":
                    advise(self.data, "large")
                self.descriptor = os.dup(handle.fileno())
            self._seen = self._stamp()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            hub = foreign.repository(str(path)) if isinstance(error, FileNotFoundError) else ""
            raise GGUFError(f"{path}: cannot be opened: {getattr(error, 'strerror', error)}{hub}") from None
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self.descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self, tensor: str) -> None:
        """Call before reading ``tensor``: GGUFError when the file has changed since it was mapped."""
        now = self._stamp()
        if now != self._seen:
            (before, _), (size, _) = self._seen, now
            how = f"from {before:,} to {size:,} bytes" if size != before else "in place"
            raise GGUFError(f"{self.path}: was changed {how} while it was open: {tensor!r} was not read; open it again")
        lost.watch(self.path, self._seen)
        _reading.write(f"{tensor!r} of {self.path}" if _reading else "")


def _copied(handle, size: int) -> np.ndarray:
    """A file's bytes in memory of the process's own, by 2 MiB pages where the system has them."""
    if size > memory_available():
        raise GGUFError(
            f"{handle.name}: a copy takes {format_bytes(size)} and {format_bytes(memory_available())} are free; "
            'leave out pages="copied"'
        )
    room = reserve(size)
    data = np.frombuffer(room, np.uint8)
    advise(data, "large")
    for start in range(0, size, STEP):
        if handle.readinto(memoryview(room)[start : start + STEP]) == 0:
            raise GGUFError(f"{handle.name}: became shorter while it was copied; open it again")
    data.flags.writeable = False
    return data


_reading = Note("KIT_READING")
