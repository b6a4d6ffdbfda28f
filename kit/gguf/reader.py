"""Open a GGUF file by memory map: header, metadata and tensor table are read at once, tensor data when asked for."""

import math
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from kit.errors import GGUFError, known
from kit.gguf import checks, foreign, forks, large_pages, pagecache
from kit.gguf.formats import BY_ID, FORMATS
from kit.gguf.mapped import MappedFile
from kit.gguf.metadata import MAX_NAME, Cursor, read_metadata
from kit.gguf.names import layer_of
from kit.gguf.sources import part_paths, resolve
from kit.shown import Shown
from kit.system import advise, allow_files
from kit.units import format_bytes, format_count

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
MAX_ELEMENTS = 2**63 - 1  # ggml counts elements in int64


class TensorInfo(NamedTuple):
    """One row of the tensor table.

    ``qtype`` is the ggml name ("Q4_K"; else as in kit.gguf.forks), ``shape`` has rows first (ggml's dimensions
    reversed), ``offset`` counts from the start of the file ``paths[part]``. ``nbytes`` of an unknown type is the space
    up to the next tensor.
    """

    name: str
    qtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0

    @classmethod
    def new(cls, name: str, qtype: str, shape: tuple[int, ...]) -> "TensorInfo":
        """A tensor that is to be written, of blocks of ``qtype``."""
        return cls(name, qtype, shape, 0, FORMATS[qtype].nbytes(math.prod(shape)))

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def layer(self) -> int:
        """N for a name that starts with "blk.N.", else -1."""
        return layer_of(self.name)

    @property
    def is_known(self) -> bool:
        """Whether the kit knows the block format."""
        return self.qtype in FORMATS


class _File(NamedTuple):
    """One file of a split model, or the only file."""

    version: int
    order: str
    alignment: int
    metadata: dict[str, Any]
    tensors: list[TensorInfo]
    file: MappedFile
    end: int  # of the table of tensors: what comes after it is data


