"""Dequantizers and linear layers by the Triton interpreter, on tiny shapes; all kernels as code for a Hopper GPU."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import triton_worker as worker
from hypothesis import given, settings
from hypothesis import strategies as st
from products import NAMES, truth

import kit
from kit.gguf.formats import FORMATS

FUSED = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "F16", "BF16", "F32", "Q2_K", "Q3_K", "Q4_1", "IQ4_XS", "IQ2_XXS", "IQ1_S"]
HALVES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0x7BFF, 0x7C00, 0xFC00, 0x7E00], np.uint16)


def random_blocks(qtype, count, rng, scale=None):
    """(count, block bytes): random codes; scales random halves with every special value, or normal times ``scale``."""
    format = FORMATS[qtype]
    blocks = rng.integers(0, 256, (count, format.block_bytes), dtype=np.uint8)
    fields = blocks.reshape(-1).view(format.layout)
    for name in {"d", "dmin", "m"} & set(format.layout.names):
        if fields[name].dtype == np.float16:
            special = HALVES[rng.integers(0, len(HALVES), count)].view(np.float16)
            fields[name] = np.where(rng.random(count) < 0.5, special, fields[name])
            if scale:
                fields[name] = rng.normal(0, scale, count)
    return blocks


def same_bits(a, b):
    """Equal, signs of zeros too; a NaN is a NaN."""
    nan = np.isnan(a) & np.isnan(b)
    return np.array_equal(np.where(nan, 0, a).view(np.uint32), np.where(nan, 0, b).view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("qtype", NAMES)
def test_every_format_is_bit_exact(call, qtype, dtype):
    """More than one program, the last one not full; NaN, infinite, subnormal and negative zero scales."""
    rng = np.random.default_rng(7)
    blocks = random_blocks(qtype, 4096 // FORMATS[qtype].block_elements + 1, rng)
    right = torch.from_numpy(truth(blocks, qtype)).flatten().to(getattr(torch, dtype)).float().numpy()
    assert same_bits(call(worker.dequantize, blocks, qtype, dtype), right)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(0, 15))
def test_any_count_and_address(call, qtype, count, seed, offset):
    blocks = random_blocks(qtype, count, np.random.default_rng(seed))
    assert same_bits(call(worker.dequantize, blocks, qtype, "float32", offset), truth(blocks, qtype).flatten())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do():
    with pytest.raises(kit.KitError, match=r"needs a CUDA device.*TRITON_INTERPRET=1"):
        kit.dequantize(np.zeros(144, np.uint8), "Q4_K", backend="triton")


@pytest.mark.parametrize("qtype", FUSED)
@pytest.mark.parametrize("rows, columns, tokens", [(5, 512, 1), (3, 2304, 2), (2, 256, 3), (2, 256, 9)])
def test_linear_layers_from_blocks(call, qtype, rows, columns, tokens):
    """Rows and columns that are no multiples of a program's and a step's; padded, and not fused, token counts."""
    rng = np.random.default_rng(rows)
    if qtype in ("F16", "BF16", "F32"):
        weight = torch.from_numpy(rng.normal(size=(rows, columns)).astype(np.float32))
        blocks = (
            weight.to({"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[qtype]).view(torch.uint8).numpy()
        )
    else:
        blocks = random_blocks(qtype, rows * columns // FORMATS[qtype].block_elements, rng, 0.01).reshape(rows, -1)
    x = rng.normal(size=(tokens, columns)).astype(np.float32)
    weight = kit.dequantize(blocks, qtype, backend="reference").double().numpy()
    right = x.astype(np.float64) @ weight.T
    sizes = np.abs(x).astype(np.float64) @ np.abs(weight).T  # what rounding is measured against: the sums without cancelling
    assert (np.abs(call(worker.linear, blocks, qtype, x) - right) <= 3e-6 * sizes).all()


def test_many_rows_share_x(call):
    """A program takes eight rows, the last program only one: as in a matrix of 4,097 rows, on 129 of them."""
    rng = np.random.default_rng(4)
    blocks = random_blocks("Q4_K", 129, rng, 0.01)
    x = rng.normal(size=(1, 256)).astype(np.float32)
    weight = kit.dequantize(blocks, "Q4_K", backend="reference").double().numpy()
    ours, at_once = call(worker.linear_as_of, 4097, blocks, "Q4_K", x)
    assert at_once == 8
    error = np.abs(ours - x.astype(np.float64) @ weight.T)
    assert (error <= 3e-6 * (np.abs(x).astype(np.float64) @ np.abs(weight).T)).all()


def test_an_x_that_does_not_fit_is_an_error(call):
    blocks = random_blocks("Q8_0", 4, np.random.default_rng(0), 0.01).reshape(1, -1)
    for columns in (96, 160):
        with pytest.raises(kit.KitError, match=f"x with {columns} columns does not match rows of 136 bytes of Q8_0"):
            call(worker.linear, blocks, "Q8_0", np.zeros((1, columns), np.float32))


def test_activation_norm_and_residual_are_fused(call):
    rng = np.random.default_rng(3)
    blocks = random_blocks("Q8_0", 6 * 8, rng, 0.01).reshape(6, -1)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((2, 256), (2, 256), (256,), (2, 6))]
    x, gate, weight, residual = map(torch.from_numpy, arrays)
    matrix = kit.dequantize(blocks, "Q8_0", backend="reference")
    right = ((x * F.silu(gate)) @ matrix.T, F.rms_norm(x, (256,), weight, 1e-5) @ matrix.T, residual + 0.5 * (x @ matrix.T))
    for ours, theirs in zip(call(worker.fused, blocks, *arrays, 0.5), right, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=2e-5 * float(theirs.abs().max()))


interpreting = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels do not compile")


@interpreting
@pytest.mark.parametrize("qtype", ["Q4_K", "Q4_1", "Q2_K", "Q6_K", "IQ2_XXS", "IQ1_S", "IQ1_M"])
def test_no_fused_multiply_add_in_the_machine_code(qtype):
    """Bit-exactness on real hardware: Hopper code of the dequantizer rounds every product."""
    from benchmarks._gpu_kernels import dequantizer

    compiled = dequantizer(qtype, "float32").compile()
    assert not [code for code in compiled.opcodes if code.startswith(("FFMA", "HFMA2", "LDL", "STL"))]
    assert "fma." not in compiled.ptx and ".ftz" not in compiled.ptx
    assert "STG.E.128" in compiled.opcodes


@interpreting
def test_wide_loads_of_aligned_blocks():
    from benchmarks._gpu_kernels import dequantizer, gemv

    assert "LDG.E.128" in dequantizer("Q4_K", "bfloat16").compile().opcodes
    compiled = gemv("Q4_K", 4096, 12800).compile()
    assert compiled.loop.count("LDG.E.128") >= 8 and not [code for code in compiled.opcodes if code.startswith("LDL")]
    assert ".ftz" not in compiled.ptx, "subnormal codes would be flushed to zero"


@interpreting
@pytest.mark.parametrize("capability", [80, 89, 90, 120])
def test_products_of_blocks_compile_for_each_generation_without_spilling(capability):
    """A100, RTX 4090, H100, RTX 5090: by the assembler that Triton brings."""
    from benchmarks._gpu_kernels import gemv

    compiled = gemv("Q4_K", 4096, 12800).compile(capability)
    assert f".target sm_{capability}" in compiled.ptx and not compiled.spilled and 0 < compiled.registers <= 128


@interpreting
def test_counted_instructions_leave_room_for_the_goals():
    """Counted instructions take less time on an H200 than the goals allow: 82 % of bandwidth, 0.16 us a tile."""
    from benchmarks._gpu_kernels import gemv, tile_decoder
    from kit.lab.measuring import machine

    device = machine.peaks().set_index("id").loc["h200"].to_dict()
    case = gemv("Q4_K", 4096, 12800)
    bounds = case.bounds(device, case.compile())
    assert bounds["memory"] / max(bounds.values()) >= 0.82
    issue = sum(case.bounds(device, case.compile())["issue"] for case in tile_decoder(1024))
    assert issue / 1024 <= 0.16e-6
