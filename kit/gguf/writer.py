"""Write GGUF files (version 3, little-endian): the header from plain values, the tensors' bytes as they come."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kit.gguf.formats import FORMATS
from kit.gguf.metadata import ARRAY, NAMES, STRING
from kit.gguf.reader import TensorInfo
from kit.system.files import replacing

ALIGNMENT = 32
_TYPES = {name: kind for kind, name in NAMES.items()}


def header(metadata: dict[str, Any], specs: Sequence[TensorInfo], pairs: Sequence[bytes] = (), alignment=ALIGNMENT) -> bytes:
    """Everything before the tensor data: magic, metadata, tensor table, padding.

    ``pairs``: further metadata pairs, already encoded. The length depends on the metadata and on the tensors' names and
    numbers of dimensions, not on their sizes.
    """
    out = [b"GGUF", struct.pack("<IQQ", 3, len(specs), len(pairs) + len(metadata)), *pairs]
    for key, value in metadata.items():
        out += [_string(key), _value(value)]
    offset = 0
    for spec in specs:
        dimensions = struct.pack(f"<I{len(spec.shape)}Q", len(spec.shape), *spec.shape[::-1])
        out += [_string(spec.name), dimensions, struct.pack("<IQ", FORMATS[spec.qtype].id, offset)]
        offset += padded(spec.nbytes, alignment)
    blob = b"".join(out)
    return blob.ljust(padded(len(blob), alignment), b"\0")


def write(path: Path, metadata: dict[str, Any], specs: Sequence[TensorInfo], data: Iterable[np.ndarray]) -> Path:
    """Write a file of these tensors, whole or not at all. ``data``: the blocks of each tensor in order."""
    with replacing(path, sum(spec.nbytes for spec in specs)) as out:
        out.write(header(metadata, specs))
        for blocks in data:
            out.write(np.ascontiguousarray(blocks).data)
            out.write(bytes(-blocks.nbytes % ALIGNMENT))
    return path


def padded(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """``nbytes`` rounded up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A metadata value with its type: bool, int (uint32 if it can be), float (float32), str, list, numpy array."""
    match value:
        case bool() | int() | float():
            small = {bool: "bool", int: "uint32" if 0 <= value < 2**32 else "int64", float: "float32"}[type(value)]
            return struct.pack("<I", _TYPES[small]) + np.array(value, small).tobytes()
        case str():
            return struct.pack("<I", STRING) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
        case list():
            return _value(np.array(value, {int: np.int32, float: np.float32}.get(type(value[0])) if value else np.int32))
        case np.ndarray():
            return struct.pack("<IIQ", ARRAY, _TYPES[value.dtype.name], len(value)) + value.tobytes()
    raise TypeError(f"no GGUF type for {value!r}")
