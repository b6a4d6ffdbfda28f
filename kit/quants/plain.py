"""The plain backend: what a block means, from the format's row, in numpy that one can step through.

    weight[i] = scale[i // group] * code[i] (+- minimum[i // group])        in float32, rounded after each operation

``codes``, ``scales`` and ``weights`` take ``block``, the fields of whole blocks: (blocks,) of the row's layout. A format
whose bits lie in planes or in a grid needs no line here; the last functions read base-3 digits and the scales of IQ1_M.
To look at one: ``codes(FORMATS["Q4_K"], blocks.view(FORMATS["Q4_K"].layout)[:, 0])``.
"""

import numpy as np
import torch

from kit.gguf.formats import TABLES, Format, Numbers, described

DEVICE, knows = "cpu", described
_CHUNK_WEIGHTS = 2**20  # of one call, whose temporary memory is several times its output


def run(blocks: np.ndarray, format: Format, out) -> None:
    """Dequantize C-contiguous bytes ``blocks`` into ``out``, a tensor or array of as many weights, in chunks."""
    in_chunks(lambda part: weights(format, part.view(format.layout)[:, 0]), blocks, format, out)


def in_chunks(dequantized, blocks: np.ndarray, format: Format, out) -> None:
    """As ``run``, by ``dequantized``: (blocks, bytes of a block) uint8 -> as many blocks' weights in float32."""
    blocks, step = blocks.reshape(-1, format.block_bytes), _CHUNK_WEIGHTS // format.block_elements
    out = (torch.from_numpy(out) if isinstance(out, np.ndarray) else out).view(-1, format.block_elements)
    with np.errstate(all="ignore"):  # NaN and infinite scales are valid input
        for start in range(0, len(blocks), step):
            values = np.require(dequantized(blocks[start : start + step]), requirements="W")  # a view of a file is copied
            out[start : start + step] = torch.from_numpy(values).view(-1, format.block_elements)


def weights(format: Format, block) -> np.ndarray:
    """The weights of blocks: (blocks, weights of a block) float32."""
    if format.name == "BF16":
        return (block["x"].astype(np.uint32) << 16).view(np.float32)[:, None]
    if format.codes is None:
        return block["x"].astype(np.float32)[:, None]
    scale, minimum = scales(format, block)
    values = scale[..., None] * codes(format, block).reshape(*scale.shape, -1)
    if minimum is not None:
        values = values + minimum[..., None] if format.scales.sign > 0 else values - minimum[..., None]
    return values.reshape(len(block), -1)


def codes(format: Format, block) -> np.ndarray:
    """The integers that stand for the weights: (blocks, weights of a block) float32."""
    meaning = format.codes
    if meaning.function:
        return CODES[meaning.function](format, block).reshape(len(block), -1).astype(np.float32)
    if meaning.grid:
        return rows(format, block).reshape(len(block), -1).astype(np.float32)
    numbers = integers(format, block, meaning, format.block_elements)
    if meaning.values:
        return np.array(meaning.values, np.float32)[numbers]
    return numbers.astype(np.float32) - np.float32(meaning.less)


def scales(format: Format, block) -> tuple[np.ndarray, np.ndarray | None]:
    """Scale and, where the format has one, minimum of each group: (blocks, groups) float32 each."""
    meaning, groups = format.scales, format.groups
    if meaning.function:
        return SCALES[meaning.function](block)
    if meaning.table:
        return TABLES[meaning.table][block[meaning.d].reshape(len(block), -1)], None
    units = [block[field].astype(np.float32)[:, None] for field in (meaning.d, meaning.dmin) if field]
    if steps := meaning.steps:
        integers_read = integers(format, block, steps, groups * len(units)).astype(np.float32)
        integers_read = (integers_read - np.float32(steps.less)) * np.float32(steps.times)
        units = [unit * part for unit, part in zip(units, np.split(integers_read, len(units), axis=1), strict=True)]
    return units[0], units[1] if len(units) > 1 else None


def integers(format: Format, block, numbers: Numbers, count: int) -> np.ndarray:
    """The integers 0 to ``count`` of planes of bits, the lowest bits first: (blocks, count) int32."""
    result, bytes_ = np.zeros((len(block), count), np.int32), block[:, None].view(np.int8)
    for byte, shift, mask, below in format.bit_fields(numbers, np.arange(count)):
        result |= (bytes_[:, byte].astype(np.int32) >> shift & mask) << below
    return result


# ---- what lies in no planes: codes (blocks, ...) in the order of the weights


def tq1_0(format, block):
    """Base-3 digits: a byte is a fraction of 256, and times 3^n brings digit n to the top. Five in a byte, of the last
    four bytes four."""
    parts = [(block["qs"][:, :32], 5), (block["qs"][:, 32:], 5), (block["qh"], 4)]
    digits = [part[:, None] * np.array([1, 3, 9, 27, 81], np.uint8)[:count, None] for part, count in parts]
    return np.concatenate([(d.astype(np.int32) * 3 >> 8).reshape(len(block), -1) for d in digits], axis=1) - 1


def rows(format, block):
    """Rows of a grid, with their signs, or moved by an eighth up or down."""
    import gguf

    quant, grid = getattr(gguf.quants, format.name), format.codes.grid
    quant.init_grid()
    index, below = 0, 0
    for part in grid.index:
        index, below = index | _read(format, block, part, format.block_elements // grid.lanes) << below, below + part.bits
    grid_rows = quant.grid.reshape(quant.grid_shape).astype(np.int32)[index].reshape(len(block), -1, 8)
    if grid.minus:
        return 8 * grid_rows + np.where(_read(format, block, grid.minus, grid_rows.shape[1]), -1, 1)[..., None]
    signs = _bits(_read(format, block, grid.signs, grid_rows.shape[1]), grid.signs.bits)
    if grid.signs.bits == 7:
        signs = np.concatenate([signs, signs.sum(-1, keepdims=True) & 1], -1)
    return np.where(signs, -grid_rows, grid_rows)


def _read(format, block, bits, count: int) -> np.ndarray:
    """The integers 0 to ``count`` of some Bits: (blocks, count) int64."""
    i, field = np.arange(count), np.ascontiguousarray(block[bits.field]).reshape(len(block), -1).view(np.uint8)
    first = bits.start + bits.step * (i // bits.count)
    words = sum(field[:, first + byte].astype(np.int64) << 8 * byte for byte in range(bits.word))
    return words >> bits.shift + bits.apart * (i % bits.count) & (1 << bits.bits) - 1


def _bits(numbers, count: int) -> np.ndarray:
    """The lowest ``count`` bits of integers, lowest first: (*shape, count) of 0 and 1."""
    return numbers[..., None] >> np.arange(count) & 1


def iq1_m_scales(block):
    """Sixteen scales d (2 n + 1) / 8, n of three bits, four in each 16-bit word; the words' top four bits are d."""
    words = block["scales"].astype(np.uint32)
    d = (words >> 12 << 4 * np.arange(4, dtype=np.uint32)).sum(axis=1).astype(np.uint16).view(np.float16)
    n = (words[..., None] >> 3 * np.arange(4, dtype=np.uint32) & 7).reshape(len(block), -1)
    return d.astype(np.float32)[:, None] * np.float32(0.125) * (2 * n + 1).astype(np.float32), None


CODES = {"tq1_0": tq1_0}
SCALES = {"iq1_m": iq1_m_scales}
