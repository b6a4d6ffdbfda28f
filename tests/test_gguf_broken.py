"""Broken files: each is a GGUFError that names the file, the byte and what was expected; nothing else ever happens."""

import gc
import os
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_gguf_reader import assemble, table_row, text, written

import kit
from kit.errors import GGUFError
from kit.gguf.metadata import MetadataArray

HEAD = 24  # bytes before the first metadata pair


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def array(kind, count, payload=b""):
    return struct.pack("<IQ", kind, count) + payload


F32 = {"x": table_row(b"x", (8,), 0, 0), "y": table_row(b"y", (8,), 0, 32)}
BROKEN = {  # name: (bytes, byte offset in the message, words of the message)
    "empty": (b"", 0, "the file is empty"),
    "short magic": (b"GG", 0, "expected 4 bytes of the magic"),
    "bad magic": (b"PK\3\4" + bytes(60), 0, r"magic b'PK.*expected b'GGUF'"),
    "no version": (b"GGUF", 4, "expected 4 bytes of the version"),
    "version 1": (assemble(version=1), 4, "version 1, expected 2 or 3"),
    "version 9": (assemble(version=9, order=">"), 4, "expected 2 or 3 in either byte order"),
    "no counts": (b"GGUF\3\0\0\0", 8, "expected 8 bytes of tensors"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), 8, "tensors, expected at most 0"),
    "pair count": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), 16, "metadata pairs, expected at most 0"),
    "key length": (assemble([struct.pack("<Q", 2**62) + b"abcdef"]), HEAD, "expected at most 32 in the 32 bytes"),
    "long key": (assemble([pair(b"k" * 70_000, 4, bytes(4))]), HEAD, "key of 70,000 bytes, expected at most 65,535"),
    "key not UTF-8": (assemble([pair(b"a\xc3(", 4, bytes(4))]), HEAD + 9, "expected UTF-8 in a metadata key"),
    "value not UTF-8": (assemble([pair(b"k", 8, text(b"\xff"))]), HEAD + 21, "expected UTF-8 in the value of 'k'"),
    "value type": (assemble([pair(b"k", 13, bytes(8))]), HEAD + 9, "type 13 of 'k', expected a GGUF value type"),
    "boolean": (assemble([pair(b"k", 7, b"\2" + bytes(8))]), HEAD + 13, r"expected a boolean \(0 or 1\)"),
    "duplicate key": (assemble([pair(b"k", 4, bytes(4))] * 2), HEAD + 17, "'k' is repeated"),
    "nested array": (assemble([pair(b"k", 9, array(9, 1, array(4, 0)))]), HEAD + 13, "'k' is an array of arrays"),
    "element type": (assemble([pair(b"k", 9, array(77, 1))]), HEAD + 13, "'k' is an array of type 77"),
    "array length": (assemble([pair(b"k", 9, array(4, 2**61))]), HEAD + 17, "elements of 'k', expected at most"),
    "string count": (assemble([pair(b"k", 9, array(8, 2**61))]), HEAD + 17, "strings in 'k', expected at most"),
    "string in array": (
        assemble([pair(b"k", 9, array(8, 1, struct.pack("<Q", 2**63)))]), HEAD + 25, "a string of 9,223,372,036,854,775,808",
    ),
    "strings run out": (assemble([pair(b"k", 9, array(8, 2, text(b"a" * 80)[:-60]))]), HEAD + 25, "longer than the file"),
    "name length": (assemble(rows=[struct.pack("<Q", 2**40) + bytes(24)]), HEAD, "bytes of a tensor name, expected"),
    "name not UTF-8": (assemble(rows=[table_row(b"\x80", (8,), 0, 0)], data=bytes(32)), HEAD + 8, "expected UTF-8"),
    "duplicate tensor": (assemble(rows=[F32["x"], F32["x"]], data=bytes(64)), HEAD + 33, "tensor 'x' is repeated"),
    "dimensions": (assemble(rows=[table_row(b"x", (1,) * 5, 0, 0)], data=bytes(32)), HEAD + 9, "5 dimensions, expected"),
    "dimension overflow": (
        assemble(rows=[table_row(b"x", (2**32, 2**32), 0, 0)], data=bytes(32)), HEAD + 9, r"expected at most 2\^63 - 1",
    ),
    "overflow behind a zero": (
        assemble(rows=[table_row(b"x", (2**63, 0, 4), 0, 0)], data=bytes(32)), HEAD + 9, r"expected at most 2\^63 - 1",
    ),
    "row length": (
        assemble(rows=[table_row(b"x", (250,), 12, 0)], data=bytes(200)), HEAD + 21, "250 elements, expected a multiple of 256",
    ),
    "scalar of blocks": (assemble(rows=[table_row(b"x", (), 8, 0)], data=bytes(34)), HEAD + 13, "a multiple of 32 for Q8_0"),
    "misaligned": (
        assemble(rows=[table_row(b"x", (8,), 0, 4)], data=bytes(64)), HEAD + 25, "offset 4, expected a multiple of 32",
    ),
    "outside": (assemble(rows=[table_row(b"x", (8,), 0, 2**63)], data=bytes(64)), HEAD + 25, "inside the"),
    "empty and outside": (assemble(rows=[table_row(b"x", (0,), 0, 2**63)], data=bytes(64)), HEAD + 25, "inside the"),
    "truncated data": (assemble(rows=list(F32.values()), data=bytes(63)), HEAD + 58, "'y' ends at byte 160"),
    "overlap": (
        assemble(rows=[table_row(b"x", (16,), 0, 0), F32["y"]], data=bytes(64)), HEAD + 58, "'y' overlaps 'x'",
    ),
    "overlap, other order": (
        assemble(rows=[F32["y"], table_row(b"x", (16,), 0, 0)], data=bytes(64)), HEAD + 25, "'y' overlaps 'x'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_the_message_names_the_file_the_byte_and_what_was_expected(tmp_path, case):
    data, offset, words = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(GGUFError):
        kit.open(path)  # what the first one imports is not the header's
    tracemalloc.start()
    with pytest.raises(GGUFError, match=rf"{path}: byte {offset:,}: .*{words}") as caught:
        kit.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # whatever the header claims
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key, kind, value", [("alignment", 4, 0), ("alignment", 4, 24), ("alignment", 7, 1), ("architecture", 4, 5)]
)
def test_keys_that_the_reader_itself_needs(tmp_path, key, kind, value):
    path = tmp_path / "x.gguf"
    payload = struct.pack("<?" if kind == 7 else "<I", value)
    path.write_bytes(assemble([pair(f"general.{key}".encode(), kind, payload)]))
    with pytest.raises(GGUFError, match=rf"x\.gguf: 'general\.{key}' is .*expected a"):
        kit.open(path)


