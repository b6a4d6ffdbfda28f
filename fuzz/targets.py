"""What is fuzzed: a row a target. ``seeds()`` makes the starting corpus, ``one(data)`` takes any bytes.

``one`` may raise KitError, which is the answer to bad input. Any other exception, a wrong number (AssertionError), two
seconds or a gigabyte is a finding: put it into tests/ as a case.
"""

import os
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kit.model.vocabulary import SPACE
from kit.system.paths import data_file


class Target(NamedTuple):
    """``modules``: what is instrumented for coverage. Modules of compiled code cannot be: of those, ``module:function``."""

    seeds: Callable[[], Iterable[bytes]]
    one: Callable[[bytes], None]
    modules: tuple[str, ...]


_FOLDER = Path(tempfile.mkdtemp(prefix="kit-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def _file(data: bytes, name: str) -> Path:
    path = _FOLDER / name
    path.write_bytes(data)
    return path


# ---- GGUF files


def _gguf_seeds():
    from kit.lab.synthetic.write import synthesize

    for name in ("tiny-llama", "tiny-granite"):
        path = _FOLDER / "seed.gguf"
        synthesize(path, name, layers=1)
        yield path.read_bytes()[:65536]  # metadata and tensor table: the data may be missing
        path.unlink()
    yield b"GGUF\3\0\0\0" + bytes(16)


def _gguf(data: bytes) -> None:
    import kit
    from kit.lab.summary import summarize

    with kit.open(_file(data, "fuzz.gguf")) as file:
        for value in file.metadata.values():
            len(list(value)) if hasattr(value, "__iter__") and len(value) < 10**5 else None
        for name, info in file.tensors.items():
            if info.is_known and info.nbytes < 2**20:
                file.blocks(name).sum()
        summarize(file, 2**34, 2**33)


# ---- dequantizers, against gguf-py


def _block_seeds():
    from kit.gguf.formats import FORMATS

    random = np.random.default_rng(0)
    for number, format in enumerate(FORMATS.values()):
        yield bytes([number]) + random.bytes(2 * format.block_bytes)
        yield bytes([number]) + b"\xff" * format.block_bytes


def _blocks(data: bytes) -> None:
    import kit
    from kit.cpu import dequantize as cpu
    from kit.gguf.formats import FORMATS

    format = list(FORMATS.values())[data[0] % len(FORMATS)] if data else None
    if format is None or not cpu.knows(format) or len(data) <= format.block_bytes:
        return
    blocks = np.frombuffer(data[1 : 1 + (len(data) - 1) // format.block_bytes * format.block_bytes], np.uint8)
    ours, right = (kit.dequantize(blocks, format.name, backend=name) for name in ("cpu", "reference"))
    assert torch.equal(ours.isnan(), right.isnan()) and torch.equal(ours.nan_to_num(), right.nan_to_num()), format.name


# ---- compressed tiles


def _tile_seeds():
    import kit.codec

    matrix = np.clip(np.rint(np.random.default_rng(1).normal(0, 20, (40, 70))), -128, 127).astype(np.int8)
    for predictors, states, words in ((("none",), 32, 16), (("up",), 16, 16), (("left2",), 1, 8)):
        yield kit.codec.encode(matrix, kit.codec.CodecProfile(predictors, states, words, True, 16, 32)).to_bytes()


def _tiles(data: bytes) -> None:
    import kit.codec
    from kit.errors import KitError

    tiles = kit.codec.Tiles.from_bytes(data)
    if tiles.shape[0] * tiles.shape[1] > 2**20:
        return
    results = []
    for decoder in ("scalar-linear", "scalar-binary", "scalar-table", "numpy", "interleaved", "simd"):
        try:
            results.append(kit.codec.decode(tiles, decoder))
        except KitError:
            continue
    assert all(np.array_equal(result, results[0]) for result in results)


# ---- traces of accesses


def _trace_seeds():
    from fuzz.oracle_general import write
    from kit.cache.traces import repeated

    yield write(repeated([("a", 3), ("b", 5)], 4), _FOLDER / "seed.bin").read_bytes()


def _oracle(data: bytes) -> None:
    import kit
    from kit.lab.predicting import oracle

    trace = oracle.read(_file(data, "fuzz.bin"))
    if len(trace) < 200:
        stats = kit.replay(trace, kit.LRU(2**20))
        assert stats.hits + stats.misses == len(trace)


def _csv(data: bytes) -> None:
    from kit.lab.predicting.oracle import read_trace

    read_trace(_file(data, "fuzz.csv"))


# ---- files of the user's own hand


def _grid(data: bytes) -> None:
    from kit.lab.report.sweep import spec
    from kit.system.paths import notebooks_folder

    spec.read(_file(data, "grid.yaml"), notebooks_folder())


def _claims(data: bytes) -> None:
    from kit.lab.claims import table

    table.read(_file(data, "claims.yaml"))


def _parameters(data: bytes) -> None:
    from kit.lab.report import parameters

    text = data.decode("utf-8", "replace")
    cell = {"cell_type": "code", "source": text, "metadata": {"tags": ["parameters"]}}
    known = parameters.read([cell], "fuzz")
    parameters.assign({"fuzz": known}, [line for line in text.splitlines() if "=" in line])


# ---- tokenizers


def _tokenizers():
    if not _KINDS:
        import kit
        from kit.lab.synthetic.write import synthesize
        from kit.model.tokenizer import tokenizer_of

        for name in ("tiny-llama", "tiny-granite"):
            path = _FOLDER / f"{name}.gguf"
            synthesize(path, name, layers=1)
            _KINDS.append(tokenizer_of(kit.open(path)))
    return _KINDS


_KINDS = []


def _text(data: bytes) -> None:
    text = data.decode("utf-8", "ignore")
    for tokenizer in _tokenizers():
        back = tokenizer.decode(tokenizer.encode(text))
        assert back in (text, text.replace("\u2581", " ")), tokenizer  # SentencePiece writes a space as that character


def _tokenizer_seeds():
    """A GGUF header with a small tokenizer of each kind, without tensors."""
    from kit.gguf.writer import header

    words = [
        "<unk>",
        "<s>",
        "</s>",
        "<pad>",
        *"abcdefghijklmnopqrstuvwxyz .",
        SPACE,
        "he",
        "ll",
        "hell",
        f"{SPACE}w",
        "<|im_end|>",
    ]
    kinds = np.array([2, 3, 3, 3, *[1] * (len(words) - 5), 4], np.int32)
    scores = -np.arange(len(words), dtype=np.float32)
    ids = {f"{name}_token_id": number for number, name in enumerate(("unknown", "bos", "eos", "padding"))}
    charsmap = np.frombuffer(struct.pack("<I4I", 16, 0, 0, 0, 0) + b"a\0", np.uint8)
    common = {"tokens": words, "token_type": kinds, "add_bos_token": True, "add_space_prefix": True} | ids
    more = {
        "llama": {"scores": scores}, "gpt2": {"pre": "llama-bpe", "merges": ["h e", "l l", "he ll"]},
        "gemma4": {"merges": ["h e"]}, "t5": {"scores": scores, "precompiled_charsmap": charsmap},
    }  # fmt: skip
    for kind, own in more.items():
        keys = {f"tokenizer.ggml.{key}": value for key, value in ({"model": kind} | common | own).items()}
        yield header(keys | {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ pad_token }}"}, [])


def _tokenizer(data: bytes) -> None:
    import kit
    from kit.lab.chat import chat
    from kit.model.tokenizer import tokenizer_of

    with kit.open(_file(data, "tokenizer.gguf")) as file:
        tokenizer = tokenizer_of(file)
        chat(file, tokenizer, [{"role": "user", "content": "hell"}])
        for text in ("hell", "Hello, w\u00f6rld \u6f22 <s>"):  # the seeds have tokens for the first
            ids = tokenizer.encode(text)
            assert all(isinstance(token, int) and 0 <= token < len(tokenizer) for token in ids)
            tokenizer.decode(ids, special=True)


TARGETS = {
    "gguf": Target(_gguf_seeds, _gguf, ("kit.gguf.metadata", "kit.gguf.reader", "kit.lab.summary")),
    "blocks": Target(_block_seeds, _blocks, ("kit.quants.registry",)),
    "tiles": Target(_tile_seeds, _tiles, ("kit.codec.tiles:Tiles.from_bytes", "kit.codec.tiles:Layout.check")),
    "oracle": Target(_trace_seeds, _oracle, ("kit.lab.predicting.oracle", "kit.cache.replay")),
    "csv": Target(lambda: [b"name,nbytes\na,3\nb,5\n"], _csv, ("kit.lab.predicting.oracle", "kit.cache.traces")),
    "grid": Target(
        lambda: [b"profile: smoke\nnotebooks: [decode]\nmodels: [tiny-llama]\n"], _grid, ("kit.lab.report.sweep.spec",)
    ),
    "claims": Target(lambda: [data_file("claims.yaml").read_bytes()[:4096]], _claims, ("kit.lab.claims.table",)),
    "parameters": Target(lambda: [b"n: int = 3  # how many\nx: float = 1.5\n"], _parameters, ("kit.lab.report.parameters",)),
    "tokenizer": Target(
        _tokenizer_seeds,
        _tokenizer,
        ("kit.gguf.keys", "kit.lab.chat", *map("kit.model.{}".format, "special_tokens vocabulary tokenizer bytepair".split())),
    ),
    "text": Target(lambda: ["Hello, wörld 123 \n\n 漢字🙂".encode()], _text, ("kit.model.tokenizer",)),
}
