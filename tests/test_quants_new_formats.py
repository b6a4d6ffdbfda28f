"""A format is one row: made-up formats on every backend, bit for bit what their definitions say."""

import numpy as np
import pytest
import torch
import triton_worker as worker

import kit
from kit.cpu import simd
from kit.cpu.linear import linear
from kit.gguf.formats import DTYPES, FORMATS, Numbers, Plane, numbers, row, scales
from kit.lab.exactness import random_blocks
from kit.lab.synthetic.encode import encode

# Row and definition, in plain numpy: fields of n blocks -> codes (n, weights), and scale and minimum of each weight.


def two_bits(f):
    """Four weights a byte, sixteen bytes apart; as in docs/extending.md."""
    codes = (f["qs"][:, None] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    return codes.reshape(-1, 64) - 2.0, f["d"][:, None], None


def three_bits(f):
    """A plane of single bits above one of two; a byte's nibbles are a group's scale and minimum."""
    low = (f["ql"][:, None] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    codes = low.reshape(-1, 64) + 4.0 * np.unpackbits(f["qh"], axis=1, bitorder="little")
    d, m = (f[name][:, None].astype(np.float32) for name in ("d", "m"))
    return codes, np.repeat(d * (f["scales"] & 15), 16, axis=1), np.repeat(m * (f["scales"] >> 4), 16, axis=1)


def values_of_pairs(f):
    """Two neighboring weights in a byte, which are indices of values; the scale is half a power of two."""
    codes = np.stack([f["qs"] & 15, f["qs"] >> 4], axis=-1).reshape(-1, 32)
    return np.array(VALUES)[codes].astype(np.float64), np.repeat(np.exp2(f["e"] - 128.0), 16, axis=1), None


def signed_bytes(f):
    return f["qs"].astype(np.float64), np.repeat(f["d"][:, None].astype(np.float32) * f["steps"], 16, axis=1), None


def listed_places(f):
    """Eight minima and scales of six bits, the minima's upper bits in a field of their own: unlike Q4_K's in every place."""
    packed, high = (f[name].astype(np.int32) for name in ("packed", "high"))
    scale = np.concatenate([packed[:, 4:8] >> 4 | (high & 3) << 4, packed[:, 4:8] & 15 | (high >> 4 & 3) << 4], axis=1)
    minimum = np.concatenate([packed[:, :4] & 15 | (high >> 2 & 3) << 4, packed[:, :4] >> 4 | (high >> 6) << 4], axis=1)
    d, m = (f[name][:, None].astype(np.float32) for name in ("d", "m"))
    codes = np.stack([f["qs"] & 15, f["qs"] >> 4], axis=-1).reshape(-1, 256).astype(np.float64)
    return codes, *(np.repeat(unit * (n - 3).astype(np.float32), 32, axis=1) for unit, n in ((d, scale), (m, minimum)))


def listed_scales(f):
    """Eight scales alone, the last four first."""
    codes = np.stack([f["qs"] & 15, f["qs"] >> 4], axis=-1).reshape(-1, 256) - 8.0
    steps = (f["steps"] >> 1 & 63).astype(np.float32) - np.float32(32)
    d = f["d"][:, None].astype(np.float32)
    return codes, np.repeat(d * np.concatenate([steps[:, 4:], steps[:, :4]], axis=1), 32, axis=1), None


VALUES = (-9, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10)
MADE_UP = {
    two_bits: row("Q2_X", 99, 64, "d <f2, qs 16u1", numbers("qs 16x2", less=2), scales(64)),
    three_bits: row("Q3_X", 98, 64, "d <f2, m <f2, scales 4u1, ql 16u1, qh 8u1",
                    numbers("ql 16x2, qh 1x1"), scales(16, "d - m", numbers("scales 4x4"))),
    values_of_pairs: row("V4_X", 97, 32, "e 2u1, qs 16u1", numbers("qs 1x4", values=VALUES), scales(16, "e", table="E8M0")),
    signed_bytes: row("Q8_X", 96, 256, "steps 16i1, d <f2, qs 256i1",
                      numbers("qs 1x8"), scales(16, "d", numbers("steps 16x8"))),
    listed_places: row("Q4_X", 93, 256, "d <f2, packed 8u1, high 4u1, m <f2, qs 128u1",
                       numbers("qs 1x4"), scales(32, "d - m", Numbers((
                           Plane("packed", 4, 4, places=((4, 4), (4, 0), (0, 0), (0, 4))),
                           Plane("high", 4, 2, places=((0, 0), (0, 4), (0, 2), (0, 6)))), less=3))),
    listed_scales: row("S4_X", 92, 256, "steps 8u1, d <f2, qs 128u1", numbers("qs 1x4", less=8),
                       scales(32, "d", Numbers((Plane("steps", 4, 6, places=((4, 1), (0, 1))),), less=32))),
}  # fmt: skip


def weights(definition, blocks) -> torch.Tensor:
    """The weights of blocks (n, bytes), float32, rounded after each operation."""
    codes, scale, minimum = definition(blocks.view(MADE_UP[definition].layout)[:, 0])
    numbers = codes.astype(np.float32) * scale.astype(np.float32)
    return torch.from_numpy(numbers if minimum is None else numbers - minimum.astype(np.float32))


@pytest.fixture(params=MADE_UP, ids=lambda definition: definition.__name__)
def definition(request, monkeypatch):
    """The definition of a format that has its row in the table."""
    format = MADE_UP[request.param]
    monkeypatch.setitem(FORMATS, format.name, format)
    return request.param


def whole_numbers(definition, rows, columns, tokens):
    """Blocks of small integers times a power of two, and activations, whose products float32 sums without rounding: those of
    a definition are then right in any order of additions, and with eight bits too (each 32 of x reach 127)."""
    format = MADE_UP[definition]
    blocks = random_blocks(format.name, rows * columns // format.block_elements)
    fields = blocks.view(format.layout)[:, 0]
    for field in {"d", "m"} & set(format.layout.names):
        fields[field] = 0.5
    for field in {"packed", "high"} & set(format.layout.names):
        fields[field] &= 0x33
    if "e" in format.layout.names:
        fields["e"] = 124 + fields["e"] % 8
    if "steps" in format.layout.names:
        fields["steps"] %= 8
    x = torch.randint(-3, 4, (tokens, columns), generator=torch.Generator().manual_seed(0)).float()
    x[:, ::32] = 127
    right = x.double() @ weights(definition, blocks).double().reshape(rows, columns).T
    return blocks.reshape(rows, -1), x, right


@pytest.mark.parametrize("tier", simd.available())
def test_cpu_dequantizes(definition, tier):
    format = MADE_UP[definition]
    blocks = random_blocks(format.name, 37)
    with simd.using(tier):
        for dtype in DTYPES if tier == simd.available()[0] else ["float32"]:
            right = weights(definition, blocks).to(getattr(torch, dtype))
            assert torch.equal(kit.dequantize(blocks, format.name, dtype), right), dtype
    assert torch.equal(kit.dequantize(blocks, format.name, backend="plain"), weights(definition, blocks))


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["float32", "int16", "int8"])
def test_cpu_multiplies(definition, activations):
    for tokens in (1, 3, 10):
        blocks, x, right = whole_numbers(definition, 5, 768, tokens)
        assert torch.equal(linear(blocks, MADE_UP[definition].name, x, activations).double(), right), tokens


def test_triton_dequantizes_and_multiplies(definition, call):
    format = MADE_UP[definition]
    blocks = random_blocks(format.name, 37)
    for dtype in DTYPES:
        found = call(worker.of_new_format, format, "dequantize", blocks, format.name, dtype)
        assert np.array_equal(found, weights(definition, blocks).reshape(-1).to(getattr(torch, dtype)).float()), dtype
    for tokens in (1, 3, 9):
        blocks, x, right = whole_numbers(definition, 5, 512, tokens)
        found = call(worker.of_new_format, format, "linear", blocks, format.name, x.numpy())
        assert np.array_equal(found, right), tokens


def test_synthetic_weights_are_encoded(definition):
    """The error is at most half a step if scales are exact; encoding dequantized weights gives them again."""
    format = MADE_UP[definition]
    x = np.random.default_rng(0).standard_normal((6, 512), np.float32)
    decoded = weights(definition, encode(x, format.name).reshape(-1, format.block_bytes)).reshape(6, 512).numpy()
    bits = sum(plane.bits for plane in format.codes.planes)
    assert np.sqrt(np.mean((decoded - x) ** 2)) < {2: 0.9, 3: 0.25, 4: 0.25, 8: 0.01}[bits]
    again = weights(definition, encode(decoded, format.name).reshape(-1, format.block_bytes)).reshape(6, 512).numpy()
    assert np.sqrt(np.mean((again - decoded) ** 2)) < np.sqrt(np.mean((decoded - x) ** 2)) / 2


def test_two_definitions_of_one_name_are_two_formats(monkeypatch):
    """Compiled code is cached by the whole row, not by its name."""
    blocks = random_blocks("Q8_0", 3)
    for less in (0, 3):
        monkeypatch.setitem(FORMATS, "Twin", row("Twin", 95, 32, "d <f2, qs 32u1", numbers("qs 32x8", less=less), scales(32)))
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        assert torch.equal(kit.dequantize(blocks, "Twin"), torch.from_numpy(d * (blocks[:, 2:] - np.float32(less))))


@pytest.mark.parametrize("codes, group, says", [
    (numbers("qs 16x4"), 64, "Odd: 64 integers do not fit Plane.*qs"), (numbers("qs[1:] 16x2"), 64, "do not fit"),
    (numbers("qs 16x2"), 16, "one scale a block, but groups of 16"),
])  # fmt: skip
def test_a_row_that_cannot_be_right_is_an_error(codes, group, says):
    with pytest.raises(ValueError, match=says):
        row("Odd", 94, 64, "d <f2, qs 16u1", codes, scales(group))


@pytest.mark.parametrize(
    "planes",
    [
        (Plane("s", 4, 6, places=((0, 0),)),),  # too few
        (Plane("s", 2, 6, places=((0, 0), (2, 0), (4, 0), (6, 0))),),  # not in fours
        (Plane("s", 4, 6, places=((0, 0), (4, 3))),),  # beyond the byte
        (Plane("s", 4, 6, places=((0, 0), (5, 0))),),  # beyond the field
        (Plane("s", 4, 6, places=((0, 0), (4, 0))), Plane("s", 4, 2, shift=6)),  # not all listed
        (Plane("t", 4, 8, places=((0, 0), (4, 0))),),  # signed
    ],
)
def test_places_that_no_backend_can_read_are_an_error(planes):
    with pytest.raises(ValueError, match=r"Odd: .*Plane"):
        row("Odd", 94, 256, "s 8u1, t 8i1, d <f2, qs 128u1", numbers("qs 1x4"), scales(32, "d", Numbers(planes)))
    with pytest.raises(ValueError, match=r"Odd: .*Plane"):
        row("Odd", 94, 32, "d <f2, s 32u1", Numbers((Plane("s", 32, 8, places=((0, 0),)),)), scales(32))  # codes
