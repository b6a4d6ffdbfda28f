"""The reader against files that gguf-py wrote and files put together by hand: what is valid opens, as it was written."""

import re
import struct
import subprocess
import sys
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import GGUFError
from kit.gguf import forks
from kit.gguf.formats import BY_ID, FORMATS


def text(value, order="<"):
    return struct.pack(order + "Q", len(value)) + value


def table_row(name, shape, type_id, offset, order="<"):
    """One row of a tensor table; shape as ggml has it, fastest dimension first."""
    return text(name, order) + struct.pack(f"{order}I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


def assemble(pairs=(), rows=(), data=b"", version=3, order="<"):
    """A GGUF file of finished metadata pairs and table rows."""
    head = b"GGUF" + struct.pack(order + "IQQ", version, len(rows), len(pairs)) + b"".join((*pairs, *rows))
    return head + bytes(-len(head) % 32) + data


def written(tmp_path, fill, arch="llama", endian=gguf.GGUFEndian.LITTLE, name="model.gguf"):
    """The path of a file that gguf-py writes; ``fill(writer)`` adds what it holds."""
    writer = gguf.GGUFWriter(tmp_path / name, arch, endianess=endian)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / name


SCALARS = {
    "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000, "int32": -2_000_000_000,
    "uint64": 2**63 + 5, "int64": -(2**62), "float32": 0.5, "float64": 1e300, "bool": True, "string": "naïve \0\x1b[31m",
}  # fmt: skip
ARRAYS = {"f": [0.5, -1.25], "i": [1, -2, 3], "s": ["", "a", "é" * 200], "b": [True, False]}


@pytest.mark.parametrize("endian", gguf.GGUFEndian)
def test_reads_what_gguf_py_writes(tmp_path, endian):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)

    def fill(writer):
        for kind, value in SCALARS.items():
            getattr(writer, f"add_{kind}")(f"k.{kind}", value)
        for key, value in ARRAYS.items():
            writer.add_array(f"a.{key}", value)
        writer.add_tensor("blk.1.x", values.copy())
        writer.add_tensor("h", values[0].astype(np.float16))

    with kit.open(written(tmp_path, fill, endian=endian)) as file:
        assert (file.version, file.alignment, file.architecture) == (3, 32, "llama")
        assert file.byteorder == endian.name.lower()
        for kind, value in SCALARS.items():
            assert file.metadata[f"k.{kind}"] == value and type(file.metadata[f"k.{kind}"]) is type(value)
        for key, value in ARRAYS.items():
            array = file.metadata[f"a.{key}"]
            assert array == value and array.tolist() == value and len(array) == len(value)
            assert array[-1] == value[-1] and array[1:] == value[1:]
            with pytest.raises(IndexError):
                array[len(value)]
        assert file.metadata["a.f"].numpy().dtype == np.float32 and file.metadata["a.b"].numpy().dtype == bool
        assert [(info.name, info.qtype, info.shape) for info in file.tensors.values()] == [
            ("blk.1.x", "F32", (2, 3)), ("h", "F16", (3,))]  # fmt: skip
        assert file.tensors["blk.1.x"].elements == 6 and file.tensors["blk.1.x"].layer == 1
        assert np.array_equal(file.blocks("blk.1.x").view("<f4"), values)
        assert np.array_equal(file.blocks("h").view("<f2"), values[0])


def test_raw_is_a_read_only_view_of_the_map_and_outlives_close(tmp_path):
    path = written(tmp_path, lambda writer: writer.add_tensor("x", np.ones((4, 32), np.float32)))
    file = kit.open(path)
    first, second = file.raw("x"), file.raw("x")
    assert np.shares_memory(first, second) and not first.flags.writeable and first.shape == (512,)
    assert np.shares_memory(file.blocks("x"), first) and file.blocks("x").shape == (4, 128)
    file.close()
    assert first.view("<f4").sum() == 128
    with pytest.raises(GGUFError, match="closed"):
        file.raw("x")


