"""fused: y = W x from blocks against float64 arithmetic, both accuracies, all tiers; the models that run on it."""

import contextlib
import ctypes
import itertools
import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import model_files
import numpy as np
import products
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import njit
from reference_model import forward

import kit
from benchmarks.decode import masked
from kit.cpu import activations as activations_in_digits
from kit.cpu import crossings, gemm_codes, gemv_codes, simd, superblock_scales, superblocks
from kit.cpu.crossings import ROWS, TILES
from kit.cpu.linear import MANY_TOKENS, linear
from kit.cpu.simd.memory import store
from kit.errors import QuantError
from kit.gguf.formats import FORMATS
from kit.lab.exactness import exactness, random_blocks
from kit.model import linear as model_linear

COMMON = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "F16", "BF16", "F32"]
OTHERS = "Q1_0 Q2_0 Q5_0 Q2_K Q4_1 Q5_1 Q3_K TQ1_0 IQ4_XS MXFP4 NVFP4 IQ2_XXS IQ3_S".split()  # by scales
TESTS = Path(__file__).parent
ACCURACIES = ["float32", "int16", "int8"]
PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 20)]


def matrix(qtype, rows, columns, seed=0):
    """Random blocks of a matrix, (rows, bytes of a row), and its numbers in float64."""
    blocks = random_blocks(qtype, rows * columns // FORMATS[qtype].block_elements, seed)
    return blocks.reshape(rows, -1), products.truth(blocks, qtype).reshape(rows, columns).astype(np.float64)


def shape(qtype, units):
    """Columns: a few units of 256, and for small blocks a rest."""
    return 256 * units + {256: 0, 1: 37, 64: 64, 128: 128}.get(FORMATS[qtype].block_elements, 96)


def activations(tokens, columns, seed=0):
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(seed))


def guarded(blocks):
    """The blocks before a protected page: reading one byte more kills the process."""
    size = -(-blocks.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(pages.ctypes.data + size), mmap.PAGESIZE, 0) == 0
    copy = pages[size - blocks.nbytes : size].reshape(blocks.shape)
    copy[:] = blocks
    return copy


@contextlib.contextmanager
def by(name):
    """Within the ``with``, the products of two tokens or more are by this kernel, whichever is the faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossings, "fastest", lambda *_: name)
        yield


def check(qtype, rows, columns, tokens, accuracy, seed=0, place=np.copy):
    blocks, w = matrix(qtype, rows, columns, seed)
    x = activations(tokens, columns, seed)
    y = linear(place(blocks), qtype, x, accuracy)
    assert y.shape == (tokens, rows) and y.dtype == torch.float32
    kernel = crossings.fastest(FORMATS[qtype], accuracy, tokens) if tokens > 1 and FORMATS[qtype].codes else ROWS
    products.check(qtype, y.numpy(), w, x.numpy(), accuracy, fine=kernel == TILES and tokens >= 16)


# ---- one matrix


@pytest.mark.parametrize(("small", "accuracy", "columns"), [(True, "int8", 4096), (True, "float32", 0), (False, "int8", 0)])
def test_a_wide_row_keeps_its_activations_in_the_first_level_cache(small, accuracy, columns, monkeypatch):
    """Of the length of those of a 1.5B model's ffn_down, which are read without what is fetched ahead where that gains."""
    check("Q6_K", 9, 8960, 1, accuracy)
    monkeypatch.setattr(gemv_codes, "_WIDE", 6144 * small)
    assert 16 * gemv_codes._narrow(accuracy, gemv_codes.record_bytes(gemv_codes.DIGITS[accuracy])) == (columns or 1 << 44)


@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("qtype", COMMON)
@settings(max_examples=12, deadline=None)
@given(rows=st.sampled_from([1, 2, 7, 16, 19, 67]), units=st.integers(1, 3), tokens=st.integers(1, 17), seed=st.integers(0, 9))
def test_products_equal_float64(qtype, accuracy, rows, units, tokens, seed):
    with by(ROWS):
        check(qtype, rows, shape(qtype, units), tokens, accuracy, seed)


def test_every_tile_of_a_few_tokens(accuracies=ACCURACIES):
    """Rows that end within a tile, tokens that two tiles share, and codes in planes of four bits, of which 256 are unpacked."""
    with by(TILES):
        for accuracy in accuracies:
            for tokens in range(2, 21):  # one tile, two, three that unpack alone, and more that share
                check("Q4_K", 1 + 7 * tokens, 256 * (1 + tokens % 3), tokens, accuracy)