def test_an_alignment_beyond_the_file(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(assemble([pair(b"general.alignment", 4, struct.pack("<I", 2**31))], [F32["x"]], bytes(32)))
    with pytest.raises(GGUFError, match="ends at byte 2,147,483,680"):
        kit.open(path)


def test_what_is_no_file_at_all(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("", "is a folder"), ("none.gguf", "No such file"), ("x\0y", "cannot be opened")):
        with pytest.raises(GGUFError, match=words):
            kit.open(tmp_path / name)
    with pytest.raises(GGUFError, match="/dev/null: is not a regular file"):
        kit.open("/dev/null")
    with pytest.raises(GGUFError, match="pipe: is not a regular file"):
        kit.open(tmp_path / "pipe")


def test_a_boolean_array_that_is_none_fails_when_read(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(assemble([pair(b"k", 9, array(7, 3, b"\0\1\2"))]))
    flags = kit.open(path).metadata["k"]
    assert flags[:2] == [False, True]
    for read in (flags.tolist, flags.numpy, lambda: flags[2]):
        with pytest.raises(GGUFError, match=rf"byte {HEAD + 13}: expected booleans"):
            read()


def test_many_strings_claimed_in_a_sparse_file_are_not_walked(tmp_path):
    path = tmp_path / "sparse.gguf"
    path.write_bytes(assemble([pair(b"k", 9, array(8, 2**27))]))
    os.truncate(path, 2**31)
    with pytest.raises(GGUFError, match="134,217,728 strings in 'k', expected at most 8,388,608"):
        kit.open(path)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A valid file with all kinds of metadata and tensors, in both byte orders."""

    def fill(writer):
        writer.add_uint32("llama.block_count", 1)
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "the", "▁of", "x" * 300])
        writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, 2.5])
        writer.add_array("flags", [True, False])
        writer.add_string("tokenizer.chat_template", "{{ bos }}")
        writer.add_tensor("token_embd.weight", np.ones((3, 8), np.float32))
        blocks = np.zeros((2, 34), np.uint8)
        writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("norm", np.ones(5, np.float32))

    folder = tmp_path_factory.mktemp("valid")
    return [written(folder, fill, endian=endian, name=f"{endian.name}.gguf") for endian in gguf.GGUFEndian]


HUGE = st.sampled_from([2**64 - 1, 2**63, 2**63 - 1, 2**62, 2**32, 2**31, 2**20, 1000, 33, 1, 0])
FLIP = st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(1, 255))
CUT = st.tuples(st.just("cut"), st.integers(0, 10**6), st.integers(1, 64))
SPLICE = st.tuples(st.just("splice"), st.integers(0, 10**6), st.binary(min_size=1, max_size=40))
NUMBER = st.tuples(st.just("number"), st.integers(0, 10**6), HUGE)
TRUNCATE = st.tuples(st.just("truncate"), st.integers(0, 10**6), st.none())


def mutate(data, change):
    what, position, value = change
    position %= len(data) or 1
    match what:
        case "flip":
            return data[:position] + bytes(byte ^ value for byte in data[position : position + 1]) + data[position + 1 :]
        case "cut":
            return data[:position] + data[position + value :]
        case "splice":
            return data[:position] + value + data[position:]
        case "number":
            return data[:position] + struct.pack("<Q", value) + data[position + 8 :]
        case "truncate":
            return data[:position]


def use_everything(path):
    """Open the file and read everything in it."""
    with kit.open(path) as file:
        for value in file.metadata.values():
            if isinstance(value, MetadataArray):
                value.tolist()
        for info in file.tensors.values():
            if info.is_known:
                assert file.blocks(info.name).nbytes == file.raw(info.name).nbytes == info.nbytes


@settings(max_examples=400, deadline=None)
@given(which=st.integers(0, 1), changes=st.lists(FLIP | CUT | SPLICE | NUMBER | TRUNCATE, min_size=1, max_size=4))
@example(which=0, changes=[])
@example(which=1, changes=[])
def test_a_damaged_file_opens_or_is_a_gguf_error(valid, tmp_path_factory, which, changes):
    data = valid[which].read_bytes()
    for change in changes:
        data = mutate(data, change)
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(data)
    try:
        use_everything(path)
    except GGUFError as error:
        assert changes and str(path) in str(error)


def test_every_truncation_and_every_huge_number(valid, tmp_path):
    """The file cut at every third byte, and 2^62 written over every third byte."""
    path = tmp_path / "x.gguf"
    for source in valid:
        data = source.read_bytes()
        end = max(info.offset + info.nbytes for info in kit.open(source).tensors.values())
        for position in range(0, end, 3):
            path.write_bytes(data[:position])
            with pytest.raises(GGUFError):
                use_everything(path)
            path.write_bytes(mutate(data, ("number", position, 2**62 + 3)))
            try:
                use_everything(path)
            except GGUFError:
                pass


@pytest.mark.parametrize("size", [3, 100, 400, -100])
def test_a_broken_file_is_closed_by_its_error(valid, tmp_path, size):
    """Each kept two descriptors until the collector ran: 500 broken files were too many open ones."""
    path = tmp_path / "x.gguf"
    path.write_bytes(valid[0].read_bytes()[:size])
    gc.disable()
    try:
        counts = []
        for _ in range(3):
            with pytest.raises(GGUFError) as caught:
                use_everything(path)
            del caught
            counts.append(len(os.listdir("/dev/fd")))
    finally:
        gc.enable()
    assert counts[-1] <= counts[0]
