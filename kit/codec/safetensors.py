"""Tensors of a safetensors file for the compressor: names, types, shapes and bytes.

The format is an 8-byte length, that many bytes of JSON (name -> dtype, shape, data_offsets), and the data
(https://github.com/huggingface/safetensors). It is read here to map the file and check it like a GGUF file.
"""

import json
import math
from pathlib import Path

import numpy as np

from kit.errors import CodecError, GGUFError
from kit.gguf.formats import FORMATS
from kit.gguf.mapped import MappedFile
from kit.gguf.reader import TensorInfo


class SafetensorsFile:
    """A safetensors file with the members of GGUFFile that the compressor uses: path, paths, tensors, blocks."""

    def __init__(self, path):
        self.path = Path(path)
        self.paths = [self.path]
        try:
            self._file = MappedFile(self.path)
        except GGUFError as error:
            raise CodecError(str(error)) from None
        self._data = self._file.data
        size = int(self._data[:8].view("<u8")[0]) if self._data.size >= 8 else 0
        try:
            index = json.loads(bytes(self._data[8 : 8 + size])) if 0 < size <= self._data.size - 8 else None
            index.pop("__metadata__", None)
            self.tensors = {name: self._info(name, entry, 8 + size) for name, entry in index.items()}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise CodecError(f"{path}: not a safetensors file, or a damaged one ({error})") from None

    def _info(self, name, entry, base) -> TensorInfo:
        first, last = entry["data_offsets"]
        shape, dtype = tuple(entry["shape"]), entry["dtype"]
        if dtype in FORMATS and last - first != FORMATS[dtype].nbytes(math.prod(shape)):
            raise ValueError(f"{name} is {shape} {dtype}, and {last - first} bytes long")
        if not 0 <= first <= last <= self._data.size - base:
            raise ValueError(f"{name} lies outside the file")
        return TensorInfo(name, dtype, shape, base + first, last - first)

    def blocks(self, name: str) -> np.ndarray:
        """The bytes of a tensor, uint8 (*leading dimensions, bytes of a row), a view of the file."""
        info = self.tensors[name]
        self._file.check(name)
        return self._data[info.offset : info.offset + info.nbytes].reshape(*info.shape[:-1], -1)
