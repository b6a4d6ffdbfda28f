"""dequantize: every format, backend, tier and dtype against gguf-py and torch's own rounding; layouts, memory, errors."""

import mmap
import os
import re
import subprocess
import sys
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import products
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from products import NAMES

import kit
from benchmarks.decode import V3
from kit.cpu import dequantize as cpu
from kit.cpu import simd, tasks
from kit.errors import QuantError
from kit.gguf.formats import BY_ID, DTYPES, FORMATS
from kit.lab.exactness import random_blocks
from kit.quants import plain
from kit.quants.registry import BACKENDS

BLOCKED = [name for name in NAMES if FORMATS[name].block_elements > 1]
OFTEN = ("Q4_K", "Q6_K", "Q8_0", "Q4_0", "F16", "BF16", "F32")
# Each pair is a kernel to compile: of formats that are rare, one dtype in turn, and the others among the slow tests.
PAIRS = [
    pytest.param(name, dtype, marks=[pytest.mark.slow] * (name not in OFTEN and (row + column) % len(DTYPES) != 0))
    for row, name in enumerate(NAMES)
    for column, dtype in enumerate(DTYPES)
]
HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]  # +-0, subnormal, largest, inf, NaN


def truth(blocks, name):
    """The right numbers as a tensor."""
    return torch.from_numpy(products.truth(blocks, name))


