"""Compress a model, a GGUF or safetensors file, to the container of kit.codec.container; verify a compressed model."""

import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from kit.codec.codings import CODINGS, pack
from kit.codec.container import VERSION, CompressedFile
from kit.codec.decoders import decode
from kit.errors import CodecError, GGUFError, known
from kit.gguf import reader
from kit.gguf.formats import FORMATS
from kit.gguf.mapped import MappedFile
from kit.gguf.metadata import encoded_pairs
from kit.gguf.reader import TensorInfo
from kit.gguf.sources import model_name
from kit.gguf.writer import header
from kit.system import usable_cores
from kit.system.files import check_output, replacing
from kit.system.paths import models_folder
from kit.units import from_json


def compress(path, out, coding: str = "int8", threads: int = 1, progress: bool = False, replace: bool = True) -> Path:
    """Write the compressed form of a GGUF or safetensors file to `out`, whole or not at all.

    CodecError for an unknown coding, a tensor that it cannot code, a NaN or an infinity in the weights, or a file that
    cannot be written: the source itself, or, unless `replace`, one that exists.
    """
    known("coding", coding, CODINGS, CodecError)
    source, out = open_source(path), Path(out)
    check_output(out, source.paths, CodecError)
    if out.exists() and not replace:
        raise CodecError(f"{out}: exists already; --force replaces it")
    pairs = [] if isinstance(source, SafetensorsFile) else _pairs(source)
    infos = [part for info in source.tensors.values() for part in _parts(source, info, coding)]
    if not any(info.name.endswith(".tiles") for info in infos):
        raise CodecError(f"{path}: has no linear layers, so there is nothing to compress")
    alignment = (pairs and source.alignment) or 32
    crcs = np.zeros(len(infos), np.uint32)
    head = _header(pairs, coding, infos, crcs, alignment)
    try:
        with (
            replacing(out, len(head)) as handle,
            tqdm(total=len(infos), desc=out.name, unit="tensor", disable=None if progress else True) as bar,
        ):
            handle.write(head)
            for i, data in enumerate(_data(source, coding, threads)):
                tiles = infos[i].name.endswith(".tiles")
                infos[i] = infos[i]._replace(nbytes=data.nbytes, shape=data.shape if tiles else infos[i].shape)
                crcs[i] = zlib.crc32(data)
                handle.write(data)
                handle.write(bytes(-data.nbytes % alignment))
                bar.update()
            handle.seek(0)
            handle.write(_header(pairs, coding, infos, crcs, alignment))
    except GGUFError as error:
        raise CodecError(str(error)) from None
    return out


def cached_tiles(path) -> CompressedFile:
    """The compressed form of a model, written on the first call and kept among the generated models."""
    with reader.open(path) as file:
        stamps, folder = [Path(part).stat() for part in file.paths], models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    nbytes, changed = sum(each.st_size for each in stamps), max(each.st_mtime_ns for each in stamps)
    packed = folder / f"{Path(model_name(file.path)).stem}-{nbytes}-{changed}.tiles.gguf"
    if not packed.exists():
        compress(file.path, packed, threads=usable_cores())
    return CompressedFile(packed)


def open_source(path):
    """The file to compress: a SafetensorsFile for a name that ends in .safetensors, else a GGUFFile."""
    return SafetensorsFile(path) if Path(path).suffix == ".safetensors" else reader.open(path)


def _pairs(source) -> list[bytes]:
    """The source's metadata pairs as encoded in the file, except ``split.*``."""
    if source.byteorder != "little":
        raise CodecError(f"{source.path}: big-endian files cannot be compressed: convert to little-endian first")
    if source.compressed:
        raise CodecError(f"{source.path}: is compressed already")
    return encoded_pairs(source.path, np.memmap(source.path, np.uint8, "r"))


def _is_linear(source, info) -> bool:
    """Whether the tensor is the matrix of a linear layer; an embedding is one if the model has no other output matrix."""
    if len(info.shape) not in (2, 3) or not info.name.endswith("weight") or info.qtype not in FORMATS:
        return False
    if info.name == "token_embd.weight":
        return "output.weight" not in source.tensors
    return "embed_tokens" not in info.name and not info.name.endswith("norm.weight")


def matrices_of(source) -> Iterator[tuple[str, tuple[np.ndarray, str]]]:
    """(name, (blocks (rows, bytes), qtype)) of every linear layer: NAME, or NAME[0], NAME[1] ... for a stack of experts."""
    for info in source.tensors.values():
        if _is_linear(source, info):
            for name, blocks in _matrices(source, info):
                yield name, (blocks, info.qtype)


def _matrices(source, info):
    blocks = source.blocks(info.name)
    if blocks.ndim == 2:
        return [(info.name, blocks)]
    return [(f"{info.name}[{expert}]", blocks[expert]) for expert in range(len(blocks))]


