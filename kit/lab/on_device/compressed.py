"""Compressed matrices on the device: of a model, whose tiles stay in device memory, or copied there from the host at every use.

Of a model each matrix is decoded into one buffer when used. Copying (``Streamed``) and decoding overlap: while one matrix is
used, the next one is copied to the other of two buffers on its own CUDA stream. A pass takes as long as the slower of the two;
where that is the bus, compression speeds it up by its ratio.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from kit.codec.container import CompressedFile
from kit.codec.tiles import Tiles, streams_of
from kit.codec.triton import DeviceTiles, check, start, upload
from kit.cuda.device import DEVICE, pinned
from kit.cuda.linear import apply
from kit.cuda.tile_decoder import index
from kit.errors import CodecError
from kit.lab.on_device.device_weights import DeviceWeights
from kit.lab.on_device.on_gpu import DeviceTransformer


class TileWeights(DeviceWeights):
    """DeviceWeights of a CompressedFile. ``coded``: name of a matrix -> (tiles, scales) on the device.

    CodecError for matrices that are coded as BF16 or are experts: these have no decoder on a device.
    """

    def __init__(self, file: CompressedFile):
        super().__init__(file)
        wrong = next((name for name in file.matrices if file.coding != "int8" or "[" in name), None)
        if wrong:
            raise CodecError(f"{file.path}: {wrong}: a GPU can decode only dense INT8 matrices; run this model on the CPU")
        self.coded = {
            name: (upload(matrix.tiles), torch.tensor(matrix.beside, dtype=torch.float32, device=self.device))
            for name, matrix in file.matrices.items()
        }
        tiles = [len(loaded.tiles) for loaded, _ in self.coded.values()]
        ends = list(accumulate(tiles, initial=0))
        self._place = dict(zip(self.coded, pairwise(ends), strict=True))
        self._outcome = torch.zeros((2, ends[-1]), dtype=torch.uint32, device=self.device)
        largest = max(rows * columns for rows, columns in (loaded.tiles.shape for loaded, _ in self.coded.values()))
        self._room = torch.empty(largest, dtype=torch.int8, device=self.device)

    @property
    def held_bytes(self) -> int:
        """Bytes on the device: tiles, scales, tensors that are not coded, and the buffer for the matrix in use."""
        coded = sum(loaded.nbytes + scales.nbytes for loaded, scales in self.coded.values())
        return coded + self._room.nbytes + self.store.stats.resident_bytes

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor as float32 on the device."""
        if name not in self.coded:
            return super().__getitem__(name)
        return self.unpacked(name) * self.coded[name][1][:, None]

    def resident(self, names):
        """The blocks of ``names``, without the coded ones; see DeviceWeights."""
        return super().resident(name for name in names if name not in self.coded)

    def unpacked(self, name: str) -> torch.Tensor:
        """The int8 values (out, in) of a coded matrix, valid until the next is decoded, and only if ``verify`` succeeds."""
        loaded, _ = self.coded[name]
        rows, columns = loaded.tiles.shape
        first, last = self._place[name]
        out = self._room[: rows * columns].view(rows, columns)
        return start(loaded, out, self._outcome[:, first:last])[0]

    def verify(self) -> None:
        """Wait for the device and check all tiles; CodecError names the first that failed, and the reason."""
        outcome = self._outcome.cpu().numpy()
        for name, (first, last) in self._place.items():
            check(self.coded[name][0].tiles, outcome[:, first:last])


class CompressedTransformer(DeviceTransformer):
    """DeviceTransformer over TileWeights. Every pass decodes every matrix and raises CodecError if tiles are damaged."""

    def _forward(self, tokens, cache, wanted):
        logits = super()._forward(tokens, cache, wanted)
        self.weights.verify()
        return logits

    def rows(self, name, index):
        if name not in self.weights.coded:
            return super().rows(name, index)
        return self.weights[name].index_select(0, index)

    def product(self, name, input, add_to, factor):
        if name not in self.weights.coded:
            return super().product(name, input, add_to, factor)
        y = apply(self.weights.unpacked(name).view(torch.uint8), "I8", input).mul_(self.weights.coded[name][1])
        return y if add_to is None else add_to.add_(y, alpha=factor)


class Waiting(NamedTuple):
    """A matrix in pinned host memory. ``open`` makes it of its bytes on the device."""

    host: torch.Tensor
    open: Callable[[torch.Tensor], torch.Tensor]


def _plain(matrix: np.ndarray) -> Waiting:
    host = pinned(np.ascontiguousarray(matrix).view(np.uint8).reshape(-1))
    return Waiting(host, lambda arrived: arrived.view(torch.int8).view(matrix.shape))


def _coded(tiles: Tiles, outcome: torch.Tensor) -> Waiting:
    """Tiles whose streams are copied, while index and tables stay on the device. ``outcome``: see kit.codec.triton.start, which
    launches the decoder without waiting for it."""
    streams = streams_of(tiles)
    on_device, units = index(streams), getattr(torch, streams.units.dtype.name)

    def decoded(arrived):
        return start(DeviceTiles(tiles, arrived.view(units), on_device), outcome=outcome)[0]

    return Waiting(pinned(streams.units.view(np.uint8)), decoded)


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
        self._outcome = torch.zeros((2, sum(map(len, self._tiles))), dtype=torch.uint32, device=DEVICE)
        outcomes = iter(self._a_matrix(self._outcome))
        self.matrices = {
            name: _coded(matrix, next(outcomes)) if isinstance(matrix, Tiles) else _plain(matrix)
            for name, matrix in matrices.items()
        }
        self._copying = torch.cuda.Stream() if DEVICE == "cuda" else None

    @property
    def nbytes(self) -> int:
        """Bytes copied to the device in a pass."""
        return sum(matrix.host.nbytes for matrix in self.matrices.values())

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        with closing(self._arriving()) as arriving:
            for (name, matrix), arrived in zip(self.matrices.items(), arriving, strict=True):
                yield name, matrix.open(arrived)
        for tiles, outcome in zip(self._tiles, self._a_matrix(self._outcome.cpu()), strict=True):
            check(tiles, outcome.numpy())

    def _arriving(self) -> Iterator[torch.Tensor]:
        """The bytes of each matrix on the device, in order, until the next are asked for: two buffers take turns."""
        hosts, copying = [matrix.host for matrix in self.matrices.values()], self._copying
        largest = max((host.numel() for host in hosts), default=0)
        buffers = [torch.empty(largest, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
        places = [buffers[number % 2][: host.numel()] for number, host in enumerate(hosts)]
        if copying is None:  # no device: copies block
            yield from (place.copy_(host) for place, host in zip(places, hosts, strict=True))
            return
        computing = torch.cuda.current_stream()
        arrived, released = ([torch.cuda.Event(), torch.cuda.Event()] for _ in range(2))
        copying.wait_stream(computing)  # the buffers' memory may still be in use there

        def send(number):
            if number < len(hosts):
                with torch.cuda.stream(copying):
                    copying.wait_event(released[number % 2])
                    places[number].copy_(hosts[number], non_blocking=True)
                    arrived[number % 2].record()

        try:
            send(0)
            for number in range(len(hosts)):
                send(number + 1)
                computing.wait_event(arrived[number % 2])  # kernels launched from now on wait for the copy
                yield places[number]
                released[number % 2].record(computing)  # after the kernels launched so far
        finally:
            computing.wait_stream(copying)  # the buffers' memory is kept until the copies in progress have ended

    def _a_matrix(self, outcome):
        return outcome.split([len(tiles) for tiles in self._tiles], dim=1)