class GGUFFile(Shown):
    """An open GGUF file, or all parts of a split one; made by :func:`open`.

    ``metadata``: key -> Python value, or MetadataArray. ``tensors``: name -> TensorInfo, in file order. ``original_shapes``:
    name -> shape of a tensor that its writer flattened to whole blocks (ComfyUI-GGUF). The arrays that ``raw`` and ``blocks``
    return stay valid after ``close``.
    """

    def __init__(self, paths: list[Path], parts: list[_File], pages: str = "large"):
        first, self.pages = parts[0], pages
        self.path, self.paths, self.sizes = paths[0], paths, [len(part.file.data) for part in parts]
        self.version, self.alignment, self.metadata = first.version, first.alignment, first.metadata
        self.byteorder = "big" if any(part.order == ">" for part in parts) else "little"
        self.tensors: dict[str, TensorInfo] = {info.name: info for part in parts for info in part.tensors}
        self.original_shapes = checks.original_shapes(self.path, self.metadata, self.tensors)
        self._orders = [part.order for part in parts]
        self._files: list[MappedFile] | None = [part.file for part in parts]
        self.reading_again: large_pages.ReadingAgain | None = None
        self._views: dict[str, np.ndarray] = {}  # results of ``blocks``, which is called at every use of a weight
        self._swapped = WeakValueDictionary()  # name -> the copy of a big-endian tensor, as long as somebody holds it

    @property
    def architecture(self) -> str:
        """``general.architecture``: "llama", "granite", ...; "unknown" when the file does not say."""
        return self.metadata.get("general.architecture", "unknown")

    @property
    def compressed(self) -> bool:
        """Whether `kit compress` wrote it: matrices are tiles, which kit.codec.container.CompressedFile reads."""
        return "kit.codec.version" in self.metadata

    @property
    def largest(self) -> Path:
        """The largest of ``paths``, to measure the disk with."""
        return max(zip(self.sizes, self.paths, strict=True))[1]

    def raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor: a read-only uint8 view of the map, shape (nbytes,). Raises GGUFError."""
        info = self._info(name)
        if not info.is_known:
            raise GGUFError(
                f"{self.paths[info.part]}: tensor {name!r} {forks.told(info.qtype)}, which kit does not support; "
                f"use a file with these types: {', '.join(FORMATS)}"
            )
        file = self._files[info.part]
        file.check(name)
        return file.data[info.offset : info.offset + info.nbytes]

    def blocks(self, name: str) -> np.ndarray:
        """The blocks of a tensor in little-endian order, uint8 (*leading dimensions, bytes of a row).

        A view of the map for a little-endian file; for a big-endian one a swapped copy, which lives as long as an array over
        it, and is made again after that: who takes its address holds the array. Raises GGUFError.
        """
        if name in self._views:
            self._files[self.tensors[name].part].check(name)
            return self._views[name]
        data, info = self.raw(name), self._info(name)
        shape = *info.shape[:-1], FORMATS[info.qtype].nbytes(info.shape[-1] if info.shape else 1)
        if self._orders[info.part] == ">":
            if (copy := self._swapped.get(name)) is None:
                self._swapped[name] = copy = data.view(FORMATS[info.qtype].layout).byteswap()
            return copy.view(np.uint8).reshape(shape)
        return self._views.setdefault(name, data.reshape(shape))

    @contextmanager
    def reading_ahead(self, names: Sequence[str]) -> Iterator[None]:
        """While the body of a ``with`` runs, a thread brings missing pages of these tensors into memory, in this order."""
        spans = [self._files[info.part].data[info.offset : info.offset + info.nbytes] for info in map(self._info, names)]
        ended = threading.Event()
        thread = threading.Thread(target=pagecache.read_ahead, args=(spans, ended), name="kit-read-ahead", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def enlarge_pages(self, trace) -> None:
        """Begin to read the file again, in a thread, where the page cache holds it by small pages (kit.gguf.large_pages)."""
        if self.pages == "large" and self._files and self.reading_again is None:  # once: it may still run
            self.reading_again = large_pages.begin(self._files, trace)

    def large_share(self) -> float | None:
        """Share of what is mapped of the file that is by pages of 2 MiB; None: not known."""
        shares = [share for file in self._files or () if (share := large_pages.share(file.data)) is not None]
        return sum(shares) / len(shares) if shares else None

    def unmap_pages(self) -> None:
        """Take the file's pages out of this process's page tables, so that any process can have the file read again."""
        for file in () if self.pages == "copied" else self._files or ():  # a copy would be lost
            advise(file.data, "unmap")

    def close(self) -> None:
        """Close the file; reading a tensor afterwards is a GGUFError."""
        for file in self._files or ():
            file.close()
        self._files = None
        self._views.clear()

    def _info(self, name: str) -> TensorInfo:
        if self._files is None:
            raise GGUFError(f"{self.path}: the file is closed")
        if name not in self.tensors:
            raise GGUFError(f"{self.path}: no tensor {name!r}; `kit inspect --tensors` lists all {len(self.tensors)}")
        return self.tensors[name]

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _facts(self):
        infos = self.tensors.values()
        types = Counter()
        for info in infos:
            types[info.qtype] += info.nbytes
        return f"{type(self).__name__} {self.path}", {
            "architecture": self.architecture,
            "layers": str(len({info.layer for info in infos} - {-1})),
            "parameters": format_count(sum(info.elements for info in infos)),
            "tensors": str(len(infos)),
            "size": format_bytes(types.total()),
            "types": " ".join(name for name, _ in types.most_common()) or "none",
        }


PAGES = {  # how a file lies in memory
    "large": "mapped in 2 MiB pages where the system has them; read again where the page cache has small ones",
    "small": "mapped as the page cache has it",
    "copied": "copied into the process's own memory, in 2 MiB pages",
}


def open(path: str | os.PathLike, pages: str = "large") -> GGUFFile:
    """Open a GGUF file (version 2 or 3, either byte order): a path, ``hf://owner/repo/file.gguf`` or a trained model's name.

    ``pages``: a name in PAGES; a Transformer reads a file of small pages again (kit.gguf.large_pages). Naming any part of a
    split file opens all parts. Raises GGUFError: the message names the file, the byte offset and what was expected there.
    """
    paths = part_paths(resolve(path))
    allow_files(2 * len(paths))  # a MappedFile takes two descriptors
    known("pages", pages, PAGES, GGUFError)
    parts = [read_part(part_path, number, pages) for number, part_path in enumerate(paths)]
    checks.check_split(paths, parts)
    for path, part in zip(paths, parts, strict=True):
        checks.warn_of_zeros(path, part.file.data, part.tensors)
    return GGUFFile(paths, parts, pages)


def read_part(path: Path, number: int, pages: str) -> _File:
    """Map one file and read its header; an error that has an ``offset`` is of that byte."""
    file = MappedFile(path, pages)
    cursor = Cursor(path, file.data)
    magic = cursor.take(4, "the magic 'GGUF'").tobytes()
    if magic != MAGIC:
        cursor.fail(0, f"magic {magic!r}, expected {MAGIC!r}: this is {foreign.not_gguf(file.data[:512].tobytes())}")
    version = cursor.number("u4", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped not in VERSIONS:
            cursor.fail(4, f"GGUF version {version}, expected 2 or 3 in either byte order")
        version, cursor.order = swapped, ">"
    tensors = cursor.count("tensors", 24)
    metadata = read_metadata(cursor, cursor.count("metadata pairs", 13))
    if not isinstance(metadata.get("general.architecture", ""), str):
        raise GGUFError(f"{path}: 'general.architecture' is {metadata['general.architecture']!r}, expected a string")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise GGUFError(f"{path}: 'general.alignment' is {alignment!r}, expected a power of two")
    table = _read_table(cursor, tensors, alignment, number)
    return _File(version, cursor.order, alignment, metadata, table, file, cursor.position)


def _read_table(cursor: Cursor, count: int, alignment: int, part: int) -> list[TensorInfo]:
    rows: list[tuple[TensorInfo, int]] = []  # with the position of the row's offset field, for error messages
    names, data, quick = set(), memoryview(cursor.data), _Quick(cursor.order)
    for _ in range(count):
        start = cursor.position
        if (row := quick.read(data, start, part)) and row[0].name not in names:
            info, where, cursor.position = row
            names.add(info.name)
            rows.append((info, where))
            continue
        name = cursor.string("a tensor name", MAX_NAME)
        if name in names:
            cursor.fail(start, f"tensor {name!r} is repeated; every name must occur once")
        names.add(name)
        shape = _read_shape(cursor, name)
        start = cursor.position
        type_id = cursor.number("u4", f"the type of {name!r}")
        kind = BY_ID.get(type_id)
        row = shape[-1] if shape else 1
        if kind and row % kind.block_elements:
            cursor.fail(
                start, f"{name!r} has rows of {row:,} elements, expected a multiple of {kind.block_elements} for {kind.name}"
            )
        nbytes = kind.nbytes(math.prod(shape)) if kind else 0
        where, offset = cursor.position, cursor.number("u8", f"the offset of {name!r}")
        rows.append((TensorInfo(name, kind.name if kind else forks.name_of(type_id), shape, offset, nbytes, part), where))
    base = -(-cursor.position // alignment) * alignment
    return checks.placed(cursor, rows, base, alignment)


class _Quick:
    """Rows of the table of tensors, a few unpackings each; what is not sound is left to the checks that name the fault."""

    def __init__(self, order: str):
        self._length = struct.Struct(f"{order}Q").unpack_from
        self._dimensions = struct.Struct(f"{order}I").unpack_from
        self._rest = [struct.Struct(f"{order}{dimensions}QIQ") for dimensions in range(MAX_DIMENSIONS + 1)]

    def read(self, data: memoryview, at: int, part: int) -> tuple[TensorInfo, int, int] | None:
        """(row, position of its offset field, position of the next row) at byte ``at``; None for an unsound or unknown one."""
        try:
            after = at + 8 + self._length(data, at)[0]
            name = str(data[at + 8 : after], "utf-8")
            rest = self._rest[self._dimensions(data, after)[0]]
            *sizes, type_id, offset = rest.unpack_from(data, after + 4)
            kind, elements = BY_ID[type_id], math.prod(sizes)
        except (struct.error, UnicodeDecodeError, IndexError, KeyError, OverflowError):
            return None
        if after - at > MAX_NAME or 0 in sizes or elements > MAX_ELEMENTS or (sizes[0] if sizes else 1) % kind.block_elements:
            return None
        end = after + 4 + rest.size
        return TensorInfo(name, kind.name, tuple(sizes[::-1]), offset, kind.nbytes(elements), part), end - 8, end


def _read_shape(cursor: Cursor, name: str) -> tuple[int, ...]:
    start = cursor.position
    dimensions = cursor.number("u4", f"the number of dimensions of {name!r}")
    if dimensions > MAX_DIMENSIONS:
        cursor.fail(start, f"{name!r} has {dimensions:,} dimensions, expected at most {MAX_DIMENSIONS}")
    shape = tuple(cursor.number("u8", f"a dimension of {name!r}") for _ in range(dimensions))[::-1]
    # Without the zeros: a product such as 2^60 x 2^60 x 0 overflows when it is multiplied from the left.
    if math.prod(size or 1 for size in shape) > MAX_ELEMENTS:
        cursor.fail(start, f"{name!r} has shape {shape}, expected at most 2^63 - 1 elements")
    return shape
