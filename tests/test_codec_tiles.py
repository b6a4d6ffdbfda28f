"""Tiles: every decoder gives back every matrix, bit by bit; and what the encoder promises about size."""

import numpy as np
import numpy_decoder  # noqa: F401  the decoder "numpy"
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit.codec
from kit.codec import PROFILES, CodecProfile, Tiles
from kit.codec.encoder import entropy
from kit.cpu.simd.tiers import available, tier
from kit.cpu.tiles import normalize, predictors
from kit.cpu.tiles.finishing import checksum
from kit.errors import CodecError
from kit.gguf.tile_coding import MOST, PREDICTORS, SLOTS

REPORTED = CodecProfile(("left2",), 1, 8, True, tile_rows=16, tile_columns=32)
CPU = ("python", "scalar-linear", "scalar-binary", "scalar-table", "numpy", "interleaved", "simd")
ONE_STATE = CPU[:-1]  # simd needs interleaved states


def gaussian(rows, columns, sigma=25.0, seed=0):
    return np.clip(np.rint(np.random.default_rng(seed).normal(0, sigma, (rows, columns))), -128, 127).astype(np.int8)


@st.composite
def matrices(draw):
    """Shapes from 1 x 1 to odd ones over several tiles; constant, two-valued, uniform over all 256, extreme, Gaussian."""
    shape = draw(st.tuples(st.integers(1, 36), st.integers(1, 70)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["constant", "two", "uniform", "extremes", "gaussian", "ramp"]))
    constant = draw(st.integers(-128, 127))
    return {
        "constant": lambda: np.full(shape, constant),
        "two": lambda: np.where(random.random(shape) < 0.001, -128, constant),
        "uniform": lambda: random.integers(-128, 128, shape),
        "extremes": lambda: random.choice([-128, -127, 127], shape),
        "gaussian": lambda: np.clip(np.rint(random.normal(0, 30, shape)), -128, 127),
        "ramp": lambda: np.arange(shape[0] * shape[1]).reshape(shape) % 256 - 128,
    }[kind]().astype(np.int8)


@settings(max_examples=40, deadline=None)
@given(matrices(), st.sampled_from(PROFILES["kit"].predictors), st.sampled_from([16, 32, 64, 128]))
def test_every_decoder_gives_back_every_matrix(matrix, predictor, lanes):
    for profile in (CodecProfile((predictor,), lanes, 16, False, 16, 32), REPORTED):
        tiles = kit.codec.encode(matrix, profile)
        for decoder in ONE_STATE if profile is REPORTED else CPU:
            assert np.array_equal(kit.codec.decode(tiles, decoder), matrix), decoder


@pytest.mark.parametrize("profile", PROFILES)
def test_whole_tiles_and_threads(profile):
    """Real tile sizes with edges: 256 x 256 and less, by several threads, and through the serial form."""
    matrix = gaussian(600, 700)
    tiles = Tiles.from_bytes(kit.codec.encode(matrix, profile, threads=2).to_bytes())
    assert len(tiles) == 9 and tiles.shape == matrix.shape
    for decoder in ("scalar-table", "interleaved") if profile == "reported" else ("scalar-table", "interleaved", "simd"):
        assert np.array_equal(kit.codec.decode(tiles, decoder, threads=2), matrix)


def test_threads_encode_the_same_bytes():
    matrix = gaussian(2048, 2304)  # more tiles than one task takes
    assert kit.codec.encode(matrix, threads=3).to_bytes() == kit.codec.encode(matrix).to_bytes()


def test_the_python_decoder_on_a_whole_tile():
    matrix = gaussian(256, 256)
    assert np.array_equal(kit.codec.decode(kit.codec.encode(matrix), "python"), matrix)


@given(matrices(), st.sampled_from(PREDICTORS))
@settings(max_examples=30, deadline=None)
def test_predictors_are_differences(matrix, name):
    """Against numpy's own differences, modulo 256; and undone exactly."""
    wide = matrix.astype(np.int64)
    left = np.diff(wide, axis=1, prepend=0)
    right = {"none": wide, "left": left, "left2": np.diff(left, axis=1, prepend=0), "up": np.diff(wide, axis=0, prepend=0)}
    residuals = np.empty(matrix.size, np.uint8)
    predictors.apply(matrix, PREDICTORS.index(name), residuals)
    assert np.array_equal(residuals, (right[name] % 256).astype(np.uint8).ravel())
    predictors.undo(residuals, PREDICTORS.index(name), *matrix.shape)
    assert np.array_equal(residuals.view(np.int8), matrix.ravel())