def test_a_missing_tensor_is_named(tmp_path):
    with kit.open(written(tmp_path, lambda writer: None)) as file, pytest.raises(GGUFError, match=r"model\.gguf.*'y'"):
        file.raw("y")


# Where ggml reads words of several bytes in a block: (first byte, bytes of a word, words), from the C structs.
WORDS = {
    "F32": [(0, 4, 1)], "F16": [(0, 2, 1)], "BF16": [(0, 2, 1)], "I64": [(0, 8, 1)], "I8": [],
    "Q4_0": [(0, 2, 1)], "Q5_0": [(0, 2, 1), (2, 4, 1)], "Q8_0": [(0, 2, 1)], "Q2_K": [(80, 2, 2)],
    "Q3_K": [(108, 2, 1)], "Q4_K": [(0, 2, 2)], "Q5_K": [(0, 2, 2)], "Q6_K": [(208, 2, 1)],
    "IQ2_XS": [(0, 2, 33)], "IQ4_XS": [(0, 2, 2)], "MXFP4": [],
}  # fmt: skip


@pytest.mark.parametrize("qtype", WORDS)
def test_blocks_of_a_big_endian_file_come_out_little_endian(tmp_path, qtype):
    kind = FORMATS[qtype]
    little = np.random.default_rng(0).integers(0, 256, (3, 2, kind.block_bytes), np.uint8)
    big = little.copy()
    for start, width, count in WORDS[qtype]:
        for word in range(start, start + width * count, width):
            big[..., word : word + width] = big[..., word : word + width][..., ::-1]
    row = table_row(b"x", (2 * kind.block_elements, 3), kind.id, 0, ">")
    path = tmp_path / "big.gguf"
    path.write_bytes(assemble(rows=[row], data=big.tobytes(), order=">"))
    with kit.open(path) as file:
        assert file.byteorder == "big"
        assert np.array_equal(file.blocks("x"), little.reshape(3, -1))
        assert file.raw("x").tobytes() == big.tobytes()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("version", (2, 3))
def test_both_versions_in_both_byte_orders(tmp_path, version, order):
    pair = text(b"general.alignment", order) + struct.pack(order + "II", 4, 64)
    path = tmp_path / "x.gguf"
    path.write_bytes(assemble([pair], version=version, order=order))
    with kit.open(path) as file:
        assert (file.version, file.alignment, file.tensors) == (version, 64, {})
        assert file.architecture == "unknown"


@pytest.mark.parametrize("id, name, told", [
    (1000, "UNKNOWN_1000", "has ggml type 1000,"), (4, "Q4_2", "is Q4_2 of llama.cpp of 2023 (type 4),"),
    (139, "IQ4_K", "is IQ4_K of ik_llama.cpp (type 139),"),
    (143, "PTQ1_0", "is PTQ1_0 of PrismML's fork of llama.cpp (type 143),"),
])  # fmt: skip
def test_an_unknown_type_is_listed_and_fails_only_when_read(tmp_path, id, name, told):
    path = tmp_path / "x.gguf"
    rows = [table_row(b"new", (64,), id, 0), table_row(b"old", (8,), 0, 64), table_row(b"last", (1,), id, 96)]
    path.write_bytes(assemble(rows=rows, data=bytes(100)))
    with kit.open(path) as file:
        assert [(info.qtype, info.nbytes) for info in file.tensors.values()] == [(name, 64), ("F32", 32), (name, 4)]
        assert len(file.raw("old")) == 32
        for read in (file.raw, file.blocks):
            with pytest.raises(GGUFError, match=rf"x\.gguf: tensor 'new' {re.escape(told)} which kit does not support.*Q4_K"):
                read("new")


