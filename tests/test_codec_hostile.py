"""Damaged and hostile tiles: every decoder either raises CodecError or gives back the matrix that was encoded."""

import ctypes
import mmap
from dataclasses import replace

import numpy as np
import numpy_decoder  # noqa: F401  the decoder "numpy"
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit.codec
from kit.codec import CodecProfile, Tiles
from kit.codec.tiles import HEADER
from kit.errors import CodecError

MATRIX = np.clip(np.rint(np.random.default_rng(1).normal(0, 20, (40, 70))), -128, 127).astype(np.int8)
PROFILES = {
    "kit": CodecProfile(("none",), 32, 16, False, tile_rows=16, tile_columns=32),
    "kit-up": CodecProfile(("up",), 16, 16, True, tile_rows=16, tile_columns=32),
    "reported": CodecProfile(("left2",), 1, 8, True, tile_rows=16, tile_columns=32),
}
SERIAL = {name: kit.codec.encode(MATRIX, profile, name="blk.3.ffn_up.weight").to_bytes() for name, profile in PROFILES.items()}


CPU = ("python", "scalar-linear", "scalar-binary", "scalar-table", "numpy", "interleaved", "simd")


def decoders(profile):
    return CPU[:-1] if profile == "reported" else CPU  # simd needs interleaved states


def outcome(data, decoder):
    """Decode; asserts that the result is the encoded matrix or a CodecError."""
    try:
        result = kit.codec.decode(Tiles.from_bytes(data, "blk.3.ffn_up.weight"), decoder)
    except CodecError:
        return
    assert result.shape == MATRIX.shape and np.array_equal(result, MATRIX)


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_flipped_bytes(profile, data):
    """Bytes flipped anywhere: header, tables, checksums, lengths, states, words, padding."""
    serial = bytearray(SERIAL[profile])
    for _ in range(data.draw(st.integers(1, 3))):
        serial[data.draw(st.integers(0, len(serial) - 1))] = data.draw(st.integers(0, 255))
    for decoder in decoders(profile):
        outcome(bytes(serial), decoder)


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_garbage_streams(profile, data):
    """Valid tables and counts, but streams of zeros, ones or noise: no decoder hangs or reads outside its buffer."""
    tiles = Tiles.from_bytes(SERIAL[profile])
    kind = data.draw(st.sampled_from(["zeros", "ones", "noise"]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    fill = {"zeros": 0, "ones": 255, "noise": random.integers(0, 256, tiles.streams.size)}[kind]
    streams = np.broadcast_to(np.uint8(fill), tiles.streams.shape).copy()
    serial = SERIAL[profile][: -tiles.streams.size] + streams.tobytes()
    for decoder in decoders(profile):
        with pytest.raises(CodecError, match="tile 0 of 9"):
            kit.codec.decode(Tiles.from_bytes(serial), decoder)


@pytest.mark.parametrize("profile", PROFILES)
@given(cut=st.integers(1, 2000))
@settings(max_examples=30, deadline=None)
def test_truncated(profile, cut):
    with pytest.raises(CodecError):
        Tiles.from_bytes(SERIAL[profile][:-cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_no_tiles(data):
    with pytest.raises(CodecError):
        Tiles.from_bytes(data)


@pytest.mark.parametrize("field, value, message", [
    ("magic", b"GGUF", "starts with"), ("version", 9, "version 9"), ("slot_bits", 14, "slots"),
    ("unit_bits", 32, "units of 32 bits"), ("lanes", 12, "12 lanes"), ("predictor", 9, "predictor number 9"),
    ("reserved", 1, "reserved"), ("rows", 0, "shape"), ("rows", 2**32 - 1, "do not fit|tables"),
    ("tile_rows", 2**31, "tiles of"), ("tables", 2**31, "tables"), ("stream_bytes", 2**62, "do not fit"),
])  # fmt: skip
def test_a_header_that_lies(field, value, message):
    serial = bytearray(SERIAL["kit"])
    np.frombuffer(serial, HEADER, count=1)[field] = value
    with pytest.raises(CodecError, match=message):
        Tiles.from_bytes(serial)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"frequencies": np.full((1, 256), 17, np.uint16)}, "sum to 4096"),
        ({"frequencies": np.eye(1, 256, dtype=np.uint16) * 4096}, "frequency above 4095"),
        ({"frequencies": np.full((2, 256), 16, np.uint16)}, "2 tables for 9 tiles"),
        ({"lengths": np.full(9, 2**31, np.uint32)}, "lengths that differ"),
        ({"lengths": np.full(9, 60, np.uint32)}, "shorter than its states"),
        ({"lengths": np.full(9, 131, np.uint32)}, "half a unit"),
        ({"lengths": np.full(8, 132, np.uint32)}, "8 streams for 9 tiles"),
        ({"streams": np.zeros(0, np.uint8)}, "lengths that differ"),
    ],
)
def test_tiles_that_lie_cannot_be_made(change, message):
    """Tiles with contradictory fields cannot be constructed, from a file or directly."""
    with pytest.raises(CodecError, match=message):
        replace(Tiles.from_bytes(SERIAL["kit"]), **change)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_error_names_tensor_tile_and_reason(profile):
    """With one word of tile 4 changed, the error of each decoder names that tile."""
    tiles = Tiles.from_bytes(SERIAL[profile], "blk.3.ffn_up.weight")
    streams = tiles.streams.copy()
    streams[tiles.starts[4] + tiles.lengths[4] // 2] ^= 0x40
    damaged = Tiles(tiles.layout, tiles.frequencies, tiles.checksums, tiles.lengths, streams, tiles.name)
    for decoder in decoders(profile):
        with pytest.raises(CodecError, match=rf"blk\.3\.ffn_up\.weight: tile 4 of 9 \(row 1, column 1 .*\(decoder {decoder}\)"):
            kit.codec.decode(damaged, decoder)


def test_a_stream_that_is_fine_but_of_another_tile_fails_its_checksum():
    tiles = Tiles.from_bytes(SERIAL["kit"])
    checksums = tiles.checksums.copy()
    checksums[2] ^= 1
    for decoder in CPU:
        with pytest.raises(CodecError, match=r"tile 2 of 9 .* checksum"):
            kit.codec.decode(Tiles(tiles.layout, tiles.frequencies, checksums, tiles.lengths, tiles.streams), decoder)


@pytest.mark.parametrize("decoder", [name for name in CPU if name != "python"])
def test_nothing_is_read_behind_the_padding(decoder):
    """Streams of zeros (one word for each value) end before a protected page: reading further kills the process."""
    tiles = kit.codec.encode(np.zeros((256, 256), np.int8))
    page = mmap.PAGESIZE
    room = -(-tiles.streams.size // page) * page
    memory = mmap.mmap(-1, room + page)
    whole = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(whole.ctypes.data + room), ctypes.c_size_t(page), 0) == 0
    hostile = replace(tiles, streams=whole[room - tiles.streams.size : room])
    try:
        with pytest.raises(CodecError, match="tile 0 of 1"):
            kit.codec.decode(hostile, decoder)
    finally:
        protect(ctypes.c_void_p(whole.ctypes.data + room), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