def same(a, b):
    """Equal in every bit, signs of zeros included, but any NaN equals any."""
    return bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a block or two, so that small tensors too are shared among threads."""
    monkeypatch.setattr(cpu, "_CHUNK", 512)


# ---- numbers


def test_every_format_is_there():
    assert NAMES == sorted(format.name for format in FORMATS.values() if cpu.knows(format))
    assert len(BLOCKED) == 25 and "BF16" in NAMES  # the 24 that gguf-py names besides F32 and F16, and two


@pytest.mark.parametrize("name, dtype", PAIRS)
def test_cpu_equals_the_reference_on_random_blocks(name, dtype, small_chunks):
    blocks = random_blocks(name, 4099 if name not in BLOCKED else 67)
    assert same(kit.dequantize(blocks, name, dtype), truth(blocks, name).to(getattr(torch, dtype)))


@pytest.mark.parametrize("name", NAMES)
def test_plain_equals_the_reference(name, monkeypatch):
    """On random blocks, and on any bytes at all, where scales are NaN, infinite and subnormal, too; in several chunks."""
    monkeypatch.setattr(plain, "_CHUNK_WEIGHTS", 1024)
    anything = np.random.default_rng(1).integers(0, 256, (67, FORMATS[name].block_bytes), dtype=np.uint8)
    for blocks in (random_blocks(name, 67), anything):
        assert same(kit.dequantize(blocks, name, backend="plain"), truth(blocks, name))
    assert {known for known in FORMATS if plain.knows(FORMATS[known])} == set(NAMES)


def test_plain_takes_a_chunk_of_weights_at_a_time(monkeypatch):
    monkeypatch.setattr(plain, "_CHUNK_WEIGHTS", 64)
    taken, blocks = [], random_blocks("Q8_0", 5)
    weights = lambda part: taken.append(len(part)) or products.truth(part, "Q8_0")  # noqa: E731
    plain.in_chunks(weights, blocks, FORMATS["Q8_0"], out := torch.empty(5, 32))
    assert taken == [2, 2, 1] and same(out, truth(blocks, "Q8_0"))


@pytest.mark.slow
@pytest.mark.parametrize("tier", [tier for tier in simd.available() if tier != simd.tier().value])
def test_the_other_tiers_too(tier):
    with simd.using(tier):
        for name in NAMES[::3]:  # each of 24 kernels is compiled anew
            blocks = random_blocks(name, 67, seed=1)
            assert same(kit.dequantize(blocks, name), truth(blocks, name)), name


@pytest.mark.parametrize("name, dtype", [pair for pair in PAIRS if pair.values[0] in BLOCKED])
def test_cpu_equals_the_reference_at_the_extremes(name, dtype):
    """Every special half-precision number as a scale, and every byte value in all other fields."""
    blocks = np.repeat(np.array([0, 1, 0x5A, 0x7F, 0x80, 0xFE, 0xFF], np.uint8), FORMATS[name].block_bytes)
    blocks = np.tile(blocks.reshape(7, -1), (len(HALVES), 1))
    fields = blocks.view(FORMATS[name].layout)[:, 0]
    scales = [field for field in ("d", "dmin", "m") if field in fields.dtype.names and fields[field].dtype == "<f2"]
    for turn, field in enumerate(scales):
        fields[field] = np.roll(np.repeat(np.array(HALVES, np.uint16), 7), 7 * turn).view(np.float16)
    assert same(kit.dequantize(blocks, name, dtype), truth(blocks, name).to(getattr(torch, dtype)))


def test_every_half_as_bfloat16():
    halves = np.arange(2**16, dtype=np.uint16)
    assert same(kit.dequantize(halves.view(np.uint8), "F16", "bfloat16"), torch.from_numpy(halves.view(np.float16)).bfloat16())


@pytest.mark.skipif("avx512" not in simd.available(), reason="looks for instructions of AVX-512")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "F16"])
def test_results_larger_than_the_caches_go_past_them(name, dtype):
    """The machine code contains non-temporal stores of 64 bytes."""
    kit.dequantize(np.zeros(FORMATS[name].block_bytes, np.uint8), name, dtype)
    symbol = next(symbol for symbol in tasks._loaded if f".dequantize._kernel.{name}.{dtype}.avx512" in symbol)
    code = (tasks._place(Path(cpu.__file__).parent) / f"{symbol}.o").read_bytes()
    assert re.search(rb"\x62.[\x7c\x7d\xfd]\x48[\x2b\xe7]", code, re.DOTALL)  # vmovntps or vmovntdq zmm


@pytest.mark.parametrize("tier", simd.available())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_torchs(dtype, tier):
    """Ties, overflow to infinity, subnormals, NaN: at and beside the middle between every 16th pair of neighbors."""
    halves = np.arange(0, 2**16, 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        near = halves.view(np.float16).astype(np.float32)
        steps = (halves + np.uint16(1)).view(np.float16).astype(np.float32)
        ties = (near + steps) / 2
        values = np.concatenate([near, ties, np.nextafter(ties, steps), np.nextafter(ties, near)])
    wide = (halves.astype(np.uint32) << 16)[:, None] | np.array([0x7FFF, 0x8000, 0x8001, 0x18000], np.uint32)
    values = np.concatenate([values, wide.view(np.float32).ravel()])
    with simd.using(tier):
        assert same(kit.dequantize(values.view(np.uint8), "F32", dtype), torch.from_numpy(values).to(getattr(torch, dtype)))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["Q4_K", "Q8_0", "IQ3_S", "F16"]), st.lists(st.integers(0, 3), max_size=3), st.data())
def test_any_bytes_in_any_shape(name, leading, data):
    format = FORMATS[name]
    shape = (*leading, data.draw(st.integers(0, 3)) * format.block_bytes)
    size = int(np.prod(shape))
    blocks = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(shape)
    result = kit.dequantize(blocks, name)
    assert result.shape == (*leading, shape[-1] // format.block_bytes * format.block_elements)
    if size:
        assert same(result.reshape(-1), truth(blocks.reshape(-1, format.block_bytes), name).reshape(-1))


# ---- layouts and memory


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float16")])
def test_numpy_dtypes_give_arrays(dtype):
    blocks = random_blocks("Q4_K", 2048)
    right = truth(blocks, "Q4_K").numpy().astype(dtype)
    for backend in {*BACKENDS} - {"triton"}:
        result = kit.dequantize(blocks, "Q4_K", dtype, backend)
        assert isinstance(result, np.ndarray) and same(torch.from_numpy(result), torch.from_numpy(right))
    result = np.empty_like(right)
    assert kit.dequantize(blocks, "Q4_K", np.dtype(dtype).name, out=result) is result
    assert same(torch.from_numpy(result), torch.from_numpy(right))


def test_neither_torch_nor_numba_is_imported_for_an_array():
    code = """
