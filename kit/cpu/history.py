"""Keys and values in memory as float32, float16 or q8_0: reads sixteen elements of a head as float32, writes new positions."""

import math
from typing import NamedTuple

import torch
from numba import types

from kit.cpu.activations import ROUNDER, ROUNDER_BITS
from kit.cpu.simd.isa import float_to_half, half_to_float
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.sums import greatest
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import (
    bitcast,
    broadcast,
    convert,
    extract,
    f32x16,
    generated,
    i8x16,
    i32x16,
    inner,
    select,
    u16x16,
    u32x16,
)
from kit.cpu.tasks import Argument, Static, Step, task

f32, u16 = types.float32, types.uint16
LANES = 16
TILE = 2**15  # bytes of float32 that are made of a part of the history, in the first-level cache


class History(NamedTuple):
    """Keys or values of a layer in memory. ``kind``: float32, float16 or q8_0 (blocks of 34 bytes). The memory begins with head
    0 at position 0; the strides are the bytes from one head, and from one position, to the next."""

    kind: str
    memory: torch.Tensor
    head_bytes: int
    stride: int

    @classmethod
    def of(cls, tensor: torch.Tensor, kind: str = "float32") -> "History":
        """That in a tensor (heads, positions, elements or bytes of a head), with contiguous elements per position."""
        size = tensor.itemsize
        return cls(kind, tensor, size * tensor.stride(0), size * tensor.stride(1))

    def arguments(self, prefix: str) -> dict[str, Argument]:
        """Arguments of a task: the memory named ``prefix``, and head_bytes and stride with names that begin with it."""
        return {prefix: self.memory, f"{prefix}_head": self.head_bytes, f"{prefix}_stride": self.stride}


def _q8_0_sixteen(tier, position, n):
    block = position + 34 * (n >> 1)
    return convert(f32x16, load(i8x16, block + 2 + 16 * (n & 1))) * half_to_float(tier, load(u16, block))


_READERS = {
    "float16": inner(lambda tier, position, n: half_to_float(tier, load(u16x16, position + 32 * n))),
    "q8_0": inner(_q8_0_sixteen),
}


@generated
def tile_positions(kind, vectors):
    """How many positions of a head fit the tile as float32. For float32, which is not copied, more than a chunk has."""
    if kind.value == "float32":
        return lambda kind, vectors: TILE
    return lambda kind, vectors: TILE // (64 * vectors)


@generated
def as_floats(kind, tier, source, stride, positions, vectors, scratch):
    """(address, stride) of the same positions in float32: in place for float32, else converted into the scratch."""
    if kind.value == "float32":
        return lambda kind, tier, source, stride, positions, vectors, scratch: (source, stride)
    read = _READERS[kind.value]

    def converted(kind, tier, source, stride, positions, vectors, scratch):
        for position in range(positions):
            for n in range(vectors):
                store(scratch + 64 * (position * vectors + n), read(tier, source + position * stride, n))
        return scratch, 64 * vectors

    return converted


def append_step(rows: torch.Tensor, history: History, position: int = 0) -> Step:
    """Write rows (tokens, heads, dim) float32, whose heads are contiguous, at ``position`` and after."""
    tokens, heads, dim = rows.shape
    source = dict(source=rows, token_bytes=4 * rows.stride(0), tokens=tokens, dim=dim, position=position)
    return append(history.kind, tier()), source | history.arguments("target"), heads


@task
def append(kind: Static, tier: Static):
    """The task that writes new positions of a head. source: (tokens, heads, dim) float32 with ``token_bytes`` from one token to
    the next; target: a History."""

    def append(head, source, token_bytes, tokens, dim, target, target_head, target_stride, position):
        source += 4 * dim * head
        target += target_head * head + target_stride * position
        for _ in range(tokens):
            write_position(kind, tier, source, dim, target)
            source += token_bytes
            target += target_stride

    return append


@generated
def write_position(kind, tier, source, dim, target):
    """Write ``dim`` floats as ``kind``."""

    def as_float32(kind, tier, source, dim, target):
        for i in range(0, dim & -LANES, LANES):
            store(target + 4 * i, load(f32x16, source + 4 * i))
        for i in range(dim & -LANES, dim):
            store(target + 4 * i, load(f32, source + 4 * i))

    def as_float16(kind, tier, source, dim, target):
        for i in range(0, dim & -LANES, LANES):
            store(target + 2 * i, float_to_half(tier, load(f32x16, source + 4 * i)))
        for i in range(dim & -LANES, dim):
            store(target + 2 * i, extract(float_to_half(tier, broadcast(f32x16, load(f32, source + 4 * i))), 0))

    def as_q8_0(kind, tier, source, dim, target):
        for block in range(dim // 32):
            a, b = load(f32x16, source + 128 * block), load(f32x16, source + 128 * block + 64)
            # of positive floats, NaN included, the bits are in the order of the numbers: a NaN is the scale of its block
            c, d = bitcast(u32x16, a) & 0x7FFFFFFF, bitcast(u32x16, b) & 0x7FFFFFFF
            scale = bitcast(f32, greatest(select(c > d, c, d))) / f32(127)
            inverse = f32(1) / scale if scale > 0 else f32(0)
            at = target + 34 * block
            store(at, extract(float_to_half(tier, broadcast(f32x16, scale)), 0))
            store(at + 2, convert(i8x16, bitcast(i32x16, a * inverse + ROUNDER) - ROUNDER_BITS))
            store(at + 18, convert(i8x16, bitcast(i32x16, b * inverse + ROUNDER) - ROUNDER_BITS))

    return {"float32": as_float32, "float16": as_float16, "q8_0": as_q8_0}[kind.value]


@inner(forceinline=True)
def greatest_of(a, b):
    """The largest lane of two vectors."""
    vector, largest = select(a > b, a, b), f32(-math.inf)
    for lane in range(LANES):
        value = extract(vector, lane)
        if value > largest:
            largest = value
    return largest