def test_no_type_of_another_program_is_one_of_ggmls():
    assert not forks.TYPES.keys() & BY_ID.keys() and len(forks.TYPES) == 62
    assert not {name for name, _ in forks.TYPES.values()} & FORMATS.keys()


@pytest.mark.parametrize("last", [False, True], ids=["another tensor follows", "the last tensor"])
def test_q2_0_in_groups_of_128_is_one_error(tmp_path, last):
    """2,048 weights take 544 bytes in groups of 128, and 576 in ggml's groups of 64."""
    path = tmp_path / "x.gguf"
    for nbytes in (576, 544, 512):
        rows = [table_row(b"a", (256, 8), 42, 0), table_row(b"b", (8,), 0, nbytes)]
        path.write_bytes(assemble(rows=rows[: 2 - last], data=bytes(nbytes + 32 * (not last))))
        if nbytes == 576:
            with kit.open(path) as file:
                assert file.tensors["a"].nbytes == nbytes
            continue
        fork = r"'a' is Q2_0 in groups of 128 weights \(544 bytes\), as PrismML.*\(576 bytes\): take"
        with pytest.raises(GGUFError, match=rf"x\.gguf: byte .*{fork if nbytes == 544 else 'truncated|overlaps'}"):
            kit.open(path)


def test_empty_tensors_scalars_and_odd_names(tmp_path):
    path = tmp_path / "x.gguf"
    names = ["", "blk.3.\x1b[31m\n", "名\u202e<script>", "a" * 300]
    shapes = [(0,), (32, 0), (), (0, 5)]
    rows = [table_row(name.encode(), shape, 0, 0) for name, shape in zip(names, shapes, strict=True)]
    path.write_bytes(assemble(rows=rows, data=struct.pack("<f", 7)))
    with kit.open(path) as file:
        assert list(file.tensors) == names
        assert [file.tensors[name].shape for name in names] == [(0,), (0, 32), (), (5, 0)]
        assert [file.blocks(name).shape for name in names] == [(0,), (0, 128), (4,), (5, 0)]
        assert file.blocks("blk.3.\x1b[31m\n").size == 0 and file.blocks("名\u202e<script>").view("<f4") == [7]


@settings(max_examples=60, deadline=None)
@given(
    strings=st.lists(st.text(max_size=12) | st.sampled_from(["é" * 127 + "a", "y" * 256, "z" * 1000]), max_size=40),
    order=st.sampled_from("<>"),
)
def test_arrays_of_strings_of_any_length(tmp_path_factory, strings, order):
    path = tmp_path_factory.mktemp("strings") / "x.gguf"
    payload = b"".join(text(value.encode(), order) for value in strings)
    pair = text(b"s", order) + struct.pack(order + "IIQ", 9, 8, len(strings)) + payload
    after = text(b"after", order) + struct.pack(order + "II", 4, 77)
    path.write_bytes(assemble([pair, after], order=order))
    metadata = kit.open(path).metadata
    assert metadata["s"].tolist() == strings and metadata["after"] == 77
    assert metadata["s"][::-2] == strings[::-2]


def test_an_array_stays_in_the_file_until_it_is_asked_for(tmp_path):
    path = written(tmp_path, lambda writer: writer.add_array("t", ["a", "b"]))
    data = path.read_bytes()
    path.write_bytes(data.replace(text(b"b"), text(b"\xff")))
    array = kit.open(path).metadata["t"]  # invalid UTF-8, not looked at
    assert array[0] == "a"
    with pytest.raises(GGUFError, match=rf"model\.gguf: byte {data.index(text(b'b')) + 8:,}: expected UTF-8"):
        array.tolist()
    with pytest.raises(GGUFError, match="holds strings"):
        array.numpy()
    assert repr(array) == "<2 x string>"


