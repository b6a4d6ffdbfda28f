"""Quantize float32 weights into blocks: by gguf-py where it can, else from the format's row in the table.

Plain rounding to nearest, which is enough for random weights; llama.cpp searches for better scales.
"""

import gguf
import numpy as np

from kit.errors import QuantError
from kit.gguf.formats import FORMATS, TABLES, Format, Numbers


def encode(values: np.ndarray, qtype: str) -> np.ndarray:
    """values (..., weights of a row) float32 -> (..., bytes of a row) uint8. QuantError for a format without an encoder."""
    try:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[qtype]).view(np.uint8)
    except (KeyError, NotImplementedError):  # gguf-py lacks the type, or can only dequantize it
        format = FORMATS[qtype]
    if not format.codes or not format.codes.planes or format.scales.function:
        raise QuantError(f"kit has no encoder for {qtype}: choose another format")
    blocks = _blocks(values.reshape(-1, format.groups, format.scales.group), format)
    return blocks.reshape(*values.shape[:-1], -1)


def _blocks(x: np.ndarray, format: Format) -> np.ndarray:
    """x (blocks, groups, weights of a group) -> (blocks, bytes of a block) uint8."""
    blocks, codes, sign = np.zeros((len(x), format.block_bytes), np.uint8), format.codes, format.scales.sign
    least, most = (min(codes.values), max(codes.values)) if codes.values else _range(format, codes)
    if sign:  # the offset that makes a group's minimum the least code; a stored multiple of dmin cannot be negative
        low = -x.min(-1) if sign > 0 and not format.scales.steps else np.maximum(-x.min(-1), 0)
        wanted = [(x.max(-1) + low) / (most - least), -sign * low]
    else:
        wanted = [np.abs(x).max(-1) / min(-least, most)]
    scale, *minimum = _store_scales(blocks, format, wanted)
    if minimum:
        x = x - sign * minimum[0][..., None]
    ratio = (x / np.maximum(scale, 1e-30)[..., None]).reshape(len(x), -1)
    if codes.values:
        n = _nearest(codes.values, ratio)
    else:
        signed = any(map(format.signed, codes.planes))
        n = (np.rint(ratio).clip(least, most) + codes.less).astype(np.int8 if signed else np.uint8).view(np.uint8)
    _store(blocks, format, codes, n)
    return blocks


def _nearest(values, x: np.ndarray) -> np.ndarray:
    """Index of the value that is nearest to each x, uint8."""
    distinct, places = np.unique(values, return_index=True)
    return places[np.searchsorted((distinct[1:] + distinct[:-1]) / 2, x)].astype(np.uint8)


def _range(format: Format, numbers: Numbers) -> tuple[float, float]:
    """The least and the greatest integer that the planes hold, minus ``less``."""
    if any(map(format.signed, numbers.planes)):
        return -127, 127
    return -numbers.less, (1 << sum(plane.bits for plane in numbers.planes)) - 1 - numbers.less


def _store_scales(blocks, format: Format, wanted) -> list[np.ndarray]:
    """Store the wanted scales, and minima if there are any, each (blocks, groups); returns them as they were rounded."""
    scales, stored = format.scales, []
    if scales.table:
        table = TABLES[scales.table]
        n = _nearest(table, wanted[0])
        blocks[:, format.at(scales.d) :][:, : format.groups] = n
        return [table[n]]
    fields, multiples = blocks.view(format.layout)[:, 0], []
    for field, values in zip((scales.d, scales.dmin), wanted, strict=False):
        if not scales.steps:
            fields[field] = values[:, 0]
            stored.append(fields[field].astype(np.float32)[:, None])
            continue
        steps = scales.steps
        least, most = _range(format, steps)
        sign = -1 if values.min() < 0 else 1
        fields[field] = sign * np.abs(values).max(-1) / (most * steps.times)
        unit = fields[field].astype(np.float32)[:, None] * np.float32(steps.times)
        n = np.rint(values / np.where(unit == 0, 1, unit)).clip(max(least, 0), most)
        stored.append(unit * n.astype(np.float32))
        multiples.append((n + steps.less).astype(np.uint8))
    if scales.steps:
        _store(blocks, format, scales.steps, np.concatenate(multiples, axis=1))
    return stored


def _store(blocks, format: Format, numbers: Numbers, n: np.ndarray) -> None:
    """Store integers (blocks, count) uint8 in their planes."""
    for byte, shifts, mask, below in format.bit_fields(numbers, np.arange(n.shape[1])):
        for shift in np.unique(shifts).tolist():  # integers at one shift are in different bytes
            some = shifts == shift
            blocks[:, byte[some]] |= (n[:, some] >> below & (mask & 255)) << shift