def test_the_matrix_unit_has_whole_tiles_of_one_digit(monkeypatch):
    """Exact prompts were NaN with AMX, and int8 ones of 17 to 48 tokens wrong: its kernel was given three digits, and tiles of
    six tokens."""
    monkeypatch.setattr(gemm_codes, "matrix", lambda: True)
    for tokens in range(gemm_codes.FEWEST, 70):
        assert gemm_codes.multiplier("int8", tokens) == "amx" and gemm_codes.wide(tokens, "amx") == 16
        assert crossings.candidates("int8", tokens) == [TILES]
        assert "amx" not in (gemm_codes.multiplier("float32", tokens), gemm_codes.multiplier("int16", tokens))


# a format for each way in which codes and scales lie in a block
PLANES = ["Q6_K", "Q5_0", "IQ4_XS", "Q2_0"]
OTHER_PLANES = "Q8_0 Q4_0 Q4_1 Q5_1 Q5_K Q2_K Q3_K IQ4_NL MXFP4 NVFP4 Q1_0 TQ1_0 TQ2_0 IQ2_S".split()


@pytest.mark.parametrize("qtype", [*PLANES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_PLANES)])
def test_a_few_tokens_of_every_format(qtype):
    # One tile, and two that share a token; of the others as wide as those of sixteen tokens: a kernel that is compiled anyway.
    one, two = (4, 7) if qtype in PLANES else (gemm_codes.wide(16, gemm_codes.multiplier("float32")), 11)
    with by(TILES):
        for rows in (3, 19):  # fewer than a tile's first sixteen; and than its second
            check(qtype, rows, shape(qtype, 2), one, "int8", place=guarded)
        check(qtype, 50, shape(qtype, 2), two, "float32" if qtype in PLANES[:2] else "int8")


def test_the_faster_of_two_kernels_multiplies(monkeypatch):
    """Whichever it is, for the same numbers."""
    format, times = FORMATS["Q4_K"], {"rows": 2.0, "tiles": 1.0, "floats": 0.5}
    monkeypatch.setattr(crossings, "_times", lambda *_: times)
    assert crossings.fastest(format, "float32", 4) == "floats"
    assert crossings.fastest(format, "float32", 4, recorded=True) == "tiles"
    times["tiles"] = 3.0
    assert crossings.fastest(format, "float32", 4, recorded=True) == "rows"


OFTEN, EIGHT, SIXTEEN = ("Q4_K", "Q5_0"), ("int8", 3, 6), ("int16", 9, 4)  # activations, tokens, rows
# The others on this CPU's own tier: held_to.py has CPUs whose own the other tiers are.
RARELY = [*itertools.product(("Q6_K", "Q8_0", "IQ4_XS"), (EIGHT, SIXTEEN)), *itertools.product(OFTEN, (SIXTEEN,))]
ALIKE = [(name, tier, *EIGHT) for name, tier in itertools.product(OFTEN, simd.available())]
ALIKE += [pytest.param(name, simd.tier().value, *how, marks=pytest.mark.slow) for name, how in RARELY]


@pytest.mark.parametrize("qtype, tier, accuracy, tokens, rows", ALIKE)
def test_a_few_tokens_have_the_bits_of_each_alone(qtype, tier, accuracy, tokens, rows):
    """Whichever of the two kernels is the faster."""
    columns = 256 * 2 + (32 if FORMATS[qtype].block_elements < 256 else 0)
    with simd.using(tier):
        blocks, x = matrix(qtype, rows, columns)[0], activations(tokens, columns)
        right = torch.cat([linear(blocks, qtype, x[n : n + 1], accuracy) for n in range(tokens)])
        for name in crossings.candidates(accuracy, tokens, alike=True):
            with by(name):
                assert torch.equal(linear(blocks, qtype, x, accuracy), right), name


def test_of_kernels_with_the_same_bits_the_faster_multiplies(monkeypatch):
    format, times = FORMATS["Q4_K"], {"rows": 2.0, "few": 1.0}
    monkeypatch.setattr(crossings, "_times", lambda *of: times if "alike" in of else {"tiles": 0.1})
    assert crossings.fastest(format, "int8", 4, True, True) == "few" and crossings.fastest(format, "int8", 4, True) == "tiles"
    times["few"] = 3.0
    assert crossings.fastest(format, "int8", 4, True, True) == "rows"
    assert crossings.fastest(format, "int8", 10, True, True) == "rows"  # of more tokens than a draft has