import sys, numpy as np, kit
assert (kit.dequantize(np.zeros((2, 144), np.uint8), "Q4_K", np.float32) == 0).all()
print({"torch", "numba", "gguf"} & set(sys.modules))"""
    kit.dequantize(np.zeros((2, 144), np.uint8), "Q4_K")  # so that the machine code lies on the disk
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_floats_of_any_length_touch_nothing_else(dtype, streams, monkeypatch):
    monkeypatch.setattr(cpu, "last_level_cache", lambda: -1 if streams else 2**40)
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for count in range(50):
        out = torch.full((64,), 7, dtype=getattr(torch, dtype))
        kit.dequantize(values[:count].view(np.uint8), "F32", dtype, out=out[:count])
        assert same(out[:count], torch.from_numpy(values[:count]).to(out.dtype)) and (out[count:] == 7).all()


@pytest.mark.parametrize("shift", [0, 1, 16, 31])
def test_streaming_into_aligned_and_odd_addresses(shift, monkeypatch, small_chunks):
    monkeypatch.setattr(cpu, "last_level_cache", lambda: 0)
    blocks = random_blocks("Q4_K", 33)
    out = torch.full((33 * 256 + 64,), 7.0)
    kit.dequantize(blocks.reshape(-1), "Q4_K", out=out[shift : shift + 33 * 256])
    assert same(out[shift : shift + 33 * 256], truth(blocks, "Q4_K").reshape(-1))
    assert (out[:shift] == 7).all() and (out[shift + 33 * 256 :] == 7).all()


@pytest.mark.parametrize("backend", ["cpu", "plain", "reference"])
def test_inputs_of_every_layout(backend, tmp_path):
    blocks = random_blocks("Q6_K", 24).reshape(4, 6 * 210)
    wanted = truth(blocks.reshape(-1, 210), "Q6_K").reshape(4, 6 * 256)
    path = tmp_path / "blocks"
    path.write_bytes(b"?" + blocks.tobytes())  # one byte off every alignment
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[1:].reshape(4, -1)
    layouts = {
        "read-only map": mapped,
        "tensor": torch.from_numpy(blocks),
        "every other row": np.repeat(blocks, 2, axis=0)[::2],
        "column-major": np.asfortranarray(blocks),
    }
    for layout, data in layouts.items():
        assert same(kit.dequantize(data, "Q6_K", backend=backend), wanted), layout
    assert kit.dequantize(blocks.reshape(2, 1, 2, -1), "Q6_K", backend=backend).shape == (2, 1, 2, 6 * 256)


@pytest.mark.parametrize("backend", ["cpu", "plain", "reference"])
@pytest.mark.parametrize("shape, expected", [((0,), (0,)), ((3, 0), (3, 0)), ((0, 144), (0, 256)), ((144,), (256,))])
def test_empty_and_single(shape, expected, backend):
    assert kit.dequantize(np.zeros(shape, np.uint8), "Q4_K", backend=backend).shape == expected


def test_out_is_what_comes_back():
    blocks = random_blocks("Q8_0", 8)
    out = torch.empty(8, 32, dtype=torch.bfloat16)
    assert kit.dequantize(blocks, "Q8_0", torch.bfloat16, out=out) is out
    assert same(out, truth(blocks, "Q8_0").bfloat16())


def test_a_large_result_lies_where_one_did_that_is_gone():
    blocks = random_blocks("Q4_0", 2**15)
    first = kit.dequantize(blocks, "Q4_0")
    place, view = first.data_ptr(), first[5:]
    del first
    assert kit.dequantize(blocks, "Q4_0").data_ptr() != place and same(view, truth(blocks, "Q4_0")[5:])
    del view
    kept = [kit.dequantize(blocks, "Q4_0") for _ in range(2)]
    assert place in {result.data_ptr() for result in kept} and same(*kept)


@pytest.mark.parametrize("qtype", [gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType(8)])
def test_gguf_s_own_constants_are_names_too(qtype):
    blocks = random_blocks(qtype.name, 3)
    assert torch.equal(kit.dequantize(blocks, qtype), kit.dequantize(blocks, qtype.name))


@pytest.mark.parametrize("backend, transient", [("cpu", 2**18), ("reference", 2**26)])
def test_little_memory_besides_the_result(backend, transient):
    blocks = random_blocks("Q8_0", 2**20)  # 128 MiB of float32
    out = torch.empty(2**20, 32)
    kit.dequantize(blocks[:32], "Q8_0", backend=backend, out=out[:32])
    tracemalloc.start()
    kit.dequantize(blocks, "Q8_0", backend=backend, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < transient


def test_many_python_threads_at_once(small_chunks):
    blocks = [random_blocks(name, 64, seed) for seed, name in enumerate(["Q4_K", "Q6_K"] * 8)]
    names = ["Q4_K", "Q6_K"] * 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(kit.dequantize, blocks, names))
    assert all(same(result, truth(data, name)) for result, data, name in zip(results, blocks, names, strict=True))


_OLDER = """
import numpy as np, torch, kit
from kit.cpu import simd
from kit.lab.exactness import exactness
assert simd.available()[0] == {tier!r}, simd.available()
assert not simd.matrix()
assert exactness(["Q4_K", "IQ2_S", "F16"], dtypes=["float32"]).equal.all()
assert exactness(["Q4_K"], dtypes=["float16"]).equal.all()
"""


@pytest.mark.slow
@pytest.mark.skipif(not simd.features() >= simd.TIERS["avx2"], reason="needs a CPU with AVX2 to play an older one")
@pytest.mark.parametrize("cpu_name, features, tier", [("x86-64-v3", V3, "avx2"), ("x86-64", "+sse2", "plain")])
def test_code_compiled_for_an_older_cpu(cpu_name, features, tier):
    """In a process of its own, Numba compiles for a CPU without the newer instructions."""
    environment = os.environ | {"NUMBA_CPU_NAME": cpu_name, "NUMBA_CPU_FEATURES": features}
    done = subprocess.run([sys.executable, "-c", _OLDER.format(tier=tier)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- errors


@pytest.mark.parametrize("arguments, says", [
    ({"qtype": "Q9_K"}, "format 'Q9_K' is not known; choose one of F32"),
    ({"qtype": "Q8_1"}, "cannot dequantize Q8_1; it supports BF16"), ({"qtype": "I8"}, "cannot dequantize I8"),
    ({"dtype": "float64"}, "dtype 'float64' is not known; choose one of float32, float16, bfloat16"),
    ({"dtype": torch.int8}, "dtype 'int8' is not known"),
    ({"backend": "gpu"}, "backend 'gpu' is not known; choose one of reference, plain, cpu"),
    ({"backend": ["cpu"]}, "backend ['cpu'] is not known"),
    ({"data": np.zeros(145, np.uint8)}, "a row of 145 bytes is not a whole number of blocks of 144 bytes"),
    ({"data": np.zeros(144, np.int8)}, "uint8 array or tensor of at least one axis, not ndarray of int8, shape (144,)"),
    ({"data": b"\0" * 144}, "not bytes"), ({"data": np.uint8(3)}, "at least one axis"),
    ({"data": torch.empty(144, dtype=torch.uint8, device="meta")}, "blocks on meta, but the backend works on cpu"),
    ({"out": torch.empty(255)}, "float32 tensor or array of shape (256,) on cpu, not Tensor of torch.float32, shape (255,)"),
    ({"out": torch.empty(256, dtype=torch.half)}, "not Tensor of torch.float16"),
    ({"out": torch.empty(512)[::2]}, "not contiguous"), ({"out": np.empty(256)}, "not ndarray of float64"),
    ({"out": np.empty(512, np.float32)[::2]}, "not contiguous"), ({"out": torch.empty(256, device="meta")}, "on meta"),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["cpu", "plain", "reference"])
def test_errors_say_what_was_wrong(arguments, says, backend):
    with pytest.raises(QuantError) as error:
        kit.dequantize(**{"data": np.zeros(144, np.uint8), "qtype": "Q4_K", "backend": backend} | arguments)
    assert says in str(error.value)


@pytest.mark.parametrize("backend", ["reference", "plain", "cpu"])
def test_blocks_that_nobody_may_write_give_no_warning(backend):
    """Those of a mapped file: gguf-py's own weights of F32 are a view of them."""
    blocks = np.arange(64, dtype=np.float32).view(np.uint8).reshape(64, 4)
    blocks.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kit.dequantize(blocks, "F32", backend=backend).sum() == 63 * 32


