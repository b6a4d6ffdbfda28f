"""INT8 matrices in pinned host memory that are copied to the device at every use, compressed or plain.

Copying and decoding overlap: while one matrix is used, the next one is copied to the other of two buffers on its own CUDA
stream. A pass takes as long as the slower of the two; where that is the bus, compression speeds it up by its ratio.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import numpy as np
import torch

from kit.codec import triton as codec
from kit.codec.streams import streams_of
from kit.codec.tiles import Tiles
from kit.cuda.device import DEVICE, INTERPRETED, pinned
from kit.errors import CodecError


class Plain:
    """An int8 matrix (rows, columns) that is copied uncompressed."""

    def __init__(self, matrix: np.ndarray):
        self.host, self.shape = pinned(np.ascontiguousarray(matrix).view(np.uint8).reshape(-1)), matrix.shape

    def open(self, arrived: torch.Tensor) -> torch.Tensor:
        """The matrix, from its bytes on the device."""
        return arrived.view(torch.int8).view(self.shape)


class Coded:
    """Tiles whose streams are copied, while index and tables stay on the device. ``found``: see codec.triton.start."""

    def __init__(self, tiles: Tiles, found: torch.Tensor):
        streams = streams_of(tiles)
        self.tiles, self.found, self.host = tiles, found, pinned(streams.units.view(np.uint8))
        self.index, self._units = codec.index_on_device(streams), getattr(torch, streams.units.dtype.name)

    def open(self, arrived: torch.Tensor) -> torch.Tensor:
        """The matrix, by a decoder launched on the streams on the device, without waiting for it."""
        loaded = codec.DeviceTiles(self.tiles, arrived.view(self._units), *self.index)
        return codec.start(loaded, found=self.found)[0]


class Streamed:
    """``for name, matrix in Streamed(matrices)``: int8 matrices (rows, columns) on the device, in order; repeatable.

    ``matrices`` maps names to Tiles or to int8 arrays. Use each matrix on the CUDA stream that was current when the pass
    began, and only until the next one is requested. Decoded tiles are verified at the end of the pass, so results are
    valid only after it: CodecError names the tensor, the tile and the reason.
    """

    def __init__(self, matrices: Mapping[str, Tiles | np.ndarray]):
        for name, matrix in matrices.items():
            if not isinstance(matrix, Tiles) and (matrix.dtype != np.int8 or matrix.ndim != 2):
                raise CodecError(f"{name}: {matrix.ndim}-D {matrix.dtype}, expected an int8 matrix or its tiles")
        self._tiles = [matrix for matrix in matrices.values() if isinstance(matrix, Tiles)]
        self._found = torch.zeros((2, sum(map(len, self._tiles))), dtype=torch.uint32, device=DEVICE)
        found = iter(self._a_matrix(self._found))
        self.matrices = {
            name: Coded(matrix, next(found)) if isinstance(matrix, Tiles) else Plain(matrix)
            for name, matrix in matrices.items()
        }
        self._copying = None if INTERPRETED else torch.cuda.Stream()

    @property
    def nbytes(self) -> int:
        """Bytes copied to the device in a pass."""
        return sum(matrix.host.nbytes for matrix in self.matrices.values())

    @property
    def resident(self) -> int:
        """Bytes on the device between passes."""
        coded = (matrix for matrix in self.matrices.values() if isinstance(matrix, Coded))
        return self._found.nbytes + sum(part.nbytes for matrix in coded for part in matrix.index)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        bus = _Bus([matrix.host for matrix in self.matrices.values()], self._copying)
        try:
            bus.send(0)
            for number, (name, matrix) in enumerate(self.matrices.items()):
                bus.send(number + 1)
                yield name, matrix.open(bus.take(number))
                bus.release(number)
        finally:
            bus.close()
        for tiles, found in zip(self._tiles, self._a_matrix(self._found.cpu()), strict=True):
            codec.verify(tiles, found.numpy())

    def _a_matrix(self, found):
        return found.split([len(tiles) for tiles in self._tiles], dim=1)


class _Bus:
    """Copies of one pass, through two buffers. ``copying``: the CUDA stream of copies; None (no device): copies block."""

    def __init__(self, hosts: list[torch.Tensor], copying):
        self.hosts, self.copying = hosts, copying
        largest = max((host.numel() for host in hosts), default=0)
        self.buffers = [torch.empty(largest, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
        if copying:
            self.computing = torch.cuda.current_stream()
            self.arrived, self.released = ([torch.cuda.Event(), torch.cuda.Event()] for _ in range(2))
            copying.wait_stream(self.computing)  # the buffers' memory may still be in use there

    def send(self, number: int) -> None:
        """Start the copy of matrix ``number``, if it exists, after its buffer has been released."""
        if number >= len(self.hosts):
            return
        with torch.cuda.stream(self.copying) if self.copying else nullcontext():
            if self.copying:
                self.copying.wait_event(self.released[number % 2])
            self._buffer(number).copy_(self.hosts[number], non_blocking=True)
            if self.copying:
                self.arrived[number % 2].record()

    def take(self, number: int) -> torch.Tensor:
        """The bytes of matrix ``number`` on the device; kernels launched from now on wait for them."""
        if self.copying:
            self.computing.wait_event(self.arrived[number % 2])
        return self._buffer(number)

    def release(self, number: int) -> None:
        """Release the buffer of matrix ``number``, after the kernels launched so far."""
        if self.copying:
            self.released[number % 2].record(self.computing)

    def close(self) -> None:
        """Keep the buffers' memory until the copies in progress have ended."""
        if self.copying:
            self.computing.wait_stream(self.copying)

    def _buffer(self, number):
        return self.buffers[number % 2][: self.hosts[number].numel()]