def test_crossings_are_measured_once_and_kept(monkeypatch, tmp_path, measured_crossings):
    monkeypatch.setattr(crossings, "beside", lambda name: tmp_path / name)
    for cached in (crossings._times, crossings._kept):
        cached.cache_clear()
    measured, real = [], crossings.measured
    monkeypatch.setattr(crossings, "measured", lambda *of: measured.append(of) or real(*of))
    format, (tier, by) = FORMATS["Q4_K"], (simd.tier().value, gemm_codes.multiplier("int8", 4))
    try:
        first = [crossings.fastest(format, "int8", 4) for _ in range(2)]
        assert len(measured) == 1 and set(crossings._kept()[f"Q4_K int8 4 {tier} {by}"]) == {"rows", "tiles"}
        for cached in (crossings._times, crossings._kept):
            cached.cache_clear()
        assert crossings.fastest(format, "int8", 4) == first[0] and len(measured) == 1
        (tmp_path / "crossings").write_text('{"Q4_K int8 4": "what')
        for cached in (crossings._times, crossings._kept):
            cached.cache_clear()
        assert crossings.fastest(format, "int8", 4) in ("rows", "tiles") and len(measured) == 2
    finally:
        for cached in (crossings._times, crossings._kept):
            cached.cache_clear()


def test_a_crossing_is_measured_on_one_piece_of_memory_after_another(monkeypatch):
    """Kernels fetch the weights ahead that come next: those of a large matrix do, and so must those of a measurement."""
    read = {}
    place = lambda name: lambda piece: read.setdefault(name, []).append((piece.ctypes.data, piece.nbytes))  # noqa: E731
    monkeypatch.setattr(crossings, "_call", lambda _, accuracy, name, *rest: place(name))
    monkeypatch.setattr(crossings, "_PLACES", 1)
    assert set(crossings.measured(FORMATS["Q4_K"], "float32", 4)) == set(read) >= {"rows"}
    for pieces in read.values():
        assert {after - at for (at, _), (after, _) in itertools.pairwise(pieces)} == {pieces[0][1]}


def test_a_place_of_memory_that_slows_one_kernel_decides_nothing(monkeypatch):
    """Tiles of Q6_K took 58 us in one place and 31 in the next, rows 38 in both: four tokens of a model took 76 ms, not 43."""
    now, calls = [0.0], []
    spent = {"rows": [38.0] * 5, "tiles": [58.0, 31.0, 58.0, 62.0, 58.0]}

    def call(_, accuracy, name, *rest):
        seconds = spent[name][sum(name == other for other in calls)]
        calls.append(name)
        return lambda piece: now.__setitem__(0, now[0] + seconds)

    monkeypatch.setattr(crossings, "_call", call)
    monkeypatch.setattr(crossings, "_clock", lambda: lambda: now[0])
    assert crossings.measured(FORMATS["Q6_K"], "float32", 5) == {"rows": 38.0, "tiles": 31.0}


@pytest.mark.parametrize("accuracy", ["float32", "int8"])
@pytest.mark.parametrize("qtype", [*OTHERS[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS[4:])])
def test_the_other_formats_too(qtype, accuracy):
    for tokens in (1, 3, gemm_codes.FEWEST):
        check(qtype, 5, shape(qtype, 2), tokens, accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("tier", [tier for tier in simd.available() if tier != simd.tier().value])
def test_the_other_tiers_too(tier, accuracy):
    with simd.using(tier):
        for qtype in ("Q4_K", "Q5_0", "IQ4_XS"):  # IQ4_XS: steps and codes of any value, once wrong without AVX
            for tokens in (1, 6):
                check(qtype, 5, shape(qtype, 2), tokens, accuracy)
            with by(ROWS if tier == "plain" else TILES):  # plain has no tiles
                check(qtype, 19, shape(qtype, 2), 4, accuracy)


@pytest.mark.parametrize("tier", [None, simd.tier().value])  # with the CPU's matrix unit, if it has one, and without
@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("tokens", [33, 140])  # more than a tile of int8; than the sums of a strip
def test_long_prompts_and_many_rows(accuracy, tokens, tier):
    with simd.using(tier):
        check("Q4_K", 301, 1280, tokens, accuracy)


OF_PROMPTS = [(None, "float32"), (None, "int16"), *((tier, "int8") for tier in (None, *simd.available()) if tier != "plain")]


@pytest.mark.parametrize(("tier", "accuracy"), OF_PROMPTS)
@pytest.mark.parametrize("qtype", ["Q4_K", "Q6_K", "Q5_0", "Q2_K"])  # groups of 32 and of 16, with minima and without
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 70), columns=st.integers(1, 6), tokens=st.sampled_from([16, 17, 31, 513, 530]), seed=st.integers(0, 9)
)
def test_prompts_equal_float64(qtype, tier, accuracy, rows, columns, tokens, seed):
    with simd.using(tier):
        check(qtype, rows, columns * {32: 96}.get(FORMATS[qtype].block_elements, 256), tokens, accuracy, seed)


