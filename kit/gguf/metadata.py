"""The metadata of a GGUF file: a cursor that checks every read, and key-value pairs whose arrays are read when asked for.

Layout: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from kit.errors import GGUFError

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {  # type id -> numpy's type code without byte order; a bool is a byte that must be 0 or 1
    0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", BOOL: "u1", 10: "u8", 11: "i8", 12: "f8",
}  # fmt: skip
NAMES = {kind: "bool" if kind == BOOL else np.dtype(code).name for kind, code in SCALARS.items()} | {STRING: "string"}
MAX_NAME = 65_535  # bytes of a key (from the specification) and of a tensor's name
MAX_STRINGS = 1 << 23  # strings of one array: eight times the largest vocabulary


class Cursor:
    """Reads a mapped file from front to back; raises GGUFError with the byte offset for anything malformed.

    ``data``: the whole file as uint8. ``order``: "<" for little-endian, ">" for big-endian files.
    """

    def __init__(self, path, data: np.ndarray, position: int = 0):
        self.path, self.data, self.position, self.order = path, data, position, "<"

    def fail(self, offset: int, problem: str) -> NoReturn:
        """Raise a GGUFError that names the file and the offset."""
        if len(problem) > 500:  # a tensor's name in it may have 65,535 bytes
            problem = f"{problem[:250]} ... {problem[-250:]}"
        # raised without a name: a frame that has the error would keep the file open until the collector runs
        raise GGUFError(f"{self.path}: byte {offset:,}: {problem}", offset=offset)

    def take(self, nbytes: int, what: str) -> np.ndarray:
        """The next ``nbytes`` as a view; GGUFError when the file ends before."""
        start, left = self.position, len(self.data) - self.position
        if nbytes > left:
            self.fail(start, f"expected {nbytes:,} bytes of {what}, but the file ends after {left:,} more")
        self.position = start + nbytes
        return self.data[start : self.position]

    def number(self, dtype: str, what: str) -> int | float:
        """One number of a numpy type code such as ``"u8"``."""
        return np.frombuffer(self.take(int(dtype[1]), what), self.order + dtype)[0].item()

    def count(self, what: str, each: int) -> int:
        """A count of items of at least ``each`` bytes; GGUFError when the rest of the file cannot hold so many."""
        start, count = self.position, self.number("u8", what)
        left = len(self.data) - self.position
        if count * each > left:
            self.fail(start, f"{count:,} {what}, expected at most {left // each:,} in the {left:,} bytes that are left")
        return count

    def string(self, what: str, longest: int | None = None) -> str:
        """A length (uint64) and that many bytes of UTF-8."""
        start = self.position
        length = self.count(f"bytes of {what}", 1)
        if longest is not None and length > longest:
            self.fail(start, f"{what} of {length:,} bytes, expected at most {longest:,}")
        try:
            return self.take(length, what).tobytes().decode()
        except UnicodeDecodeError as error:
            self.fail(start + 8 + error.start, f"expected UTF-8 in {what}, found {error.reason}")

    def walk_strings(self, count: int, what: str) -> np.ndarray:
        """Step over ``count`` strings: the offsets of their length fields and the end of the last, (count + 1,) int64."""
        data, length_at = memoryview(self.data), struct.Struct(self.order + "Q").unpack_from
        offsets, position = array("q", [self.position]), self.position
        with suppress(struct.error, OverflowError):  # a position beyond the end of the file, or of all files
            for _ in range(count):
                (length,) = length_at(data, position)
                position += 8 + length
                offsets.append(position)
        if position > len(data):
            self.fail(position - length - 8, f"a string of {length:,} bytes in {what}, longer than the file")
        if len(offsets) <= count:
            self.fail(position, f"expected the length of a string of {what}, but the file ends")
        self.position = position
        return np.array(offsets)


class MetadataArray(Sequence):
    """An array of the metadata as a read-only sequence; its elements are read from the map when asked for.

    ``kind`` is the GGUF element type: "string", "float32", "bool", ... A slice gives a list.
    """

    def __init__(self, cursor: Cursor, start: int, key: str, kind: str, *, offsets=None, items=None):
        self._file, self._start, self._key, self.kind = cursor, start, key, kind
        self._offsets, self._items = offsets, items  # one is None: offsets for strings, items for all other kinds

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self._items is None else len(self._items)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return list(self._values(index))
        return next(self._values([range(len(self))[index]]))

    def __iter__(self) -> Iterator:
        return self._values(slice(None))

    def __eq__(self, other) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(lambda a, b: a == b, self, other))

    __hash__ = None

    def __repr__(self) -> str:
        return f"<{len(self):,} x {self.kind}>"

    def numpy(self) -> np.ndarray:
        """A copy in native byte order. Raises GGUFError for strings."""
        if self._items is None:
            self._file.fail(self._start, f"{self._key!r} holds strings, expected numbers")
        return self._native(self._items)

    def raw(self) -> bytes:
        """All elements as the file has them."""
        if self._items is not None:
            return self._items.tobytes()
        return self._file.data[self._offsets[0] : self._offsets[-1]].tobytes()

    def tolist(self) -> list:
        """All elements as Python values."""
        return list(self)

    def encoded(self) -> list[bytes]:
        """All strings as the bytes in the file, which should be UTF-8 and are not checked."""
        first, last = self._offsets[0], self._offsets[-1]
        blob, starts, stops = self._file.data[first:last].tobytes(), self._offsets[:-1] + 8 - first, self._offsets[1:] - first
        return [blob[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.numpy() if self._items is not None else self.tolist(), dtype)

    def _native(self, items: np.ndarray) -> np.ndarray:
        if self.kind != "bool":
            return items.astype(items.dtype.newbyteorder("="))
        if len(items) and items.max() > 1:
            self._file.fail(self._start, f"expected booleans (0 or 1) in {self._key!r}")
        return items.astype(bool)

    def _values(self, index) -> Iterator:
        if self._items is not None:
            yield from self._native(self._items[index]).tolist()
            return
        data = memoryview(self._file.data)
        for offset, stop in zip(self._offsets[:-1][index].tolist(), self._offsets[1:][index].tolist(), strict=True):
            try:
                yield str(data[offset + 8 : stop], "utf-8")
            except UnicodeDecodeError as error:
                problem = f"expected UTF-8 in a string of {self._key!r}, found {error.reason}"
                self._file.fail(offset + 8 + error.start, problem)


def read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    """``count`` key-value pairs: plain Python values, and MetadataArray for arrays. Raises GGUFError."""
    metadata = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.string("a metadata key", MAX_NAME)
        if key in metadata:
            cursor.fail(start, f"metadata key {key!r} is repeated; every key must occur once")
        metadata[key] = _read_value(cursor, key, cursor.number("u4", f"the type of {key!r}"))
    return metadata


def encoded_pairs(path, data: np.ndarray, leave_out: tuple[str, ...] = ("split.",)) -> list[bytes]:
    """The pairs of a little-endian file's metadata as it has them, without keys that begin so."""
    cursor, pairs = Cursor(path, data, position=16), []
    for _ in range(cursor.number("u8", "the number of metadata pairs")):
        start = cursor.position
        (key,) = read_metadata(cursor, 1)
        if not key.startswith(leave_out):
            pairs.append(data[start : cursor.position].tobytes())
    return pairs


