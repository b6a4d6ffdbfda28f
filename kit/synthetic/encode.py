"""Quantize float32 weights into blocks: by gguf-py where it can, else from the description of the format.

Plain round-to-nearest: enough for random weights; llama.cpp searches for better scales.
"""

import gguf
import numpy as np

from kit.errors import QuantError
from kit.gguf.formats import FORMATS, TABLES, Format, Numbers


def encode(values: np.ndarray, qtype: str) -> np.ndarray:
    """Blocks of ``values`` (float32, (..., a multiple of a block's weights)), uint8 with the last axis as bytes."""
    try:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[qtype]).view(np.uint8)
    except (KeyError, NotImplementedError):  # a type that gguf-py does not have, or can only dequantize
        format = FORMATS[qtype]
    if not format.codes or not format.codes.planes or format.scales.function not in ("", "six_bits"):
        raise QuantError(f"weights cannot be quantized to {qtype}: there is no encoder for it")
    blocks = _blocks(values.reshape(-1, format.groups, format.scales.group), format)
    return blocks.reshape(*values.shape[:-1], -1)


def _blocks(x: np.ndarray, format: Format) -> np.ndarray:
    """x (blocks, groups, group) as (blocks, bytes of a block) uint8."""
    blocks, codes, sign = np.zeros((len(x), format.block_bytes), np.uint8), format.codes, format.scales.sign
    least, most = (min(codes.values), max(codes.values)) if codes.values else _range(format, codes)
    if sign:  # what is added to a group to make its least number the least code; steps cannot be negative
        low = -x.min(-1) if sign > 0 and not format.scales.steps else np.maximum(-x.min(-1), 0)
        wanted = [(x.max(-1) + low) / (most - least), -sign * low]
    else:
        wanted = [np.abs(x).max(-1) / min(-least, most)]
    scale, *minimum = _store_scales(blocks, format, wanted)
    if minimum:
        x = x - sign * minimum[0][..., None]
    ratio = (x / np.maximum(scale, 1e-30)[..., None]).reshape(len(x), -1)
    if codes.values:
        found, places = np.unique(codes.values, return_index=True)
        n = places[np.searchsorted((found[1:] + found[:-1]) / 2, ratio)].astype(np.uint8)
    else:
        signed = any(map(format.signed, codes.planes))
        n = (np.rint(ratio).clip(least, most) + codes.less).astype(np.int8 if signed else np.uint8).view(np.uint8)
    _store(blocks, format, codes, n)
    return blocks


def _range(format: Format, numbers: Numbers) -> tuple[float, float]:
    """The least and the greatest integer of planes, ``less`` taken off."""
    if any(map(format.signed, numbers.planes)):
        return -127, 127
    return -numbers.less, (1 << sum(plane.bits for plane in numbers.planes)) - 1 - numbers.less


def _store_scales(blocks, format: Format, wanted) -> list[np.ndarray]:
    """Write scales, and minima if there are any, next to the wanted ones (blocks, groups); those that come out."""
    scales, stored = format.scales, []
    if scales.table:
        table = TABLES[scales.table]
        found, places = np.unique(table, return_index=True)
        n = places[np.searchsorted((found[1:] + found[:-1]) / 2, wanted[0])].astype(np.uint8)
        blocks[:, format.at(scales.d) :][:, : format.groups] = n
        return [table[n]]
    fields, multiples = blocks.view(format.layout)[:, 0], []
    for field, values in zip((scales.d, scales.dmin), wanted, strict=False):
        if not (scales.steps or scales.function):
            fields[field] = values[:, 0]
            stored.append(fields[field].astype(np.float32)[:, None])
            continue
        steps = scales.steps or Numbers()
        least, most = (0, 63) if scales.function else _range(format, steps)
        sign = -1 if values.min() < 0 else 1
        fields[field] = sign * np.abs(values).max(-1) / (most * steps.times)
        unit = fields[field].astype(np.float32)[:, None] * np.float32(steps.times)
        n = np.rint(values / np.where(unit == 0, 1, unit)).clip(max(least, 0), most)
        stored.append(unit * n.astype(np.float32))
        multiples.append((n + steps.less).astype(np.uint8))
    if scales.function:
        _store_six_bits(fields["scales"], *multiples)
    elif scales.steps:
        _store(blocks, format, scales.steps, np.concatenate(multiples, axis=1))
    return stored


def _store(blocks, format: Format, numbers: Numbers, n: np.ndarray) -> None:
    """Write integers (blocks, count) uint8 to their planes."""
    below = 0
    for plane in numbers.planes:
        fields, first = 8 // plane.bits, format.at(plane.field) + plane.start
        short = -n.shape[1] % (fields * plane.run)
        runs = np.pad(n, ((0, 0), (0, short))).reshape(len(n), -1, fields, plane.run)
        runs = (runs >> below & (1 << plane.bits) - 1) << plane.shift
        packed = runs[:, :, 0]
        for field in range(1, fields):
            packed = packed | runs[:, :, field] << field * plane.bits
        packed = packed.reshape(len(n), -1)
        blocks[:, first : first + plane.step * packed.shape[1] : plane.step] |= packed
        below += plane.bits


def _store_six_bits(packed, sc, m) -> None:
    """Eight scales and eight minima of six bits in the twelve bytes of Q4_K and Q5_K."""
    packed[:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    packed[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    packed[:, 8:12] = (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4