def _parts(source, info, coding) -> list[TensorInfo]:
    """The container's tensors for this one; their offsets, and the sizes of tiles, are 0."""
    if not _is_linear(source, info):
        if info.qtype not in FORMATS:
            raise CodecError(f"{source.path}: tensor {info.name!r} is {info.qtype}, which the kit does not know")
        return [info]
    if not info.elements:
        raise CodecError(f"{source.path}: tensor {info.name!r} is empty: nothing to encode")
    if coding == "bf16" and info.qtype != "BF16":
        raise CodecError(f"{source.path}: tensor {info.name!r} is {info.qtype}, but --coding bf16 needs BF16: use int8")
    beside = CODINGS[coding]
    second = beside.part, beside.part_qtype, info.shape[-2:][: beside.part_axes]
    return [
        TensorInfo(f"{name}.{part}", qtype, shape, 0, 0)
        for name, _ in _matrices(source, info)
        for part, qtype, shape in (("tiles", "I8", (0,)), second)
    ]


def _data(source, coding, threads) -> Iterator[np.ndarray]:
    """The bytes of every tensor of the container, in order; only one matrix is in memory at a time."""
    for info in source.tensors.values():
        if not _is_linear(source, info):
            yield np.ascontiguousarray(source.blocks(info.name)).reshape(-1)
            continue
        for name, blocks in _matrices(source, info):
            where = f"{source.path}: {name}"
            if coding == "bf16" and (np.ascontiguousarray(blocks).view("<u2") & 0x7F80 == 0x7F80).any():
                raise CodecError(f"{where}: contains NaN or infinity: fix the source file first")
            matrix = pack(coding, blocks, info.qtype, where, threads)
            yield np.frombuffer(matrix.tiles.to_bytes(), np.uint8)
            yield matrix.beside.reshape(-1).view(np.uint8)


def _header(pairs, coding, infos, crcs, alignment) -> bytes:
    """The file's header. Its length is independent of sizes and checksums, so that it can be written again at the end."""
    ours = {} if pairs else {"general.architecture": "unknown"}
    ours |= {"kit.codec.version": VERSION, "kit.codec.coding": coding, "kit.codec.crc32": crcs.view(np.int32)}
    return header(ours, infos, pairs, alignment)


def verify(path, decoder="interleaved", source=None, threads=1, progress=False) -> tuple[int, int]:
    """Check every tile's checksum, every tensor's CRC-32 and, with a `source`, every matrix against that file's weights.

    Returns the numbers of tensors and matrices; CodecError at the first difference.
    """
    with CompressedFile(path) as file:
        crcs = np.ravel(file.metadata.get("kit.codec.crc32", ())).astype(np.uint32).tolist()
        if len(crcs) != len(file.gguf.tensors):
            raise CodecError(f"{path}: {len(crcs)} checksums for {len(file.gguf.tensors)} tensors: the file is damaged")
        for name, right in zip(file.gguf.tensors, crcs, strict=True):
            if zlib.crc32(file.gguf.blocks(name)) != right:
                raise CodecError(f"{path}: {name}: the CRC-32 differs: the file is damaged; compress it again")
        originals = dict(matrices_of(open_source(source))) if source else {}
        for name, matrix in tqdm(file.matrices.items(), unit="matrix", disable=None if progress else True):
            decoded = decode(matrix.tiles, decoder, threads=threads)
            if not source:
                continue
            if name not in originals:
                raise CodecError(f"{path}: {name} is not in {source}")
            values, beside = CODINGS[file.coding].split(*originals[name], f"{source}: {name}")
            if not (np.array_equal(values, decoded) and np.array_equal(beside, matrix.beside)):
                raise CodecError(f"{path}: {name}: the unpacked values differ from those in {source}")
        return len(crcs), len(file.matrices)


class SafetensorsFile:
    """A safetensors file with the members of GGUFFile that the compressor uses: path, paths, tensors, blocks.

    The format is an 8-byte length, that many bytes of JSON (name -> dtype, shape, data_offsets), and the data
    (https://github.com/huggingface/safetensors). It is read here to map the file and check it like a GGUF file.
    """

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
            index = from_json(bytes(self._data[8 : 8 + size])) if 0 < size <= self._data.size - 8 else None
            index.pop("__metadata__", None)
            self.tensors = {name: self._info(name, entry, 8 + size) for name, entry in index.items()}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise CodecError(f"{path}: not a safetensors file, or a damaged one ({error})") from None

    def _info(self, name, entry, base) -> TensorInfo:
        first, last = entry["data_offsets"]
        shape, dtype = tuple(entry["shape"]), entry["dtype"]
        if dtype in FORMATS and last - first != FORMATS[dtype].nbytes(math.prod(shape)):
            raise ValueError(f"{name} has shape {shape} and type {dtype}, which does not match its {last - first} bytes")
        if not 0 <= first <= last <= self._data.size - base:
            raise ValueError(f"{name} is outside the file")
        return TensorInfo(name, dtype, shape, base + first, last - first)

    def blocks(self, name: str) -> np.ndarray:
        """The bytes of a tensor, uint8 (*leading dimensions, bytes of a row), a view of the file."""
        info = self.tensors[name]
        self._file.check(name)
        return self._data[info.offset : info.offset + info.nbytes].reshape(*info.shape[:-1], -1)
