"""Delta nets, Mamba-2 and short convolutions against their definitions in float64, token by token."""

import itertools

import numpy as np
import pytest
import torch

from kit.cpu import operations, threads
from kit.cpu.elementwise import softplus
from kit.cpu.norm import rms_norm
from kit.cpu.shapes import BLOCK, LARGEST, state_shape
from kit.cpu.simd.memory import load, put, some, store
from kit.cpu.simd.vectors import f32x16
from kit.cpu.tasks import Static, task
from kit.errors import KitError

EPS = 1e-6
CLOSE = dict(rtol=2e-5, atol=2e-5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def doubles(tensors):
    return [None if x is None else x.double().numpy() for x in tensors]


def matrices(state, values):
    """The matrices (heads, keys, values) of a state as it is stored."""
    return state.transpose(1, 2).flatten(2)[..., :values]


# ---- definitions


def defined_delta_net(qkv, alpha, beta, z, a, dt, state, weight, key_heads, eps):
    """(tokens, heads, size) and the matrices after; alpha and beta (tokens, heads), or (tokens, key_heads, heads of each)."""
    qkv, alpha, beta, a, dt, z, weight = doubles((qkv, alpha, beta, a, dt, z, weight))
    tokens, heads, size = z.shape
    grouped, m, out = alpha.ndim == 3, matrices(state, size).double().numpy(), np.zeros(z.shape)
    alpha, beta = alpha.reshape(tokens, heads), beta.reshape(tokens, heads)
    for t in range(tokens):
        q, k, v = np.split(qkv[t].reshape(-1, size), [key_heads, 2 * key_heads])
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + eps) for x in (q, k))
        for h in range(heads):
            key = h // (heads // key_heads) if grouped else h % key_heads
            m[h] *= np.exp(a[h] * np.logaddexp(0, alpha[t, h] + dt[h]))
            m[h] += np.outer(k[key], sigmoid(beta[t, h]) * (v[h] - k[key] @ m[h]))
            y = q[key] @ m[h] / np.sqrt(size)
            out[t, h] = y / np.sqrt((y * y).mean() + eps) * weight * silu(z[t, h])
    return out, m


def defined_mamba2(xbc, dt, z, a, dt_bias, d, state, groups):
    """(tokens, heads, size) and the matrices after."""
    xbc, dt, a, dt_bias, d, z = doubles((xbc, dt, a, dt_bias, d, z))
    (tokens, heads, size), keys = z.shape, state.shape[2]
    m, out = matrices(state, size).double().numpy(), np.zeros(z.shape)
    for t in range(tokens):
        x, b, c = np.split(xbc[t], [heads * size, heads * size + groups * keys])
        for h in range(heads):
            group, own, step = h // (heads // groups), x.reshape(heads, size)[h], np.logaddexp(0, dt[t, h] + dt_bias[h])
            m[h] = m[h] * np.exp(a[h] * step) + np.outer(b.reshape(groups, keys)[group], step * own)
            out[t, h] = (c.reshape(groups, keys)[group] @ m[h] + d[h] * own) * silu(z[t, h])
    return out, m


def defined_convolution(x, taps, state, bias=None, before=None, after=None, silu=False):
    """(tokens, channels) and the state after."""
    x, taps, state, bias, before, after = doubles((x, taps, state, bias, before, after))
    seen = np.concatenate([state, x if before is None else x * before])
    out = np.stack([(seen[t : t + len(taps)] * taps).sum(0) for t in range(len(x))]) + (0 if bias is None else bias)
    out = out * sigmoid(out) if silu else out
    return out if after is None else out * after, seen[len(x) :]


# ---- inputs: what a call takes, for some tokens


def computed(name, like):
    """A function of an operation's operands, whose result has the shape of one of them."""

    def function(*operands, **more):
        out = torch.empty(operands[like].shape)
        operations.run(name, *operands, **more, out=out)
        return out

    return function