def test_a_large_vocabulary_opens_without_being_decoded(tmp_path):
    """262,144 tokens and 514,906 merges: offsets are kept, strings are not made."""
    tokens = [b"t%d" % i for i in range(262_144)]
    merges = [b"a%d b%d" % (i, i) for i in range(514_906)]
    pairs = [text(key) + struct.pack("<IIQ", 9, 8, len(strings)) + b"".join(map(text, strings))
             for key, strings in ((b"tokens", tokens), (b"merges", merges))]  # fmt: skip
    path = tmp_path / "x.gguf"
    path.write_bytes(assemble(pairs))
    tracemalloc.start()
    metadata = kit.open(path).metadata
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000  # 8 bytes a string, twice while the batches are joined
    assert metadata["tokens"][262_143] == "t262143" and metadata["merges"][-1] == "a514905 b514905"


def split_model(tmp_path, parts, **overrides):
    """``parts``: tensor names a file; overrides: metadata of the parts."""
    for number, names in enumerate(parts):

        def fill(writer, number=number, names=names):
            writer.add_uint16("split.no", overrides.get("no", number))
            writer.add_uint16("split.count", overrides.get("count", len(parts)))
            writer.add_int32("split.tensors.count", overrides.get("total", sum(map(len, parts))))
            for name in names:
                writer.add_tensor(name, np.full((2, 2), number, np.float32))

        written(tmp_path, fill, name=f"m-{number + 1:05d}-of-{len(parts):05d}.gguf")
    return tmp_path / f"m-00001-of-{len(parts):05d}.gguf"


@pytest.mark.parametrize("named", (1, 2, 3))
def test_a_split_file_is_one_file_whichever_part_is_named(tmp_path, named):
    split_model(tmp_path, [["a"], ["b", "c"], []])
    with kit.open(tmp_path / f"m-{named:05d}-of-00003.gguf") as file:
        assert list(file.tensors) == ["a", "b", "c"] and [len(file.paths), file.tensors["c"].part] == [3, 1]
        assert file.path == file.paths[0] and file.path.name == "m-00001-of-00003.gguf"
        assert file.raw("a").view("<f4").sum() == 0 and file.raw("c").view("<f4").sum() == 4


def test_a_file_of_more_parts_than_descriptors_opens(tmp_path):
    path = split_model(tmp_path, [[f"t{number}"] for number in range(70)])
    code = (
        "import resource, sys, kit; resource.setrlimit(resource.RLIMIT_NOFILE, (96, 4096)); "
        "file = kit.open(sys.argv[1]); print(len(file.paths), len(file.tensors))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout.split() == ["70", "70"], done.stderr


@pytest.mark.parametrize("parts, overrides, message", [
    ([["a"], ["a"]], {}, "'a' is also in an earlier part"), ([["a"], ["b"]], {"count": 3}, "'split.count' is 3, expected 2"),
    ([["a"], ["b"]], {"no": 0}, "'split.no' is 0, expected 1"),
    ([["a"], ["b"]], {"total": 5}, "'split.tensors.count' is 5, but the parts hold 2"),
])  # fmt: skip
def test_parts_that_do_not_belong_together(tmp_path, parts, overrides, message):
    with pytest.raises(GGUFError, match=message):
        kit.open(split_model(tmp_path, parts, **overrides))


def test_a_part_alone_says_which_is_missing(tmp_path):
    first = split_model(tmp_path, [["a"], ["b"], ["c"]])
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(GGUFError, match=r"1 of the 3 parts are missing.*m-00002-of-00003\.gguf"):
        kit.open(first)
    renamed = first.rename(tmp_path / "alone.gguf")
    with pytest.raises(GGUFError, match=r"'split.count' is 3, expected 1.*NAME-00001-of-0000N"):
        kit.open(renamed)
    with pytest.raises(GGUFError, match="part 4 of 3"):
        kit.open(tmp_path / "m-00004-of-00003.gguf")


def test_files_open_on_a_system_without_limits_of_descriptors():
    code = "import sys, psutil; sys.modules['resource'] = None; from kit import system; system.allow_files(10)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
