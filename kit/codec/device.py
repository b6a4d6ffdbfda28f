"""A compressed model on the device: tiles stay in device memory; each matrix is decoded into one buffer when used."""

from itertools import accumulate, pairwise

import torch

from kit.codec.container import CompressedFile
from kit.codec.triton import start, upload, verify
from kit.cuda.linear import apply
from kit.errors import CodecError
from kit.model.device import DeviceTransformer
from kit.model.device_weights import DeviceWeights


class TileWeights(DeviceWeights):
    """DeviceWeights of a CompressedFile. ``coded``: name of a matrix -> (tiles, scales) on the device.

    CodecError for matrices that are coded as BF16 or are experts: these have no decoder on a device.
    """

    def __init__(self, file: CompressedFile, trace=None):
        super().__init__(file, trace=trace)
        wrong = next((name for name in file.matrices if file.coding != "int8" or "[" in name), None)
        if wrong:
            raise CodecError(f"{file.path}: {wrong}: only dense INT8 matrices decode on a device; run this model on the CPU")
        self.coded = {
            name: (upload(matrix.tiles), torch.tensor(matrix.beside, device=self.device))
            for name, matrix in file.matrices.items()
        }
        tiles = [len(loaded.tiles) for loaded, _ in self.coded.values()]
        ends = list(accumulate(tiles, initial=0))
        self._place = dict(zip(self.coded, pairwise(ends), strict=True))
        self._found = torch.zeros((2, ends[-1]), dtype=torch.uint32, device=self.device)
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
        return start(loaded, out, self._found[:, first:last])[0]

    def verify(self) -> None:
        """Wait for the device and check all tiles; CodecError names the first that failed, and the reason."""
        found = self._found.cpu().numpy()
        for name, (first, last) in self._place.items():
            verify(self.coded[name][0].tiles, found[:, first:last])


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