def of_delta_net(tokens, size=64, key_heads=2, heads=4, grouped=False):
    if grouped:  # as one projection gives them, each key head's betas before its alphas
        both = random(tokens, key_heads, 2 * heads // key_heads)
        beta, alpha = both.split(heads // key_heads, 2)
    else:
        alpha, beta = random(tokens, heads), random(tokens, heads, seed=1)
    a, dt, weight = -random(heads).exp(), random(heads, seed=1), random(size)
    rows = random(tokens, (2 * key_heads + heads) * size), alpha, beta, random(tokens, heads, size)
    state = 0.1 * random(*state_shape(heads, size, size))
    clear_tail(state, size)

    def call(function, part, state):
        qkv, alpha, beta, z = (x[part] for x in rows)
        return function(qkv, alpha, beta, z, a, dt, state, weight, key_heads, EPS)

    return call, computed("delta net", 3), defined_delta_net, state


def of_mamba2(tokens, size=64, keys=128, heads=4, groups=1):
    inner, both = heads * size, heads * size + 2 * groups * keys
    projected, xbc = random(tokens, inner + both + heads), random(tokens, both)  # z, x B C, dt
    z, dt = projected[:, :inner].unflatten(1, (heads, size)), projected[:, inner + both :]
    a, dt_bias, d = -random(heads).exp(), random(heads, seed=1), random(heads, seed=2)
    state = 0.1 * random(*state_shape(heads, keys, size))
    clear_tail(state, size)

    def call(function, part, state):
        return function(xbc[part], dt[part], z[part], a, dt_bias, d, state, groups)

    return call, computed("mamba2", 2), defined_mamba2, state


def defined_mamba(x, dt, b, c, z, a, d, state):
    """(tokens, channels) and the numbers after, (1, keys, channels)."""
    x, dt, b, c, z, a, d = doubles((x, dt, b, c, z, a, d))
    m, out = matrices(state, x.shape[1]).double().numpy(), np.zeros(x.shape)
    for t in range(len(x)):
        step = np.logaddexp(0, dt[t])
        m[0] = m[0] * np.exp(step * a.T) + np.outer(b[t], step * x[t])
        out[t] = (c[t] @ m[0] + d * x[t]) * silu(z[t])
    return out, m


def of_mamba(tokens, channels=96, keys=16):
    projected, x, dt = random(tokens, 2 * channels + 2 * keys), random(tokens, channels), random(tokens, channels, seed=1)
    z, b, c = projected[:, :channels], *projected[:, 2 * channels :].split(keys, 1)
    a, d, state = -random(channels, keys).exp(), random(channels, seed=2), 0.1 * random(*state_shape(1, keys, channels))
    clear_tail(state, channels)

    def call(function, part, state):
        return function(x[part], dt[part], b[part], c[part], z[part], a, d, state)

    return call, computed("mamba", 0), defined_mamba, state


def of_convolution(tokens, channels=512, width=4, bias=False, gated=False):
    x, before, after = random(tokens, 3 * channels).split(channels, 1)
    taps, bias, state = random(width, channels), random(channels) if bias else None, random(width - 1, channels)

    def call(function, part, state):
        gates = dict(before=before[part], after=after[part]) if gated else dict(silu=True)
        return function(x[part], taps, state, bias=bias, **gates)

    return call, computed("convolution", 0), defined_convolution, state


def clear_tail(state, values):
    """Zeros where a state has no values."""
    for block in range(state.shape[1]):
        state[:, block, :, max(0, values - BLOCK * block) :] = 0


DELTA_NETS = [dict(), dict(size=128, heads=6), dict(grouped=True), dict(size=20), dict(size=33, heads=3, key_heads=1)]
DELTA_NETS += [dict(size=LARGEST, heads=2, key_heads=1), dict(size=1, grouped=True), dict(size=48, heads=2, grouped=True)]
MAMBAS = [dict(), dict(size=20, keys=17), dict(size=100, keys=16, groups=2), dict(heads=6, groups=3), dict(size=1, keys=1)]
FIRST = [dict(), dict(channels=20, keys=17), dict(channels=1, keys=1)]
CONVOLUTIONS = [dict(), dict(width=3, gated=True), dict(channels=1000, bias=True), dict(channels=37, width=2)]
CONVOLUTIONS += [dict(channels=5, width=3, gated=True), dict(width=1), dict(channels=272, width=7, bias=True, gated=True)]
CASES = [
    pytest.param(make, sizes, id=f"{make.__name__[3:]}-{'-'.join(f'{k}{v}' for k, v in sizes.items())}")
    for make, all_sizes in ((of_delta_net, DELTA_NETS), (of_mamba2, MAMBAS), (of_mamba, FIRST), (of_convolution, CONVOLUTIONS))
    for sizes in all_sizes
]


@pytest.mark.parametrize("make, sizes", CASES)
@pytest.mark.parametrize("tokens", [1, 2, 35])
def test_equals_the_definition(make, sizes, tokens):
    """Outputs and state, after a state that is not zero."""
    call, function, defined, state = make(tokens, **sizes)
    right, state_after = call(defined, slice(None), state)
    got = call(function, slice(None), state)
    assert got.shape == right.shape and np.allclose(got, right, **CLOSE)
    found = state if make is of_convolution else matrices(state, right.shape[-1])
    assert np.allclose(found, state_after, **CLOSE)
    if make is not of_convolution:
        tail = state.transpose(1, 2).flatten(2)[..., right.shape[-1] :]
        assert not tail.any()  # or later tokens of a head would see it


@pytest.mark.parametrize("make, sizes", CASES)
def test_a_sequence_in_parts_is_the_whole_bit_for_bit(make, sizes):
    call, function, _, state = make(40, **sizes)
    whole, states = call(function, slice(None), state.clone()), [state.clone(), state.clone()]
    for carried, cuts in zip(states, ([0, 1, 17, 18, 39, 40], range(41)), strict=True):
        parts = [call(function, slice(*cut), carried) for cut in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)
    call(function, slice(None), state)
    assert torch.equal(states[0], state) and torch.equal(states[1], state)


@pytest.mark.parametrize("make", [of_delta_net, of_mamba, of_mamba2, of_convolution])
def test_one_thread_and_several_give_equal_bits(make, monkeypatch):
    found = []
    for count in (1, 2, 5):
        pool = threads._Pool(count)
        monkeypatch.setattr(threads, "_pool", lambda pool=pool: pool)
        call, function, _, state = make(19)
        found.append((call(function, slice(None), state), state))
    for out, state in found[1:]:
        assert torch.equal(out, found[0][0]) and torch.equal(state, found[0][1])


def test_heads_that_do_not_fit_are_an_error():
    call, function, _, state = of_delta_net(1, size=LARGEST + 1)
    with pytest.raises(KitError, match="257 elements is not supported: the kernel takes at most 256"):
        call(function, slice(None), state)


@pytest.mark.parametrize("make", [of_delta_net, of_mamba2])
def test_nan_stays_in_its_head_and_is_not_hidden(make):
    call, function, _, state = make(3)
    state[1] = torch.nan
    out = call(function, slice(None), state)
    assert out[:, 1].isnan().all() and out[:, [0, 2, 3]].isfinite().all()


def _softplus(task, x, y, n):
    for at in range(0, 4 * n, 64):
        put(y + at, softplus(some(x + at, n - at // 4)), n - at // 4)


def _some(task, x, y, n):
    store(y, some(x, n))


def _put(task, x, y, n):
    put(y, load(f32x16, x), n)


@task
def primitive(name: Static):
    return {"softplus": _softplus, "some": _some, "put": _put}[name.value]


def test_softplus():
    x = torch.cat([torch.linspace(-60, 60, 5001), torch.tensor([0.0, 88, 200, 1e30, torch.inf, torch.nan])])
    y = torch.empty_like(x)
    threads.run(primitive("softplus"), (x.data_ptr(), y.data_ptr(), len(x)), 1)
    assert np.allclose(y, torch.logaddexp(torch.zeros(()).double(), x.double()), rtol=5e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [-3, 0, 1, 7, 15, 16, 20])
def test_some_and_put_touch_no_more_than_they_are_told(count):
    x, y, n = torch.arange(1.0, 21), torch.full((20,), -1.0), min(max(count, 0), 16)
    threads.run(primitive("put"), (x.data_ptr(), y.data_ptr(), count), 1)
    assert torch.equal(y[:n], x[:n]) and (y[n:] == -1).all()
    x[max(count, 0) :] = torch.nan
    threads.run(primitive("some"), (x.data_ptr(), y.data_ptr(), count), 1)
    assert torch.equal(y[:16], torch.cat([x[:n], torch.zeros(16 - n)]))


def test_rms_norm_by_groups():
    """Of n numbers in groups, each with its own weights."""
    for n in (48, 20):
        x, weight = random(3, 4, n), random(4, n)
        right = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        assert np.allclose(rms_norm(x, weight, EPS), right, **CLOSE)