# ---- the table of formats, against gguf-py's and llama.cpp's


def test_the_table_is_gguf_pys():
    ours = {format.name: (format.id, format.block_elements, format.block_bytes) for format in FORMATS.values()}
    theirs = {qtype.name: (int(qtype), *gguf.GGML_QUANT_SIZES[qtype]) for qtype in gguf.GGMLQuantizationType}
    assert ours == theirs | {"Q2_0": (42, 64, 18)}  # which gguf-py does not have yet
    assert {id: format.name for id, format in BY_ID.items()} == {id: name for name, (id, *_) in ours.items()}


def test_the_table_is_llama_cpps():
    """Names and sizes; of Q8_1, which no file holds, gguf-py says another size."""
    for format in FORMATS.values():
        name, *sizes = llama_cpp.format_of(format.id)
        assert name.upper() == format.name
        assert sizes == [format.block_elements, 36 if name == "q8_1" else format.block_bytes], name


@pytest.mark.parametrize("name, elements, nbytes, bits", [("Q4_K", 4096, 2304, 4.5), ("Q8_0", 64, 68, 8.5)])
def test_sizes(name, elements, nbytes, bits):
    assert FORMATS[name].nbytes(elements) == nbytes
    assert FORMATS[name].bits_per_weight == bits


def test_byteswap_turns_a_big_endian_block_into_a_native_one():
    """Q4_K from a big-endian file: only its two float16 scales change order."""
    native = np.arange(144, dtype=np.uint8)
    big = native.copy()
    big[:4] = [1, 0, 3, 2]
    assert np.array_equal(big.view(FORMATS["Q4_K"].layout).byteswap().view(np.uint8), native)
