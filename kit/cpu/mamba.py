"""Mamba (Gu & Dao 2023), the first one: each channel has a few numbers of state, with a decay for each of them.

A token's numbers M (keys, channels) are stored in blocks of BLOCK channels, as kit.cpu.recurrent stores a head's matrix. A task
is a block, and the tokens of a prompt pass it one after another while it is in the first-level cache. Each token's operations
are the same in a prompt and alone, so the bits are the same.
"""

from numba import types

from kit.cpu.elementwise import exp_of_negative, sigmoid, softplus
from kit.cpu.shapes import BLOCK
from kit.cpu.simd.memory import load, put, some, store
from kit.cpu.simd.sums import fma
from kit.cpu.simd.vectors import broadcast, f32x16
from kit.cpu.tasks import Step, task

f32 = types.float32


def step(x, dt, b, c, z, a, d, state, out) -> Step:
    """The scan of some tokens with its gate, into ``out`` (tokens, channels); the ``state`` (kit.cpu.shapes.state_shape of 1,
    keys and channels) is carried on.

    x: (tokens, channels), after the convolution; dt: (tokens, channels), with its bias; b, c: (tokens, keys) and z: (tokens,
    channels), which may be views of a projection. a: (channels, keys), below 0; d: (channels,). With s = softplus(dt):

        M = exp(s a^T) M + b (s x)^T;  y = (c^T M + d x) * silu(z)
    """
    tokens, channels = out.shape
    strides = {f"{name}_bytes": 4 * rows.stride(0) for name, rows in (("b", b), ("c", c), ("z", z))}
    tensors = dict(x=x, dt=dt, b=b, c=c, z=z, a=a.T.contiguous(), d=d, state=state, out=out)
    return _mamba(), tensors | strides | dict(tokens=tokens, channels=channels, keys=b.shape[1]), -(-channels // BLOCK)


@task
def _mamba():
    """The task of a block of channels."""
    return _of_block


def _of_block(block, x, dt, b, c, z, a, d, state, out, tokens, channels, keys, b_bytes, c_bytes, z_bytes):
    first, left, row = 4 * BLOCK * block, channels - BLOCK * block, 4 * channels
    state += 4 * BLOCK * keys * block
    for n in range(tokens):
        at = row * n + first
        one, other = some(x + at, left), some(x + at + 64, left - 16)
        step, second = softplus(some(dt + at, left)), softplus(some(dt + at + 64, left - 16))
        y, w = one * some(d + first, left), other * some(d + first + 64, left - 16)
        one, other = one * step, other * second
        for key in range(keys):
            rate, matrix = a + row * key + first, state + 4 * BLOCK * key
            k = broadcast(f32x16, load(f32, b + b_bytes * n + 4 * key))
            q = broadcast(f32x16, load(f32, c + c_bytes * n + 4 * key))
            e = fma(one, k, load(f32x16, matrix) * exp_of_negative(step * some(rate, left)))
            f = fma(other, k, load(f32x16, matrix + 64) * exp_of_negative(second * some(rate + 64, left - 16)))
            store(matrix, e)
            store(matrix + 64, f)
            y, w = fma(e, q, y), fma(f, q, w)
        gate, more = some(z + z_bytes * n + first, left), some(z + z_bytes * n + first + 64, left - 16)
        put(out + at, y * gate * sigmoid(gate), left)
        put(out + at + 64, w * more * sigmoid(more), left - 16)
