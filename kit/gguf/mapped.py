"""A file mapped into memory that notices when somebody changes it under the map.

A page that lies beyond the end of a file that shrank cannot be read: the process dies of SIGBUS. So size and time of
change are compared before a tensor is read. What no check can see (a network file system or a disk that loses a page
in the middle) still ends the process; for that, ``KIT_READING`` names a file in which the last tensor read is noted.
"""

import mmap
import os
import stat
import weakref
from pathlib import Path

import numpy as np

from kit.errors import GGUFError
from kit.lab.note import Note


class MappedFile:
    """``data`` is the whole file, a read-only uint8 view that lives as long as anything looks at it."""

    def __init__(self, path: Path):
        self.path = path
        try:
            status = path.stat()  # before open, which would wait for the other end of a pipe
            if not stat.S_ISREG(status.st_mode):
                raise GGUFError(f"{path}: is {'a folder' if path.is_dir() else 'no regular file'}; name a GGUF file")
            if status.st_size == 0:
                raise GGUFError(f"{path}: byte 0: the file is empty")
            with path.open("rb") as handle:
                self.data = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
                self._descriptor = os.dup(handle.fileno())
            self._seen = self._stamp()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise GGUFError(f"{path}: cannot be opened: {getattr(error, 'strerror', error)}") from None
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self, tensor: str) -> None:
        """Call before reading ``tensor``. GGUFError when the file is not as it was when it was mapped."""
        now = self._stamp()
        if now != self._seen:
            (before, _), (size, _) = self._seen, now
            how = f"from {before:,} to {size:,} bytes" if size != before else "in place"
            raise GGUFError(f"{self.path}: was changed {how} while it was open: {tensor!r} was not read; open it again")
        _reading.write(f"{tensor!r} of {self.path}" if _reading else "")


_reading = Note("KIT_READING")