@given(st.lists(st.integers(0, 10**6), min_size=256, max_size=256).filter(any))
@settings(max_examples=50, deadline=None)
def test_frequencies_sum_to_the_slots_and_keep_every_symbol(counts):
    counts = np.array(counts)
    frequencies = normalize(counts)
    assert frequencies.sum() == SLOTS and frequencies.max() <= MOST
    assert (frequencies[counts > 0] > 0).all()


def test_a_constant_matrix_costs_next_to_nothing():
    tiles = kit.codec.encode(np.full((1024, 1024), -128, np.int8))
    assert tiles.nbytes < 0.01 * 2**20


@pytest.mark.parametrize("sigma, overhead", [(3, 0.015), (20, 0.01), (None, 0.005)])
def test_size_against_the_entropy(sigma, overhead):
    """Header, table, index, states and padding included. None: Gaussian rows, each scaled to its largest value."""
    if sigma:
        matrix = gaussian(1024, 2048, sigma)
    else:
        weights = np.random.default_rng(0).standard_normal((1024, 2048))
        matrix = np.rint(weights / np.abs(weights).max(axis=1, keepdims=True) * 127).astype(np.int8)
    bits = entropy(np.bincount(matrix.view(np.uint8).ravel(), minlength=256))
    size = kit.codec.encode(matrix).nbytes * 8 / matrix.size
    assert bits < size < bits * (1 + overhead)


def test_the_encoder_takes_the_predictor_with_the_least_entropy():
    noise = gaussian(512, 512)
    walk = np.cumsum(gaussian(512, 512, 2.0).astype(np.int64), axis=0).astype(np.int8)
    assert kit.codec.encode(noise).predictor == "none"
    assert kit.codec.encode(walk).predictor == "up"
    assert kit.codec.encode(np.ascontiguousarray(walk.T)).predictor == "left"


def test_the_reported_predictor_costs_bits_on_independent_weights():
    matrix = gaussian(512, 512)
    assert kit.codec.encode(matrix, "reported").nbytes > 1.1 * kit.codec.encode(matrix).nbytes


@given(st.binary(min_size=1, max_size=70), st.data())
def test_checksum_sees_every_changed_byte(data, draw):
    values = np.frombuffer(data, np.uint8).copy()
    before = checksum(values)
    words = np.frombuffer(data.ljust(-(-len(data) // 4) * 4, b"\0"), "<u4").astype(object)
    assert before == sum(int(word) * (2 * i + 1) for i, word in enumerate(words)) % 2**32
    place = draw.draw(st.integers(0, len(data) - 1))
    values[place] ^= draw.draw(st.integers(1, 255))
    assert checksum(values) != before


@pytest.mark.parametrize(
    "matrix, message",
    [(np.zeros((0, 4), np.int8), "empty"), (np.zeros((4, 4), np.float32), "float32"), (np.zeros(4, np.int8), "1-D")],
)
def test_what_cannot_be_encoded(matrix, message):
    with pytest.raises(CodecError, match=message):
        kit.codec.encode(matrix, name="blk.0.attn_q.weight")


def test_names_that_are_not_known():
    matrix = gaussian(4, 4)
    with pytest.raises(CodecError, match="reported, kit"):
        kit.codec.encode(matrix, "best")
    with pytest.raises(CodecError, match="scalar-table"):
        kit.codec.decode(kit.codec.encode(matrix), "gpu")
    with pytest.raises(CodecError, match="use decoder 'scalar-table'"):
        kit.codec.decode(kit.codec.encode(matrix, "reported"), "simd")
    with pytest.raises(CodecError, match="out is"):
        kit.codec.decode(kit.codec.encode(matrix), out=np.empty((4, 5), np.int8))


@pytest.mark.parametrize("name", available())
def test_simd_on_every_tier_of_this_cpu(name, monkeypatch):
    monkeypatch.setattr("kit.cpu.tiles.vector.tier", lambda: tier(name))
    for shape, lanes in (((300, 290), 128), ((40, 77), 16), ((5, 3), 64)):
        matrix = gaussian(*shape)
        tiles = kit.codec.encode(matrix, CodecProfile(("none",), lanes, 16, False))
        assert np.array_equal(kit.codec.decode(tiles, "simd"), matrix)
