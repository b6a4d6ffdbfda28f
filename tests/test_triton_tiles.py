"""Tiles by the Triton interpreter: decoded alone, in matrices, and as matrices stream through two buffers."""

from dataclasses import replace

import numpy as np
import pytest
import triton_worker as worker
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.codec import CodecProfile

PROFILES = [
    pytest.param("kit", (7, 40), id="kit"),
    pytest.param("reported", (3, 10), id="reported"),  # 8-bit units, one state: a step a value
    pytest.param(CodecProfile(("left",), 32, 16, True, 16, 48), (20, 70), id="left, a table a tile"),
    pytest.param(CodecProfile(("up",), 128, 16, False, 80, 64), (70, 10), id="up, more rows than registers"),
    pytest.param(CodecProfile(("none",), 128, 16, False, 16, 24), (20, 25), id="edges"),
    pytest.param(CodecProfile(("left2",), 64, 16, False, 16, 20), (17, 33), id="left2"),
]


def small_matrix(shape):
    return np.clip(np.random.default_rng(1).normal(0, 20, shape), -127, 127).astype(np.int8)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("profile, shape", PROFILES)
def test_tiles(call, profile, shape, on_device):
    matrix = small_matrix(shape)
    serial = kit.codec.encode(matrix, profile).to_bytes()
    assert np.array_equal(call(worker.tiles, serial, on_device), matrix)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_damaged_tiles_are_an_error_or_right(call, data):
    """With any byte of tables, index or streams changed: the matrix, or an error that names the tile."""
    matrix = small_matrix((5, 40))
    serial = bytearray(kit.codec.encode(matrix, CodecProfile(("left",), 16, 16, False, 8, 40)).to_bytes())
    for at in data.draw(st.lists(st.integers(40, len(serial) - 1), min_size=1, max_size=4)):
        serial[at] = data.draw(st.integers(0, 255))
    try:
        kit.codec.Tiles.from_bytes(bytes(serial))
    except kit.KitError:
        return
    for on_device in (False, True):
        answer = call(worker.tiles, bytes(serial), on_device)
        assert "tile 0 of 1" in answer if isinstance(answer, str) else np.array_equal(answer, matrix)


@pytest.mark.parametrize("bytes_more, reason", [(2, "goes on after the tile has ended"), (-2, "ends before the tile does")])
def test_wrong_lengths_are_told_apart(call, bytes_more, reason):
    tiles = kit.codec.encode(small_matrix((5, 41)), CodecProfile(("none",), 16, 16, False, 8, 41))
    assert 0 < tiles.lengths[0] % 16 <= 14, "the padding has room for two more bytes"
    serial = replace(tiles, lengths=tiles.lengths + np.array([bytes_more]).astype(np.uint32)).to_bytes()
    for on_device in (False, True):
        assert reason in call(worker.tiles, serial, on_device)


def serial_and_plain(shapes, profile="kit"):
    """Matrices of those shapes, by name, and their tiles in serial form."""
    rng = np.random.default_rng(5)
    plain = {f"w{i}": rng.integers(-127, 128, shape).astype(np.int8) for i, shape in enumerate(shapes)}
    return {name: kit.codec.encode(matrix, profile).to_bytes() for name, matrix in plain.items()}, plain


def same_matrices(seen, plain, passes=1):
    names = [name for name, _ in seen]
    return names == list(plain) * passes and all(np.array_equal(matrix, plain[name]) for name, matrix in seen)


def test_streams_keep_bytes_and_order(call):
    """Growing and shrinking matrices through two buffers, twice; compressed, plain, and both kinds in turn."""
    serial, plain = serial_and_plain([(5, 40), (17, 33), (1, 1), (20, 48), (3, 7)])
    mixed = {name: (serial, plain)[i % 2][name] for i, name in enumerate(plain)}
    for matrices in (serial, plain, mixed):
        seen, nbytes, error = call(worker.streamed, matrices, 2)
        assert not error and same_matrices(seen, plain, 2)
    assert nbytes == sum(
        plain[name].nbytes if i % 2 else kit.codec.Tiles.from_bytes(serial[name]).streams.size for i, name in enumerate(plain)
    )
    assert call(worker.streamed, {}) == ([], 0, "")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_streams_buffers_are_written_only_when_nobody_uses_them(call, count):
    """By what streams and events promise: each copy comes after the uses of its buffer and after the pass before; each use
    after the copy that it needs, and waits for no later one, though that has been sent."""
    log, all_known = call(worker.order_of_a_stream, count, 1)
    for place, (kind, address, _, known) in enumerate(log):
        passes_before = place // (2 * count)
        copied, used = (
            max((step for what, where, step, _ in log[:place] if (what, where) == (wanted, address)), default=0)
            for wanted in ("copy", "use")
        )
        assert known == copied if kind == "use" else known >= max(used, count * passes_before)
    a_pass = ["copy", "copy"] + ["use", "copy"] * (count - 2) + ["use", "use"] if count > 1 else ["copy", "use"]
    assert [kind for kind, *_ in log] == 2 * a_pass + a_pass[: a_pass.index("use") + 1] and all_known


@pytest.mark.parametrize("flipped", ["w0", "w2"])
def test_a_streams_damaged_tile_is_named_at_the_end_of_the_pass(call, flipped):
    """The other matrices are right, and the error is raised at the end of the pass."""
    serial, plain = serial_and_plain([(9, 40), (9, 24), (9, 40)], CodecProfile(("none",), 16, 16, False, 8, 40))
    tiles = kit.codec.Tiles.from_bytes(serial[flipped])
    wrong = tiles.checksums.copy()
    wrong[1] ^= 4
    serial[flipped] = replace(tiles, checksums=wrong).to_bytes()
    seen, _, error = call(worker.streamed, serial, 2)
    assert f"{flipped}: tile 1 of 2" in error and "the checksum of its values differs" in error
    assert same_matrices(seen, plain)


def test_a_stream_takes_int8_matrices_only(call):
    assert "v: 1-D int8" in call(worker.streamed, {"v": np.zeros(4, np.int8)})[2]
    assert "f: 2-D float32" in call(worker.streamed, {"f": np.zeros((4, 4), np.float32)})[2]
