"""What must hold of the table of tensors, of the parts of a split model, and of the end of a file."""

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from kit.errors import GGUFError, KitWarning
from kit.gguf.forks import groups_of_128
from kit.gguf.metadata import Cursor
from kit.units import format_bytes

_FEWEST, _MOST_ZEROS = 4096, 64 << 20  # bytes that are told, and that are looked at, from the end
_ZEROS = 0.05  # share of the last matrix: rows of tokens that a vocabulary was only padded with are fewer


def placed(cursor: Cursor, rows: Sequence[tuple], base: int, alignment: int) -> list:
    """The tensors of ``rows``, (TensorInfo, position of its offset field), with absolute offsets.

    Each is checked to be aligned, inside the file, and to begin where the one before it ends, as llama.cpp checks it."""
    size = len(cursor.data)
    if problem := groups_of_128(sorted((info for info, _ in rows), key=lambda info: info.offset), size - base, alignment):
        cursor.fail(base, problem)
    infos = []
    for info, where in rows:
        if info.offset % alignment:
            cursor.fail(where, f"{info.name!r} is at offset {info.offset:,}, expected a multiple of {alignment}")
        info = info._replace(offset=base + info.offset)
        if info.offset + info.nbytes > size and (info.nbytes or info.offset > -(-size // alignment) * alignment):
            cursor.fail(
                where,
                f"{info.name!r} ends at byte {info.offset + info.nbytes:,}, expected it inside the "
                f"{size:,} bytes of the file: it is truncated or its table is wrong",
            )
        infos.append(info)
    order = sorted(range(len(infos)), key=lambda row: (infos[row].offset, infos[row].nbytes))
    for row, after in pairwise([*order, None]):
        end = size if after is None else infos[after].offset
        if not infos[row].is_known:
            infos[row] = infos[row]._replace(nbytes=max(0, end - infos[row].offset))
        elif after is not None and infos[row].offset + infos[row].nbytes > end:
            cursor.fail(
                rows[after][1],
                f"{infos[after].name!r} overlaps {infos[row].name!r}, which ends at byte "
                f"{infos[row].offset + infos[row].nbytes:,}",
            )
    _check_gaps(cursor, [(infos[row], rows[row][1]) for row in order], base, alignment)
    return infos


def _check_gaps(cursor: Cursor, ordered: Sequence[tuple], base: int, alignment: int) -> None:
    """GGUFError for bytes between two tensors that belong to none: the one before has another type or shape than it says."""
    expected, before = base, ""
    for info, where in ordered:
        if info.offset > expected:
            cursor.fail(
                where,
                f"{info.name!r} has offset {info.offset - base:,}, expected {expected - base:,}{before}: "
                "the table has a wrong type or shape, or lacks a tensor",
            )
        expected = -(-(info.offset + info.nbytes) // alignment) * alignment
        before = f", where {info.name!r} ends ({info.qtype}, {' x '.join(map(str, info.shape)) or 'scalar'})"


def check_split(paths: list[Path], parts: Sequence) -> None:
    """Check that the parts of a split file agree with their names, with each other, and with the count of tensors.

    ``parts``: of each its ``metadata`` and ``tensors``.
    """
    names: set[str] = set()
    first = parts[0].metadata
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        for key, expected in (("split.count", len(paths)), ("split.no", number)):
            stated = part.metadata.get(key, expected)
            if type(stated) is not int or (stated != expected and not (key == "split.count" and stated == 0)):
                raise GGUFError(
                    f"{path}: {key!r} is {stated!r}, expected {expected} from the file's name; "
                    "the parts must be named NAME-00001-of-0000N.gguf"
                )
        for key in ("general.architecture", "general.name", "general.file_type", "split.tensors.count"):
            if (says := part.metadata.get(key, first.get(key))) != first.get(key, says):
                raise GGUFError(
                    f"{path}: is a part of another model than {paths[0].name}: {key!r} is {says!r:.80}, not {first[key]!r:.80}"
                )
        for info in part.tensors:
            if info.name in names:
                raise GGUFError(f"{path}: tensor {info.name!r} is also in an earlier part; every name must occur once")
            names.add(info.name)
    claimed = first.get("split.tensors.count", len(names))
    if type(claimed) is not int or claimed != len(names):
        raise GGUFError(f"{paths[0]}: 'split.tensors.count' is {claimed!r}, but the parts hold {len(names)}")


def warn_of_zeros(path: Path, data: np.ndarray, infos: Sequence) -> None:
    """KitWarning where a file's last matrix ends in zeros: an aborted download leaves them, and they generate "000".

    Reads one page of a file that is whole. ``infos``: the tensors in ``data``, the file's bytes.
    """
    matrices = [info for info in infos if len(info.shape) > 1 and info.nbytes]
    if not matrices:
        return
    last = max(matrices, key=lambda info: info.offset)
    end = start = max(info.offset + info.nbytes for info in infos)
    step = 4096
    while start > max(0, end - _MOST_ZEROS):
        piece = data[max(0, start - step) : start]
        if piece.any():
            start -= len(piece) - 1 - int(np.flatnonzero(piece)[-1])
            break
        start, step = start - len(piece), min(2 * step, 1 << 22)
    if end - start >= _FEWEST and start <= last.offset + (1 - _ZEROS) * last.nbytes:
        some = " or more" if end - start >= _MOST_ZEROS else ""
        within = next((info.name for info in infos if info.offset <= start < info.offset + info.nbytes), last.name)
        problem = f"{path}: its last {format_bytes(end - start)}{some} are zeros, from {within!r} on"
        remedy = "perhaps a download that was not finished; compare the file's SHA-256 with its source's"
        warnings.warn(f"{problem}: {remedy}", KitWarning, stacklevel=4)


def original_shapes(path: Path, metadata: dict, tensors: dict) -> dict[str, tuple[int, ...]]:
    """name -> the shape of a tensor that its writer flattened to whole blocks: ComfyUI-GGUF's ``comfy.gguf.orig_shape.NAME``.

    GGUFError where it has other elements than the tensor.
    """
    shapes = {}
    for key, value in metadata.items():
        name = key.removeprefix("comfy.gguf.orig_shape.")
        if name == key or name not in tensors:
            continue
        shape = tuple(value) if getattr(value, "kind", "").startswith(("int", "uint")) else ()
        if not shape or min(shape) < 1 or math.prod(shape) != tensors[name].elements:
            raise GGUFError(f"{path}: {key!r} is {value!r:.60}, but {name!r} has {tensors[name].elements:,} elements")
        shapes[name] = shape
    return shapes