def _read_value(cursor: Cursor, key: str, kind: int) -> Any:
    start = cursor.position
    if kind == STRING:
        return cursor.string(f"the value of {key!r}")
    if kind == ARRAY:
        return _read_array(cursor, key)
    if kind not in SCALARS:
        cursor.fail(start - 4, f"type {kind} of {key!r}, expected a GGUF value type from 0 to 12")
    value = cursor.number(SCALARS[kind], f"the value of {key!r}")
    if kind != BOOL:
        return value
    if value > 1:
        cursor.fail(start, f"expected a boolean (0 or 1) as the value of {key!r}, found {value}")
    return bool(value)


def _read_array(cursor: Cursor, key: str) -> MetadataArray:
    start = cursor.position
    kind = cursor.number("u4", f"the element type of {key!r}")
    if kind == STRING:
        count = cursor.count(f"strings in {key!r}", 8)
        if count > MAX_STRINGS:
            cursor.fail(start + 4, f"{count:,} strings in {key!r}, expected at most {MAX_STRINGS:,}")
        return MetadataArray(cursor, start, key, "string", offsets=cursor.walk_strings(count, repr(key)))
    if kind not in SCALARS:
        what = "an array of arrays" if kind == ARRAY else f"an array of type {kind}"
        cursor.fail(start, f"{key!r} is {what}, expected strings, numbers or booleans")
    dtype = np.dtype(cursor.order + SCALARS[kind])
    count = cursor.count(f"elements of {key!r}", dtype.itemsize)
    items = cursor.take(count * dtype.itemsize, repr(key)).view(dtype)
    return MetadataArray(cursor, start, key, NAMES[kind], items=items)
