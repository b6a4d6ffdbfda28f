"""Causal depthwise convolution over the tokens of a sequence, with few taps and a state: the last inputs."""

from numba import types

from kit.cpu.elementwise import sigmoid
from kit.cpu.simd.memory import put, some
from kit.cpu.simd.sums import fma
from kit.cpu.simd.vectors import broadcast, f32x16, inner
from kit.cpu.tasks import Step, task

f32 = types.float32
_SHARE = 256  # channels of a task


def step(x, taps, state, out, bias=None, before=None, after=None, silu: bool = False) -> Step:
    """out[t] = sum of taps[j] * x[t - width + 1 + j], x and ``out`` (tokens, channels); updates ``state``.

    taps: (width, channels), the last row for the token itself. state: (width - 1, channels), the inputs before x; zeros in a
    new sequence. bias: (channels,), added. ``silu``: apply SiLU afterwards. before, after: (tokens, channels), factors of x and
    of the result. x, before and after may be views of one projection.
    """
    tokens, channels = x.shape
    arguments = dict(
        x=x, row=4 * x.stride(0), taps=taps, state=state, out=out,
        bias=bias, before=before, after=after, tokens=tokens, channels=channels, width=len(taps), silu=silu,
    )  # fmt: skip
    return _convolve(), arguments, -(-channels // _SHARE)


@task
def _convolve():
    """The task for some channels."""
    return _convolve_channels


def _convolve_channels(task, x, row, before, after, taps, bias, state, out, tokens, channels, width, silu):
    first, count = 4 * _SHARE * task, min(_SHARE, channels - _SHARE * task)
    apart, held = 4 * channels, width - 1  # bytes from a row to the next, but for x, before and after; rows of the state
    for token in range(tokens):
        for at in range(first, first + 4 * count, 64):
            left = channels - at // 4
            total = some(bias + at, left) if bias else broadcast(f32x16, 0)
            for tap in range(width):
                v = _input(token - held + tap, x + at, row, before + at if before else 0, state + at, apart, held, left)
                total = fma(v, some(taps + apart * tap + at, left), total)
            total = total * sigmoid(total) if silu else total
            put(out + apart * token + at, total * some(after + row * token + at, left) if after else total, left)
    for at in range(first, first + 4 * count, 64):
        left = channels - at // 4
        for n in range(held):
            last = _input(tokens - held + n, x + at, row, before + at if before else 0, state + at, apart, held, left)
            put(state + apart * n + at, last, left)


@inner
def _input(token, x, row, before, state, apart, held, left):
    """Up to 16 channels of a token, but at most those that are left; for tokens before 0, from the state."""
    if token < 0:
        return some(state + apart * (held + token), left)
    v = some(x + row * token, left)
    return v * some(before + row * token, left) if before else v