@pytest.mark.slow
@pytest.mark.skipif(not simd.features() >= simd.TIERS["avx2"], reason="needs a CPU with AVX2 to play an older one")
def test_without_dot_products_of_bytes():
    """AVX2's multiply-add of bytes saturates at 16 bits: codes of four bits and of eight, in a process compiled for no VNNI."""
    code = "from kit.cpu.crossings import FLOATS, TILES\nfrom test_fused import by, check, guarded\n"
    code += "for q in ('Q4_K', 'Q8_0', 'Q5_0', 'Q3_K'): check(q, 20, 768, 17, 'int8'), check(q, 5, 768, 1, 'float32')\n"
    code += "for q in ('Q4_K', 'Q8_0', 'Q6_K'):\n"
    code += "    with by(TILES): check(q, 20, 768, 6, 'int16'), check(q, 20, 768, 8, 'float32')\n"
    code += "    with by(FLOATS): check(q, 37, 800 if q == 'Q8_0' else 768, 300, 'float32')\n"
    code += "for q in ('Q8_0', 'Q5_0'):\n"
    code += "    for n, columns in zip((1, 4, 4, 4), (32, 160, 544, 576)): check(q, 5, columns, n, 'float32', place=guarded)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | masked("AVX2"), cwd=TESTS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_tier_that_was_asked_for_leaves_the_matrix_unit_alone():
    assert simd.matrix() == (simd.tiers.MATRIX <= simd.features()), "the system forbids it, or its products are wrong"
    with simd.using("plain"):
        assert not simd.matrix()


def test_small_blocks_in_rows_shorter_than_a_super_block():
    check("Q8_0", 3, 32, 2, "int8")


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
@pytest.mark.parametrize("qtype", COMMON)
def test_nothing_behind_the_last_row_is_read(qtype):
    blocks, _ = matrix(qtype, 3, shape(qtype, 1))
    last = guarded(blocks)
    for tokens in (1, 2, 4, 9, 16):
        x = activations(tokens, shape(qtype, 1))
        for accuracy in ACCURACIES:
            assert torch.equal(linear(last, qtype, x, accuracy), linear(blocks, qtype, x, accuracy))


