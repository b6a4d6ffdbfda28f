"""A compressed model in one file: a GGUF (version 3; kit writes little endian) with coded tiles instead of weights.

Metadata: that of the source, byte for byte (without ``split.*``), and

    kit.codec.version    uint32         1
    kit.codec.coding     string         "int8" (quantized) or "bf16" (lossless)
    kit.codec.crc32      int32 array    CRC-32 of every tensor's bytes in little-endian order, in file order

Tensors: a linear layer's matrix NAME becomes two, a stack of experts one pair each as NAME[0], NAME[1], ...

    int8    NAME.tiles      I8 (bytes)           kit.codec.tiles in serial form: the quantized matrix
            NAME.scales     F32 (rows)           weight = scale of the row * value
    bf16    NAME.tiles      I8 (bytes)           the exponents
            NAME.rest       I8 (rows, columns)   sign << 7 | mantissa

All other tensors (norms, biases, an embedding that is not the output matrix too) are those of the source. Any GGUF reader
can list the file and read the model's tokenizer and hyperparameters.
"""

from contextlib import AbstractContextManager

import numpy as np

from kit.codec.codings import CODINGS, Coded
from kit.codec.tiles import Tiles
from kit.errors import CodecError
from kit.gguf import reader
from kit.gguf.foreign import TILES
from kit.gguf.reader import TensorInfo
from kit.shown import Shown

VERSION = 1


class CompressedFile(AbstractContextManager, Shown):
    """An open compressed model, used like a GGUFFile.

    ``tensors``: the model's names and shapes (qtype "int8 tiles" or "bf16 tiles" for coded ones, and their
    bytes). ``matrices``: name of a coded matrix (NAME, or NAME[expert]) -> Coded. Opening reads headers and
    indices, no stream.
    """

    def __init__(self, path):
        self.gguf = reader.open(path)
        self.path, self.metadata, self.architecture = self.gguf.path, self.gguf.metadata, self.gguf.architecture
        self.sizes = self.gguf.sizes
        self.paths, self.version, self.alignment, self.byteorder = self.gguf.paths, 3, self.gguf.alignment, self.gguf.byteorder
        version, self.coding = self.metadata.get("kit.codec.version"), self.metadata.get("kit.codec.coding")
        if version is None:
            raise CodecError(f"{path}: is not a compressed model: `kit compress {path} -o OUT` writes one")
        if version != VERSION or self.coding not in CODINGS:
            raise CodecError(f"{path}: version {version}, coding {self.coding!r}; this kit reads version {VERSION}")
        self.matrices: dict[str, Coded] = {}
        self.tensors: dict[str, TensorInfo] = {}
        for info in self.gguf.tensors.values():
            name, _, part = info.name.rpartition(".")
            if part == "tiles":
                self._add_matrix(name, info)
            elif part not in ("scales", "rest"):
                self.tensors[info.name] = info

    def _add_matrix(self, name, info):
        tiles, coding = Tiles.from_bytes(self.gguf.raw(info.name), f"{self.path}: {name}"), CODINGS[self.coding]
        beside, wanted = f"{name}.{coding.part}", (coding.part_qtype, tiles.shape[: coding.part_axes])
        other = self.gguf.tensors.get(beside)
        if other is None or (other.qtype, other.shape) != wanted:
            raise CodecError(f"{self.path}: {beside} is missing or not {wanted[0]} {wanted[1]}: write the file again")
        data = self.gguf.blocks(beside).view(coding.part_dtype).reshape(other.shape)
        self.matrices[name] = Coded(self.coding, tiles, data)
        stack, bracket, _ = name.partition("[")
        before = self.tensors.get(stack)
        shape = (before.shape[0] + 1 if before else 1, *tiles.shape) if bracket else tiles.shape
        nbytes = info.nbytes + other.nbytes + (before.nbytes if before else 0)
        self.tensors[stack] = TensorInfo(stack, self.coding + TILES, shape, info.offset, nbytes)

    _facts = reader.GGUFFile._facts

    def blocks(self, name: str) -> np.ndarray:
        """The ggml blocks of a tensor that is not coded; see GGUFFile.blocks."""
        return self.gguf.blocks(name)

    def close(self) -> None:
        """Close the file."""
        self.gguf.close()

    def __exit__(self, *exception):
        self.close()
