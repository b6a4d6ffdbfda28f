"""Elementwise operations between the matrix products of a token, as tasks over float32 vectors of a multiple of 16 numbers."""

import numpy as np
import torch
from numba import types

from kit.cpu.activations import ROUNDER, ROUNDER_BITS
from kit.cpu.simd.memory import load, put, some, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, f32x8, f32x16, i32x16, inner, select, swap_neighbors
from kit.cpu.tasks import Static, Step, task

f32, u32 = types.float32, types.uint32
SHARE = 1024  # numbers of a task


def as_bits(number: float) -> int:
    """The bits of a float32 as an integer, as a task takes it."""
    return int(np.float32(number).view(np.uint32))


def step(name: str, *tensors: torch.Tensor, factor: float | None = None) -> Step:
    """The task with this name, in EACH, of all numbers of tensors of one size, in the order of its parameters."""
    n = tensors[0].numel()
    last = () if factor is None else (as_bits(factor),)
    return compiled(name), (*tensors, n, *last), -(-n // SHARE)


def takes(*tensors: torch.Tensor) -> bool:
    """Whether all are contiguous float32 tensors on the CPU with a multiple of 16 numbers."""
    return tensors[0].numel() % 16 == 0 and all(x.is_cpu and x.is_contiguous() and x.dtype == torch.float32 for x in tensors)


def gate_step(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> Step:
    """y (rows, n) *= sigmoid(x weight), x (rows, columns) and weight (columns,)."""
    return compiled("gate_row"), dict(x=x, weight=weight, y=y, columns=x.shape[1], n=y.shape[1]), len(x)


def gate_heads_step(x: torch.Tensor, gates: torch.Tensor, y: torch.Tensor) -> Step:
    """y = x * sigmoid(gates), x and y (tokens, heads, n) and gates (tokens, heads)."""
    return compiled("gate_head"), dict(x=x, gates=gates, y=y, n=x.shape[2]), gates.numel()


@task
def compiled(name: Static):
    """The compiled task with this name in _TASKS."""
    return _TASKS[name.value]


def _add(task, x, y, n, factor):
    """x += y * factor"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        store(x + at, load(f32x16, x + at) + load(f32x16, y + at) * bitcast(f32, u32(factor)))


def _zero(task, x, n):
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        store(x + at, broadcast(f32x16, 0))


def _scale(task, x, n, factor):
    """x *= factor"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        store(x + at, load(f32x16, x + at) * bitcast(f32, u32(factor)))


def _clamp(task, x, n, factor):
    """x = min(max(x, -factor), factor); NaN stays NaN."""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        store(x + at, _within(load(f32x16, x + at), bitcast(f32, u32(factor))))


def _ceiling(task, x, n, factor):
    """x = min(x, factor); NaN stays NaN."""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        v, limit = load(f32x16, x + at), bitcast(f32, u32(factor))
        store(x + at, select(v > limit, broadcast(f32x16, limit), v))


@inner(forceinline=True)
def _within(x, limit):
    x = select(x > limit, broadcast(f32x16, limit), x)
    return select(x < -limit, broadcast(f32x16, -limit), x)


def _silu(task, gate, up, out, n):
    """out = gate * sigmoid(gate) * up"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        x = load(f32x16, gate + at)
        store(out + at, x * sigmoid(x) * load(f32x16, up + at))


def _sigmoid(task, gate, up, out, n):
    """out = sigmoid(gate) * up"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        store(out + at, sigmoid(load(f32x16, gate + at)) * load(f32x16, up + at))


def _times(task, gate, up, out, n):
    """out = gate * up"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        store(out + at, load(f32x16, gate + at) * load(f32x16, up + at))


def _gate_row(row, x, columns, weight, y, n):
    """x *= sigmoid(gate), with one gate per row of x."""
    x += 4 * columns * row
    y += 4 * n * row
    total = broadcast(f32x16, 0)
    for at in range(0, 4 * columns, 64):
        total = fma(some(x + at, columns - at // 4), some(weight + at, columns - at // 4), total)
    share = sigmoid(broadcast(f32x16, reduce_add(total)))
    for at in range(0, 4 * n, 64):
        put(y + at, some(y + at, n - at // 4) * share, n - at // 4)


def _gate_head(row, x, gates, y, n):
    """y = x * sigmoid(gate), with one gate per row."""
    share = sigmoid(broadcast(f32x16, load(f32, gates + 4 * row)))
    x += 4 * n * row
    y += 4 * n * row
    for at in range(0, 4 * n, 64):
        put(y + at, some(x + at, n - at // 4) * share, n - at // 4)


_SLOPE, _CUBE = np.float32(1.5957691216057308), np.float32(0.044715)  # 2 sqrt(2 / pi)


def _gelu(task, gate, up, out, n):
    """out = gelu(gate) * up, gelu by tanh: x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        x = load(f32x16, gate + at)
        store(out + at, x * sigmoid(x * _SLOPE * (x * x * _CUBE + 1)) * load(f32x16, up + at))


def _squared_relu(task, gate, up, out, n):
    """out = max(gate, 0)^2 * up"""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        x = load(f32x16, gate + at)
        x = select(x < 0, broadcast(f32x16, 0), x)
        store(out + at, x * x * load(f32x16, up + at))


_STEEPNESS, _LIMIT = np.float32(1.702), np.float32(7)


def _clamped(task, gate, up, out, n):
    """The activation of gpt-oss: out = gate * sigmoid(1.702 gate) * (up + 1), with gate at most 7, and up also at least -7."""
    for at in range(4 * SHARE * task, 4 * min(n, SHARE * (task + 1)), 64):
        x = load(f32x16, gate + at)
        x = select(x > _LIMIT, broadcast(f32x16, _LIMIT), x)
        store(out + at, x * sigmoid(x * _STEEPNESS) * (_within(load(f32x16, up + at), _LIMIT) + 1))


@inner(forceinline=True)
def sigmoid(x):
    """1 / (1 + exp(-x)), computed with the exponential of -|x|."""
    e = exp_of_negative(select(x > 0, 0 - x, x))
    return select(x > 0, broadcast(f32x16, 1), e) / (e + 1)


@inner(forceinline=True)
def softplus(x):
    """log(1 + exp(x)) to a relative error of 3e-7: max(x, 0) + log(1 + e) for e = exp(-|x|), and log(1 + e) = 2 artanh(e / (2 +
    e))."""
    e = exp_of_negative(select(x > 0, 0 - x, x))
    s = e / (e + 2)
    square = s * s
    p = broadcast(f32x16, _ODD[0])
    for coefficient in _ODD[1:]:
        p = fma(p, square, broadcast(f32x16, coefficient))
    return select(x > 0, x, broadcast(f32x16, 0)) + s * p


_ODD = tuple(np.float32(2 / odd) for odd in range(15, 0, -2))  # 2 artanh(s) = 2 s + 2 s^3 / 3 + ..., s at most 1 / 3
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
# exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, from the highest power down (Moshier's Cephes, expf)
_POLYNOMIAL = tuple(map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 0.16666665459, 0.5)))