OF_ROWS = [
    pytest.param(tier, marks=[pytest.mark.slow] * (tier != simd.tier().value)) for tier in simd.available() if tier != "plain"
]


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
@pytest.mark.parametrize("tier", OF_ROWS)
@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("qtype", ["Q8_0", "Q5_0", "Q4_1", "IQ4_NL"])
def test_every_rest_of_a_row(qtype, accuracy, tier):
    """Rows of any number of blocks of 32, and of rows together any number."""
    with simd.using(tier):
        for columns in range(32, 1057, 32):
            check(qtype, 3 + columns // 32 % 4, columns, 1, accuracy, place=guarded)


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("qtype", ["Q8_0", "Q5_0", "Q4_1", "MXFP4"])
def test_the_end_of_a_row_takes_nothing_from_the_next(qtype, accuracy, tokens):
    (blocks, _), x = matrix(qtype, 3, 320), activations(tokens, 320)
    alone, blocks[1] = linear(blocks[:1], qtype, x, accuracy), 255  # NaN, or as large as can be
    assert torch.equal(linear(blocks, qtype, x, accuracy)[:, :1], alone)


@pytest.mark.parametrize("tokens", [2, 16])
@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_zeros_tiny_numbers_and_nan(accuracy, tokens):
    blocks, _ = matrix("Q4_K", 3, 256)
    assert (linear(blocks, "Q4_K", torch.zeros(tokens, 256), accuracy) == 0).all()
    assert linear(blocks, "Q4_K", torch.full((tokens - 1, 256), 1e-40), accuracy).abs().max() < 1e-36
    for bad in (torch.nan, torch.inf):
        x = torch.ones(tokens, 256)
        x[1, 200] = bad
        y = linear(blocks, "Q4_K", x, accuracy)
        assert y[0].isfinite().all() and not y[1].isfinite().any() and y[2:].isfinite().all()


@pytest.mark.parametrize("qtype", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("digits", [3, activations_in_digits.WORDS])
@settings(max_examples=40, deadline=None)
@given(x=hnp.arrays(np.float32, 256, elements=st.floats(-1e6, 1e6, width=32)))
def test_three_digits_hold_24_bits_of_the_largest(digits, qtype, x):
    """Less what the roundings of the scale and its inverse take, and the same of the sums. Below 1e-31 they are zeros."""
    format = FORMATS[qtype]
    order = superblocks.codes_of(format).order
    made = activations_in_digits.quantize(torch.from_numpy(x[None]), activations_in_digits.address(order), digits)
    record, order = made.numpy()[0, 0], np.array(order)
    places, size, kind = ((0, 384, 640), 256, np.int8) if digits == 3 else ((384, 896), 512, np.int16)
    powers = 256.0 ** np.arange(len(places))[::-1]
    unit = float(record[320:324].view(np.float32)[0])
    numbers = unit * (powers @ [record[at : at + size].view(kind) for at in places])
    near = max(np.abs(x).max().astype(np.float64) * 2**-22, 1e-31)
    right = x.reshape(16, 16).astype(np.float64)
    assert np.abs(numbers - right[order].ravel()).max() <= near
    assert np.abs(record[256:320].view(np.float32) + right.sum(1)).max() <= 16 * near


@pytest.mark.parametrize("name", [ROWS, *[TILES] * (simd.tier().value in gemm_codes.TILES)])  # plain has no tiles
@pytest.mark.parametrize("qtype", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS"])
def test_the_largest_codes_times_the_largest_digits_do_not_overflow(qtype, name):
    """The highest code everywhere, or the lowest int8, and activations whose digits are all at an end."""
    blocks, _ = matrix(qtype, 4, 256)
    for code in (127, 128) if qtype == "Q8_0" else (255,):
        for field in {plane.field for plane in FORMATS[qtype].codes.planes}:
            blocks.view(FORMATS[qtype].layout)[field] = np.uint8(code).view(np.int8) if qtype == "Q8_0" else code
        w = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[qtype]).astype(np.float64)
        for near in (1, -1, 1 - 2**-9, 2**-9 - 1, 1 - 2**-17):
            x = torch.full((1 if name == ROWS else 4, 256), near, dtype=torch.float32)
            x[:, 0] = 1
            right = x.double().numpy() @ w.T
            for accuracy in ("float32", "int8")[: 2 if abs(near) == 1 else 1]:
                with by(name):
                    y = linear(blocks, qtype, x, accuracy).numpy()
                assert np.abs(y - right).max() < 1e-6 * np.abs(w).sum(1).max(), accuracy


def test_transposed_activations():
    blocks, _ = matrix("Q6_K", 4, 512)
    x = activations(512, 3).T
    assert torch.equal(linear(blocks, "Q6_K", x), linear(blocks, "Q6_K", x.contiguous()))


def test_no_tokens():
    assert linear(matrix("Q4_K", 4, 256)[0], "Q4_K", torch.empty(0, 256)).shape == (0, 4)


@pytest.mark.parametrize("change, message", [
    (dict(qtype="Q9_X"), "does not support 'Q9_X'"), (dict(activations="int4"), "float32, int16, int8"),
    (dict(x=torch.zeros(1, 512)), "144 bytes do not match x with 512"), (dict(x=torch.zeros(256)), r"\(tokens, columns\)"),
    (dict(x=torch.zeros(1, 256, dtype=torch.float64)), "float64"),
    (dict(blocks=np.zeros((2, 145), np.uint8)), "145 bytes do not match x with 256"),
    (dict(blocks=np.zeros((4, 144), np.uint8)[::2]), "C-contiguous"),
])  # fmt: skip
def test_errors_say_what_is_wrong(change, message):
    good = dict(blocks=np.zeros((2, 144), np.uint8), qtype="Q4_K", x=torch.zeros(1, 256), activations="float32")
    with pytest.raises(QuantError, match=message):
        linear(**good | change)


def test_the_exactness_table_has_both_accuracies():
    table = exactness(["Q4_K", "Q6_K"], backends=("fused",)).set_index(["qtype", "dtype"]).relative
    assert (
        (table[:, "float32"] < 1e-6).all()
        and table[:, "int16"].between(1e-6, 1e-4).all()
        and table[:, "int8"].between(1e-4, 3e-2).all()
    )


@pytest.mark.parametrize("tier", [None, simd.tier().value])
@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("qtype", ["Q4_K", "Q8_0", "F16"])
def test_a_prompt_equals_float64_with_the_matrix_unit_and_in_pieces(qtype, accuracy, tier, monkeypatch):
    monkeypatch.setattr(model_linear, "_PIECE", 3000)  # several rows at a time, the last piece a short one
    (blocks, numbers), x = matrix(qtype, 50, shape(qtype, 2)), activations(MANY_TOKENS, shape(qtype, 2))
    weights = SimpleNamespace(blocks=lambda name: blocks, info=lambda name: SimpleNamespace(qtype=qtype))
    with simd.using(tier):
        y = model_linear.linear_named({"float32": "fused"}.get(accuracy, f"fused-{accuracy}")).apply(weights, "", x).numpy()
    as_int8 = accuracy == "int8" and FORMATS[qtype].codes
    seen = products.rounded(x, 32)[0] if as_int8 else x.double().numpy()
    right = seen @ numbers.T
    assert np.abs(y - right).max() < (1e-3 if accuracy == "int16" else 1e-5) * right.std()


# ---- models


@pytest.mark.parametrize("mix", ["F32", "Q4_K_M", "Q8_0"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-granite", "tiny-qwen3moe"])
def test_logits_equal_float64(folder, name, mix):
    path = model_files.write(folder, name, mix)
    expected = forward(PROMPT, *model_files.plain(path))
    model = kit.Transformer(kit.Weights(kit.open(path)), linear="fused")
    cache = model.new_cache()
    decoded = [model.step(PROMPT[:12], cache), *(model.step([token], cache) for token in PROMPT[12:])]
    for got, right in ((model.logits(PROMPT), expected), (torch.stack(decoded), expected[11:])):
        assert np.sqrt(((got.numpy() - right) ** 2).mean()) < 1e-5 * right.std()


def test_int8_logits_are_near_and_no_matrix_is_decoded(folder):
    path = model_files.write(folder, "tiny-llama", "Q4_K_M")
    expected = forward(PROMPT, *model_files.plain(path))
    weights = kit.Weights(kit.open(path))
    got = kit.Transformer(weights, linear="fused-int8").logits(PROMPT).numpy()
    assert 1e-4 * expected.std() < np.sqrt(((got - expected) ** 2).mean()) < 5e-2 * expected.std()
    decoded = {span.tensor for span in weights.trace.spans if span.what in ("dequantize", "access")}
    assert {name for name in decoded if "norm" not in name} == {"token_embd.weight"}  # the rows of the prompt alone
    read = {span.tensor: span.nbytes for span in weights.trace.spans if span.what == "linear"}
    assert read["blk.0.ffn_up.weight"] == weights.info("blk.0.ffn_up.weight").nbytes


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_scales_shared_by_neighbors_come_out_as_sixteen(count):
    read, numbers, out = superblock_scales._widened(count), np.arange(count, dtype=np.float32), np.empty(16, np.float32)
    njit(lambda source, target: store(target, read(source)))(numbers.ctypes.data, out.ctypes.data)
    assert np.array_equal(out, np.repeat(numbers, 16 // count))


_PLAYED = """\
import numba, numpy as np
from numba import njit, types
from kit.cpu import gemm_codes
from kit.cpu.simd.memory import load, store

@njit
def multiply(left, stride, right, sums):
    for i in range(16):
        for j in range(16):
            total = 0
            for k in range({width}):
                total += load(types.int8, left + stride * i + k) * load(types.int8, right + 64 * (k // 4) + 4 * j + k % 4)
            store(sums + 64 * i + 4 * j, types.int32(total))

gemm_codes.multiply, gemm_codes.multiplier = multiply, lambda activations, tokens=16: "amx"
gemm_codes.configure, gemm_codes.release = njit(lambda width, scratch: None), njit(lambda: None)
import test_fused
assert test_fused.crossings.candidates("int8", 17) == ["tiles"]
test_fused.check("{qtype}", 20, {columns}, 17, "int8")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("qtype", "width"), [("Q4_1", 32), ("Q8_0", 32), ("NVFP4", 16), ("Q4_K", 32)])
def test_the_matrix_units_way_without_a_matrix_unit(qtype, width, folder):
    """The scales of 32 activations in products by tiles, which loops compute here; compiled apart, for it is not the kernel."""
    code = _PLAYED.format(qtype=qtype, width=width, columns={"NVFP4": 384, "Q4_K": 512}.get(qtype, 352))
    environment = {"NUMBA_CACHE_DIR": str(folder / "played")}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
