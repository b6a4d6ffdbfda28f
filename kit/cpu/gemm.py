"""Many tokens times float32 activations: strips of sixteen rows are dequantized to the L1 cache and multiplied there.

A strip lies column after column, so that a tile's sums are vectors of rows, each for a token whose numbers are read into every
lane: of AVX2's sixteen registers twelve hold sums, and a column takes 2 loads and 6 broadcasts for 12 products. A core of a
Zen 5 does 120 to 127 GFLOP/s so; its multiplications alone would be 132. Tiles of 4 rows by 3 tokens along the columns took 7
loads for 12, and did 82 to 118: a vector of activations may lie in two cache lines, a number does not.
"""

from kit.cpu import threads
from kit.cpu.kernels import dequantize_blocks
from kit.cpu.simd.memory import load, put, stack, store
from kit.cpu.simd.registers import add_each, add_multiples, load_columns, several_of
from kit.cpu.simd.vectors import Static, broadcast, f32x16, generated, inner
from kit.cpu.tasks import task

FEWEST = 9  # tokens for which a strip pays; a tile's must be there in any case
FASTER = ("avx2",)  # tiers whose prompts take these products: on the others torch's of dequantized pieces are faster
_WIDTH = {"avx512": 9, "avx2": 6, "neon": 6, "plain": 3}  # tokens of a tile, whose sums fit the registers
# Of a piece: its strips and sums stay in the second-level cache, a strip and a tile's tokens in the first.
_ROWS, _TOKENS, _COLUMNS = 64, 522, 256
_SUMS, _STRIP = 4 * _ROWS, 64 * _COLUMNS  # bytes of a token's sums, and of a strip
_APART = 4 * _COLUMNS + 64  # bytes of a row before it is in columns: no power of two, so that rows share no cache set

_scratch, _rows, _strips, _sums = stack(256), stack(16 * _APART), stack(_ROWS // 16 * _STRIP), stack((_TOKENS + 1) * _SUMS)
_, _store_columns = several_of(4)


def _tile_of(width: int):
    """_tile(strip, x, stride, columns, zero, sums): add the products of a strip and ``width`` tokens at x, over some columns,
    to the tokens' sums. Products are added up from zero first: float32 would round more of a long row's."""
    load_tokens, store_tokens = several_of(width)

    @inner
    def _tile(strip, x, stride, columns, zero, sums):
        total = load_tokens(zero, 0)
        for column in range(columns):
            total = add_multiples(total, load(f32x16, strip + 64 * column), x + 4 * column, stride)
        store_tokens(sums, _SUMS, add_each(total, load_tokens(sums, _SUMS)))

    return _tile


@generated
def _block_shape(format):
    """(weights, bytes) per block of a Static format."""
    shape = format.value.block_elements, format.value.block_bytes
    return lambda format: shape


def share(rows: int) -> int:
    """Rows per task: a piece's, or fewer if some threads would be idle."""
    return min(_ROWS, 16 * -(-rows // (32 * threads.count())))


@task
def kernel(format: Static, tier: Static):
    """The task described in kit.cpu.linear, for tokens >= FEWEST and a ``share`` of at most _ROWS."""
    float32, width = Static("float32"), _WIDTH[tier.value]
    most, _tile = _TOKENS // width * width, _tile_of(width)

    def piece(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        weights, block = _block_shape(format)
        scratch, apart, strips, sums = _scratch(), _rows(), _strips(), _sums()
        row, zero = task * share, sums + _TOKENS * _SUMS
        height = min(share, rows - row)
        for token in range(0, tokens, most):
            last = min(tokens, token + most)
            for at in range(sums, zero + 64, 64):
                store(at, broadcast(f32x16, 0))
            for column in range(0, columns, _COLUMNS):
                some = min(_COLUMNS, columns - column)
                for r in range(height):
                    at = blocks + (row + r) * row_bytes + column // weights * block
                    dequantize_blocks(format, float32, tier, False, at, some // weights, apart + r % 16 * _APART, scratch)
                    if r % 16 == 15 or r == height - 1:
                        for c in range(0, some, 4):
                            _store_columns(strips + r // 16 * _STRIP + 64 * c, 64, load_columns(apart + 4 * c, _APART))
                for t in range(token, last, width):
                    first = x + min(t, tokens - width) * x_stride + 4 * column
                    for r in range(0, height, 16):
                        at = sums + (t - token) * _SUMS + 4 * r
                        _tile(strips + r // 16 * _STRIP, first, x_stride, some, zero, at)
            for t in range(token, last, width):
                for i in range(width):
                    at = y + (min(t, tokens - width) + i) * y_stride + 4 * row
                    for r in range(0, height, 16):
                        put(at + 4 * r, load(f32x16, sums + (t - token + i) * _SUMS + 4 * r), height - r)

    return piece
