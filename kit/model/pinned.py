"""Blocks of which some stay in memory, while the others come from the disk at every use, past the page cache.

The page cache forgets like an LRU, which keeps nothing of a file that is read in order and larger than it. What is held here
stays.
"""

import mmap
import os

import numpy as np

from kit.errors import GGUFError
from kit.gguf.names import blocks_of, find_tensor, layer_of
from kit.model.weights import Weights
from kit.system import STEP, open_past
from kit.system.rows import PAGE


class PinnedBlocks(Weights):
    """kit.Weights in ``room`` bytes: the vectors, of the matrices those that fit, in the order of the file, and one of the
    others while it is in use. A row of the embedding comes through the page cache. One thread may use it.

    ``held``: the blocks that stay, by name. GGUFError where the system has no way past its page cache.
    """

    mapped = False

    def __init__(self, file, room: int, trace=None):
        super().__init__(file, trace=trace)
        if file.byteorder == "big":
            raise GGUFError(f"{file.path}: direct reads need a little-endian file, but this one is big-endian: convert it")
        try:
            self._files = [os.fdopen(open_past(path), "rb", buffering=0) for path in file.paths]
        except OSError as error:
            raise GGUFError(f"{file.path}: direct reads (past the page cache) fail: {error.strerror or error}") from None
        rows_alone = "token_embd.weight" if "output.weight" in file.tensors else None
        used = [info for name, info in file.tensors.items() if info.elements and name != rows_alone]
        least = max(info.nbytes // (info.shape[0] if len(info.shape) == 3 else 1) for info in used)
        if sum(info.nbytes for info in used) <= room:
            least = 0
        self._room, self.held, left = mmap.mmap(-1, least + 2 * PAGE), {}, room - least
        for info in sorted(used, key=lambda info: len(info.shape) > 1):
            if len(info.shape) == 1 or info.nbytes <= left:
                left -= info.nbytes
                own = mmap.mmap(-1, info.nbytes + 2 * PAGE)
                self.held[info.name] = self._read(info, 0, info.nbytes, own).reshape(file.blocks(info.name).shape)

    def blocks(self, name: str) -> np.ndarray:
        """The tensor's blocks; those of a matrix that is not held last until the next one is asked for."""
        stack, expert = find_tensor(self.file, name)
        if stack in self.held:
            return self.held[stack] if expert is None else self.held[stack][expert]
        lies = blocks_of(self.file, name)  # an array over the map, whose pages nothing reads
        with self.trace.span("read", name, layer_of(name), lies.nbytes):
            data = self._read(self.file.tensors[stack], (expert or 0) * lies.nbytes, lies.nbytes, self._room)
            return data.reshape(lies.shape)

    def _read(self, info, start: int, nbytes: int, room: mmap.mmap) -> np.ndarray:
        file, start = self._files[info.part], info.offset + start
        at = first = start // PAGE * PAGE
        with memoryview(room) as view:
            while at < start + nbytes:
                stop = min(at - first + STEP, -(-(start + nbytes - first) // PAGE) * PAGE)
                count = os.preadv(file.fileno(), [view[at - first : stop]], at)
                if not count:
                    raise GGUFError(f"{self.file.path}: became shorter while {info.name!r} was read")
                at += count
        return np.frombuffer(room, np.uint8, nbytes, start - first)
