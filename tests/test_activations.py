"""Activations in eight bits beside ggml's own: which formats share a scale among how many, the codes and the scales bit for
bit, and the products, which are at least as near to float64 as those of ggml's ``vec_dot``."""

import ctypes

import numpy as np
import pytest
import torch
from llama_cpp import dequantized, needed

import kit
from kit.cpu import activations, gemm_codes
from kit.cpu.linear import linear
from kit.gguf.formats import BY_ID, FORMATS
from kit.lab.engines import llama_cpp
from kit.lab.exactness import random_blocks
from kit.lab.predicting.divergence import window_of
from kit.model.linear import LINEAR

GROUPS = {"Q8_0": 32, "Q8_1": 32, "Q8_K": 256}
RECORDS = {  # as ggml itself writes them
    "Q8_0": np.dtype([("d", "<f2"), ("qs", "i1", 32)]),
    "Q8_1": np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)]),
    "Q8_K": np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)]),
}
TOKENS = 64  # of a text
OFTEN = "Q4_K", "Q6_K", "Q5_0"
IN_EIGHT_BITS = sorted(name for name, format in FORMATS.items() if format.codes)


@pytest.fixture(autouse=True)
def ggml():
    needed()


class _Traits(ctypes.Structure):
    _fields_ = (
        ("from_float", ctypes.c_void_p), ("vec_dot", ctypes.c_void_p), ("type", ctypes.c_int), ("rows", ctypes.c_int64)
    )  # fmt: skip


def traits(name):
    """ggml's functions for a format on the CPU."""
    lib = llama_cpp.library()
    lib.ggml_cpu_init()
    lib.ggml_get_type_traits_cpu.restype, lib.ggml_get_type_traits_cpu.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    return lib.ggml_get_type_traits_cpu(FORMATS[name].id).contents


def numbers(kind, columns=1024, seed=0):
    x = np.random.default_rng(seed).standard_normal(columns).astype(np.float32)
    if kind == "outliers":
        x[::97] *= 200
    elif kind == "ties":
        x = np.round(x * 32) / 2  # with 63.5 as the largest of all groups, halves of a step
        x[::32] = 63.5
    elif kind == "negative":
        x[::32] = -9
    elif kind == "zeros":
        x[:512] = 0
    return x


def by_ggml(name, x):
    """(codes, scales) of ggml's records of a type, the scales as it stores them."""
    kind = RECORDS[name]
    records = np.zeros(len(x) // GROUPS[name], kind)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(traits(name).from_float)
    function(x.ctypes.data, records.ctypes.data, len(x))
    return records["qs"], records["d"]


@pytest.mark.parametrize("name", IN_EIGHT_BITS)
def test_as_many_share_a_scale_as_in_ggml(name):
    assert FORMATS[name].activations == GROUPS[BY_ID[traits(name).type].name]


def assert_codes_and_scales_are_ggmls(name, x):
    group = GROUPS[name]
    records = activations.quantize(torch.from_numpy(x)[None], activations.address(activations.NATURAL), 1, group).numpy()[:, 0]
    codes, scales = records[:, :256].view(np.int8).reshape(-1, group), records[:, 320:384].copy().view(np.float32).ravel()
    theirs, d = by_ggml(name, x)
    scales = scales[:: group // 16]
    if name == "Q8_K":  # the sign of the largest goes to the scale
        sign = np.where(np.signbit(d), -1, 1).astype(np.int8)
        theirs, d = theirs * sign[:, None], np.abs(d)
    assert np.array_equal(codes, theirs)
    assert np.array_equal(scales if name == "Q8_K" else scales.astype(np.float16), d)  # float16 there, float32 here
    seen = codes * scales[:, None]
    assert np.array_equal(activations.rounded(torch.from_numpy(x)[None], group).numpy().ravel(), seen.ravel())


@pytest.mark.parametrize("kind", ["normal", "outliers", "ties", "negative", "zeros"])
@pytest.mark.parametrize("name", GROUPS)
def test_codes_and_scales_are_ggmls_own(name, kind):
    assert_codes_and_scales_are_ggmls(name, numbers(kind))


def assert_as_near_as_ggmls(name, x):
    """RMS of the errors of 64 rows times tokens x (tokens, columns), one by one, and together. Where ggml's scales are float16
    the errors are not the same, and ours less on average: 0.2 % more is the chance of the draw."""
    rows, (tokens, columns) = 64, x.shape
    blocks = random_blocks(name, rows * columns // FORMATS[name].block_elements).reshape(rows, -1)
    format = FORMATS[name]
    weights = dequantized(blocks.reshape(-1, format.block_bytes), format.id).reshape(rows, columns).astype(np.float64)
    right, found = x.astype(np.float64) @ weights.T, traits(name)
    kind, theirs, out = BY_ID[found.type].name, np.empty((tokens, rows)), ctypes.c_float()
    i64, cint, record = ctypes.c_int64, ctypes.c_int, np.zeros(columns // GROUPS[BY_ID[found.type].name], RECORDS[kind])
    from_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, i64)(traits(kind).from_float)
    dot = ctypes.CFUNCTYPE(None, cint, ctypes.c_void_p, i64, ctypes.c_void_p, i64, ctypes.c_void_p, i64, cint)(found.vec_dot)
    for token in range(tokens):
        from_float(x[token].ctypes.data, record.ctypes.data, columns)
        for row in range(rows):
            dot(columns, ctypes.addressof(out), 0, blocks[row].ctypes.data, 0, record.ctypes.data, 0, 1)
            theirs[token, row] = out.value
    x = torch.from_numpy(x)
    one_by_one = torch.cat([linear(blocks, name, token[None], "int8") for token in x])
    together = linear(blocks, name, x, "int8")
    size = np.sqrt((right**2).mean(1))[:, None] * np.sqrt((weights**2).mean(1))
    of_ours = [np.sqrt((((y.double().numpy() - right) / size) ** 2).mean()) for y in (one_by_one, together)]
    assert 0 < max(of_ours) <= 1.005 * np.sqrt((((theirs - right) / size) ** 2).mean())


EACH = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in IN_EIGHT_BITS]


@pytest.mark.parametrize("kind", ["normal", "outliers"])
@pytest.mark.parametrize("name", EACH)
def test_products_are_as_near_to_float64_as_ggmls(name, kind):
    assert_as_near_as_ggmls(name, np.stack([numbers(kind, seed=seed) for seed in range(gemm_codes.FEWEST)]))


@pytest.fixture(scope="module")
def of_a_trained_model(trained):
    """What the tokens of a text give to a layer's last product, (tokens, columns): of the layer with the largest outlier."""
    seen, fused = [], LINEAR["fused"]

    def apply(weights, name, x):
        seen.extend([x.clone()] * name.endswith("ffn_down.weight"))
        return fused.apply(weights, name, x)

    model = kit.Transformer(kit.Weights(kit.open(trained)), linear=fused._replace(apply=apply))
    model.logits(window_of(model.tokenizer, model.config.context, TOKENS))
    x = max(seen, key=lambda x: x.abs().max() / x.std()).numpy()
    assert np.abs(x).max() > 20 * x.std()
    return np.ascontiguousarray(x[:, np.abs(x).max(0).argmax() // 512 * 512 :][:, :512])


@pytest.mark.parametrize("name", EACH)
def test_of_trained_activations_too(of_a_trained_model, name):
    assert_codes_and_scales_are_ggmls(BY_ID[traits(name).type].name, of_a_trained_model[-1])
    assert_as_near_as_ggmls(name, of_a_trained_model)
