"""A residual that goes on from zero every few layers (Moonshot AI 2026, Kimi K3): earlier inputs are banked, and what a network
takes is a mixture of these and of the residual; and SiTU, the activation of that model."""

import math

import torch
from numba import types

from kit.cpu.elementwise import as_bits, sigmoid
from kit.cpu.shapes import LARGEST
from kit.cpu.simd.memory import load, put, some, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, f32x16, inner, select
from kit.cpu.tasks import Static, Step, task

f32, u32 = types.float32, types.uint32
_stack = stack(4 * LARGEST)  # a share of each stream of a residual


def mix_step(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, used: int, eps: float) -> Step:
    """out (tokens, n) = the sum of the first ``used`` streams of x (tokens, streams, n) by the softmax of their scores:
    RMSNorm of a stream times weight (n,); n a multiple of 16."""
    tokens, streams, n = x.shape
    return compiled("mix"), dict(x=x, weight=weight, out=out, streams=streams, used=used, n=n, eps=as_bits(eps)), tokens


def put_step(x: torch.Tensor, y: torch.Tensor, place: int) -> Step:
    """Add y (tokens, n) to the first stream of x (tokens, streams, n); or with a ``place`` other than 0 move that stream there,
    and put y in its stead."""
    return compiled("put"), dict(x=x, y=y, streams=x.shape[1], n=x.shape[2], place=place), len(x)


def situ_step(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, beta: float, linear: float) -> Step:
    """out = beta tanh(gate / beta) sigmoid(gate) * linear tanh(up / linear), all (tokens, n), rows contiguous; up as it is
    where ``linear`` is not above 0."""
    arguments = dict(gate=gate, up=up, out=out, gate_row=4 * gate.stride(0), up_row=4 * up.stride(0), n=gate.shape[1])
    return compiled("situ"), arguments | dict(beta=as_bits(beta), linear=as_bits(max(linear, 0.0))), len(gate)


@task
def compiled(name: Static):
    """The task of a token."""
    return {"mix": _mix, "put": _put, "situ": _situ}[name.value]


def _mix(token, x, weight, out, streams, used, n, eps):
    x, out, shares, largest, total = x + 4 * n * streams * token, out + 4 * n * token, _stack(), f32(-math.inf), f32(0)
    for stream in range(used):
        score = squares = broadcast(f32x16, 0)
        for at in range(0, 4 * n, 64):
            v = load(f32x16, x + 4 * n * stream + at)
            score, squares = fma(v, load(f32x16, weight + at), score), fma(v, v, squares)
        own = reduce_add(score) / f32(math.sqrt(reduce_add(squares) / f32(n) + bitcast(f32, u32(eps))))
        store(shares + 4 * stream, own)
        largest = max(largest, own)
    for stream in range(used):
        share = f32(math.exp(load(f32, shares + 4 * stream) - largest))
        store(shares + 4 * stream, share)
        total += share
    for at in range(0, 4 * n, 64):
        mixed = broadcast(f32x16, 0)
        for stream in range(used):
            share = load(f32, shares + 4 * stream) / total
            mixed = fma(load(f32x16, x + 4 * n * stream + at), broadcast(f32x16, share), mixed)
        store(out + at, mixed)


def _put(token, x, y, streams, n, place):
    x, y = x + 4 * n * streams * token, y + 4 * n * token
    for at in range(0, 4 * n, 64):
        if place:
            store(x + 4 * n * place + at, load(f32x16, x + at))
            store(x + at, load(f32x16, y + at))
        else:
            store(x + at, load(f32x16, x + at) + load(f32x16, y + at))


def _situ(token, gate, up, out, gate_row, up_row, n, beta, linear):
    gate, up, out = gate + gate_row * token, up + up_row * token, out + 4 * n * token
    beta, linear = bitcast(f32, u32(beta)), bitcast(f32, u32(linear))
    for at in range(0, 4 * n, 64):
        left = n - at // 4
        x, y = some(gate + at, left), some(up + at, left)
        if linear > 0:
            y = _tanh(y / linear) * linear
        put(out + at, _tanh(x / beta) * beta * sigmoid(x) * y, left)


# tanh(x) = x + x^3 p(x^2) for |x| <= 0.625, from the highest power down (Moshier's Cephes, tanhf)
_SMALL = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


@inner(forceinline=True)
def _tanh(x):
    """tanh of lanes to a relative error of 2e-7."""
    size, square = select(x < 0, 0 - x, x), x * x
    p = broadcast(f32x16, _SMALL[0])
    for coefficient in _SMALL[1:]:
        p = fma(p, square, broadcast(f32x16, coefficient))
    large = sigmoid(size * f32(2)) * f32(2) - f32(1)
    return select(size > f32(0.625), select(x < 0, 0 - large, large), x + x * square * p)