@inner(forceinline=True)
def exp_of_negative(x):
    """exp of lanes (f32x16) that are at most 0, to a relative error of 2e-7. Values below -87 count as -87; NaN stays NaN."""
    x = select(x < broadcast(f32x16, -87), broadcast(f32x16, -87), x)
    shifted = x * _LOG2_E + ROUNDER
    n = shifted - ROUNDER
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = broadcast(f32x16, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = fma(p, r, broadcast(f32x16, coefficient))
    power = bitcast(f32x16, (bitcast(i32x16, shifted) - ROUNDER_BITS + 127) << 23)
    return (fma(p, r * r, r) + np.float32(1)) * power


# Rotary positions: each element times its cosine, plus the other one of its pair times its sine, which has the sign of the
# element's place in the pair. A row of the table, of a token with ``heads`` heads, is ``dims`` cosines and then ``dims`` sines.

ROTATED = 16  # rotated elements of a head must be a multiple of this


def rope_step(layout: str, x: torch.Tensor, table: torch.Tensor) -> Step:
    """Rotate x (tokens, heads, head_dim) in place with ``kit.model.rope.Rope.table``."""
    tokens, heads, head_dim = x.shape
    arguments = dict(x=x, head_dim=head_dim, dims=table.shape[-1], heads=heads, table=table)
    return compiled(layout), arguments, tokens * heads


def rotates(x: torch.Tensor, table: torch.Tensor) -> bool:
    """Whether x is contiguous float32 on the CPU and the rotated elements of a head are a multiple of ROTATED."""
    return table.shape[-1] % ROTATED == 0 and x.is_cpu and x.is_contiguous() and x.dtype == torch.float32


def _interleaved(head, x, head_dim, dims, heads, table):
    """Rotate the pairs (2 i, 2 i + 1) of a head, in place."""
    x += 4 * head_dim * head
    table += 8 * dims * (head // heads)
    for at in range(0, 4 * dims, 64):
        v = load(f32x16, x + at)
        sine = load(f32x16, table + 4 * dims + at)
        store(x + at, fma(v, load(f32x16, table + at), swap_neighbors(v) * sine))


def _neox(head, x, head_dim, dims, heads, table):
    """Rotate the pairs (i, i + dims / 2) of a head, in place."""
    x += 4 * head_dim * head
    table += 8 * dims * (head // heads)
    half = 2 * dims
    for at in range(0, half, 32):
        v, w = load(f32x8, x + at), load(f32x8, x + half + at)
        sine, other = load(f32x8, table + 4 * dims + at), load(f32x8, table + 4 * dims + half + at)
        store(x + at, fma(v, load(f32x8, table + at), w * sine))
        store(x + half + at, fma(w, load(f32x8, table + half + at), v * other))


EACH = {
    "add": _add, "zero": _zero, "scale": _scale, "clamp": _clamp, "ceiling": _ceiling, "silu": _silu, "gelu": _gelu,
    "squared_relu": _squared_relu, "clamped": _clamped, "sigmoid": _sigmoid, "times": _times,
}  # fmt: skip
ROPES = {"interleaved": _interleaved, "neox": _neox}
_TASKS = {**EACH, **ROPES, "gate_row": _gate_row, "gate_head": _gate_head}
