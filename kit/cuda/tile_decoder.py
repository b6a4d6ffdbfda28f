"""The tile decoder's kernels (kit.codec.triton calls them): one program for each tile. They can be imported and compiled
without a GPU.

A warp holds all lanes; lanes that are THREADS apart share a thread. The lanes that take a unit of the stream form a bit
mask, one bit a thread, by a warp reduction; a lane's place among them is the population count of the bits below its own.
That avoids a scan across the warp at every step.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from kit.cpu.tiles.rans import slot_table
from kit.cuda.device import DEVICE, pinned
from kit.gguf.tile_coding import LEFT, LEFT2, LONG, OK, SHORT, SLOT_BITS, SLOTS, STATE, UP, Streams

_FINISH_VALUES = 4096  # values of a tile that finish_kernel holds in registers
TOUCHED_TILES = 256  # up to two tiles a multiprocessor of an H200, streams are loaded into the cache before decoding
_SLOT_BITS, _SLOT_MASK = tl.constexpr(SLOT_BITS), tl.constexpr(SLOTS - 1)
_OK, _SHORT, _LONG, _STATE = (tl.constexpr(status) for status in (OK, SHORT, LONG, STATE))
_LEFT, _LEFT2, _UP = (tl.constexpr(number) for number in (LEFT, LEFT2, UP))


def index(streams: Streams) -> tuple[torch.Tensor, ...]:
    """begin, end, coded, values (tiles,) int64 and slots (1 or tiles, 4096) uint32 on the device, for ``launch``."""
    slots = np.stack([slot_table(frequencies) for frequencies in streams.frequencies])
    arrays = (streams.begin, streams.end, streams.coded, streams.values, slots)
    return tuple(pinned(array).to(DEVICE, non_blocking=True) for array in arrays)


def launch(units, index, residuals, status, lanes: int, lower: int, finish=None) -> None:
    """Decode every tile of ``index`` to ``residuals`` (tiles, room) uint8 and ``status`` (tiles,), without waiting.

    ``finish``: (layout, sums, out) to undo the predictor, into ``out`` (rows, columns) int8, and sum up each tile as well.
    """
    begin, slots, threads = index[0], index[-1], min(lanes, 32)
    rans_kernel[(len(begin),)](
        units, *index, residuals, status, residuals.shape[1], slots.shape[1] if len(slots) > 1 else 0, THREADS=threads,
        EACH=lanes // threads, UNIT_BITS=8 * units.itemsize, LOWER=lower, TOUCH=len(begin) <= TOUCHED_TILES, num_warps=1,
    )  # fmt: skip
    if finish is not None:
        layout, sums, out = finish
        width = triton.next_power_of_2(layout.tile_columns)
        finish_kernel[(len(begin),)](
            residuals, sums, out, residuals.shape[1], layout.rows, layout.columns, layout.tile_rows, layout.tile_columns,
            PREDICTOR=layout.predictor, HEIGHT=max(1, _FINISH_VALUES // width), WIDTH=width, num_warps=4,
        )  # fmt: skip


@triton.jit
def _population(bits):
    """Number of set bits, written so that LLVM makes it one instruction."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return ((((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _step(
    units, stop, slots, residuals, state, position, active, thread, lane,
    UNIT_BITS: tl.constexpr, LOWER: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Decode one value of each active lane; lanes whose state is below LOWER then take a unit each, in lane order."""
    bit = (1 << thread.to(tl.uint64)).to(tl.uint32)
    entry = tl.load(slots + (state & _SLOT_MASK).to(tl.int32))
    moved = ((entry >> 8) & _SLOT_MASK) * (state >> _SLOT_BITS) + (entry >> 20)
    if FULL:
        tl.store(residuals + lane, (entry & 255).to(tl.uint8))
        state = moved
    else:
        tl.store(residuals + lane, (entry & 255).to(tl.uint8), active)
        state = tl.where(active, moved, state)
    for _ in tl.static_range(16 // UNIT_BITS):
        low = state < LOWER
        if not FULL:
            low = low & active
        taking = tl.sum(tl.where(low, bit, 0), axis=1)[:, None]
        count = _population(taking)
        at = position + tl.cumsum(count, axis=0) - count + _population(taking & (bit - 1))
        unit = tl.load(units + at, low & (at < stop), 0).to(tl.uint32)
        state = tl.where(low, (state << UNIT_BITS) | unit, state)
        position += tl.sum(tl.sum(count, axis=1), axis=0)
    return state, position


@triton.jit
def _touch(units, stop, slots, UNIT_BITS: tl.constexpr):
    """Load the first 64 KiB of a stream, and its table, into the L1 cache by one load in every sector of 32 bytes.

    Returns 0, computed from the loaded values so that the compiler keeps the loads.
    """
    at = tl.arange(0, 2048) * (256 // UNIT_BITS)
    seen = tl.sum((tl.load(units + at, at < stop, 0) & 1).to(tl.int32))
    seen += tl.sum((tl.load(slots + tl.arange(0, 512) * 8) & 1).to(tl.int32))
    return (seen < 0).to(tl.int32)


@triton.jit
def rans_kernel(
    units, begin, end, coded, values, slots, residuals, status, room, slots_a_tile,
    THREADS: tl.constexpr, EACH: tl.constexpr, UNIT_BITS: tl.constexpr, LOWER: tl.constexpr, TOUCH: tl.constexpr,
):  # fmt: skip
    """Decode one tile with THREADS (at most 32) x EACH lanes. Units from ``end`` on are never read.

    With TOUCH the tile's stream is first loaded into the L1 cache. That pays when few tiles share a multiprocessor: their
    streams fit its cache, and there are no other tiles to work on while one waits for memory.
    """
    tile = tl.program_id(0)
    start = tl.load(begin + tile)
    units += start
    position, stop = 0, (tl.load(end + tile) - start).to(tl.int32)  # a tile's stream is short: 32 bits from here on
    todo, held = tl.load(coded + tile).to(tl.int32), tl.load(values + tile).to(tl.int32)
    residuals += tile.to(tl.int64) * room
    slots += tile.to(tl.int64) * slots_a_tile
    if TOUCH:
        position += _touch(units, stop, slots, UNIT_BITS)

    thread = tl.arange(0, THREADS)[None, :]
    lane = tl.arange(0, EACH)[:, None] * THREADS + thread
    unit_count: tl.constexpr = 32 // UNIT_BITS  # of a state
    state = tl.zeros((EACH, THREADS), tl.uint32)
    for i in tl.static_range(unit_count):
        at = position + unit_count * lane + i
        state |= tl.load(units + at, at < stop, 0).to(tl.uint32) << (UNIT_BITS * i)
    position += unit_count * THREADS * EACH

    done = 0
    while (done + THREADS * EACH <= todo) & (position <= stop):  # all lanes: no masks, one store of EACH bytes a thread
        state, position = _step(
            units, stop, slots, residuals + done, state, position, lane < THREADS * EACH, thread, lane, UNIT_BITS, LOWER, True
        )
        done += THREADS * EACH
    if (done < todo) & (position <= stop):
        state, position = _step(
            units, stop, slots, residuals + done, state, position, done + lane < todo, thread, lane, UNIT_BITS, LOWER, False
        )

    # The tile is OK if it ends where its stream ends and every state is one from which an encoder starts.
    if UNIT_BITS == 16:
        at = todo + 2 * lane
        low, high = state & 255, (state >> 8) & 255
        tl.store(residuals + at, low.to(tl.uint8), at < held)
        tl.store(residuals + at + 1, high.to(tl.uint8), at + 1 < held)
        wrong = ((state >> 16) != 1) | ((at >= held) & (low != 0)) | ((at + 1 >= held) & (high != 0))
    else:
        wrong = state != LOWER
    outcome = tl.where(tl.sum(tl.sum(wrong.to(tl.int32), axis=1), axis=0) > 0, _STATE, _OK)
    outcome = tl.where(position < stop, _LONG, tl.where(position > stop, _SHORT, outcome))
    tl.store(status + tile, outcome.to(status.dtype.element_ty))


@triton.jit
def finish_kernel(
    residuals, sums, out, room, rows, columns, tile_rows, tile_columns,
    PREDICTOR: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Undo one tile's predictor, HEIGHT rows at a time; write its values to ``out`` (rows, columns) and its checksum."""
    tile = tl.program_id(0)
    across = tl.cdiv(columns, tile_columns)
    row, column = tile // across * tile_rows, tile % across * tile_columns
    height, width = tl.minimum(tile_rows, rows - row), tl.minimum(tile_columns, columns - column)
    residuals += tile.to(tl.int64) * room
    out += row.to(tl.int64) * columns + column
    j = tl.arange(0, WIDTH)[None, :]
    above = tl.zeros((1, WIDTH), tl.int32)
    total = tl.zeros((HEIGHT, WIDTH), tl.uint32)
    for start in range(0, height, HEIGHT):
        i = start + tl.arange(0, HEIGHT)[:, None]
        inside = (i < height) & (j < width)
        place = i * width + j
        value = tl.load(residuals + place, inside, 0).to(tl.int32)
        if (PREDICTOR == _LEFT) | (PREDICTOR == _LEFT2):
            value = tl.cumsum(value, axis=1)
        if PREDICTOR == _LEFT2:
            value = tl.cumsum(value, axis=1)
        if PREDICTOR == _UP:
            running = tl.cumsum(value, axis=0)
            value, above = running + above, above + tl.sum(value, axis=0)[None, :]
        value &= 255
        tl.store(out + i.to(tl.int64) * columns + j, value.to(tl.uint8).to(tl.int8, bitcast=True), inside)
        word = (place >> 2).to(tl.uint32)
        shifted = value.to(tl.uint32) << (8 * (place & 3)).to(tl.uint32)
        total += tl.where(inside, shifted * (2 * word + 1), 0).to(tl.uint32)
    tl.store(sums + tile, tl.sum(tl.sum(total, axis=1), axis=0))
