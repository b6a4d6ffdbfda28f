"""Difficult texts, vocabularies learned from them, and GGUF files with only a vocabulary.

A vocabulary has merges enough to make one token of each text, so every cut that a tokenizer makes shows in its ids.
"""

import json
import random
from functools import cache
from io import BytesIO

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, models, trainers

from kit.model.pretokenizers import byte_symbols

TEXT = (
    """The quick brown fox jumps over the lazy dog. It's what we'll do, isn't it? I'M sure THEY'VE seen 1234567 of them,
or 3.14159, 2,000,000 and 0x7f.   Spaces,\ttabs,\n\n  new lines; for (int i = 0; i < n; ++i) { total += x[i]; }
def count(words):\n    return len(words)  # the number of words, nothing more
Les élèves français étaient déjà là où naïve cœur. Größe, Straße, Übung. Привет, как дела? 漢字かな交じり文、日本語のテスト。
한국어 문장입니다. मेरा नाम. السلام عليكم. 😀😀 👩‍👩‍👧 \u0301e\u0301 \u00a0\u3000 <html><s>text</s></html> $100 €5 a+b=c ^~|
"""
    * 3
)


TRICKY = [
    *("", "a", " ", " a", "  a", "a ", "a  ", "   ", "\n", "\n\n", " \n ", "\t\tx", "\r\n\r\nfoo", "Hello, world!"),
    *("it's I'M we'Ve you'LL 'tis ''s", "123 4567 89012345", "1.5e-10", "１２３ ٣٤٥ Ⅻ ½", "😀", "👩‍👩‍👧‍👦 🏳️‍🌈", "🇩🇪"),
    *("漢字かな交じり文、テスト。", "한국어 텍스트", "e\u0301cole é caf\u00e9", "नमस्ते दुनिया", "ไทย ไม่", "العربية"),
    *("a\u0300\u0301b", "\u00a0nbsp\u2003em\u3000ideo", "zero\u200bwidth", "\u2028line", "\x85nel\x0bvt"),
    *("\ufeffbom", "camelCaseWORDSÉcoleÀB"),
    *("<s>hi</s>", "<|eot|><|eot|> x<|eot|>", "<s", "<tool>call</tool><tool>", "$100,000.00 + <=> ^~|`x`", "/a/b//c\n/x"),
    *("1234567 12345 x123456789abc 12 1", "٢12345 1٢ 123٢ 1٢3٤5", "12,345.678 ١٢٣٤ a_1 12_3 123a 1234_"),
    *("'tis", "'Re", "x\n\n\n\ny", "\n\n\n", "a \n\n b"),
    *("अ\u200cब\u200dक e\u0301x", "IMGIMGABZ<sentinel:12>", "漢字abc漢 Ⅻ½²", "  \n\n x\r\n\r\n  y \t\t"),
    *("x" * 300, "....!!!???", "if (a<b) { return c; }\n    else:\n\tpass\n", "ſ 'ſ K", "𝔘𝔫𝔦 𠀀", "ǅungla ʰ ªº", TEXT),
]
BROKEN = [b"\xff", b"a\xe2\x82", b"\xc3(", b"\xf0\x9f\x98", b"ok\x80\x81ok", b"\xf8\x88\x80\x80\x80 z", b"\xe2\x28\xa1 x"]


def scrambled(count):
    """Random strings of characters that are difficult for tokenizers, the same at every call."""
    alphabet = "aZé漢😀'sT \u00a0\u3000\n\r\t1٣½.,!<>|/\u0301\u200d_$한"
    dice = random.Random(0)
    return ["".join(dice.choices(alphabet, k=dice.randint(1, 24))) for _ in range(count)]


TEXTS = [text.encode() for text in TRICKY + scrambled(150)] + BROKEN


@cache
def learn(texts: tuple[str, ...], count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges over whole texts, the most frequent pair first."""
    learner = Tokenizer(models.BPE())
    learner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=count, min_frequency=0, show_progress=False))
    return [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]


def byte_pair_file(path, pre, special=("<|eot|>", "<tool>"), raw=False, **keys):
    """A tokenizer of merges with the pre-tokenizer ``pre``; <|eot|> is control, <tool> the user's. ``raw``: of characters."""
    visible = byte_symbols()
    valid = [text for text in TEXTS if text not in BROKEN]
    texts = [t.decode().replace(" ", "▁") if raw else "".join(visible[byte] for byte in t) for t in valid]
    pairs = learn(tuple(texts), 6000)
    single = [f"<0x{byte:02X}>" for byte in range(256)] if raw else visible
    alphabet = [c for c, number in sorted(_counted("".join(texts)).items()) if number > 2] if raw else []
    known = {*single, *alphabet}
    merges = []
    for pair in pairs:
        if {*pair} <= known:
            merges.append(pair)
            known.add("".join(pair))
    joined = ["\n\n\n"] * raw + ["".join(pair) for pair in merges]  # newlines that no merge makes
    first = ["<unk>", "<s>", "</s>", *special, *single]
    pieces = _new([*alphabet, *joined], first)
    tokens = [*first, *pieces]
    keys = {"model": "gpt2", "pre": pre, "merges": [" ".join(pair) for pair in merges]} | keys
    return _write(path, keys, tokens, [2, 3, 3, 3, 4] + [6 if raw else 1] * 256 + [1] * len(pieces))


def _new(pieces, known):
    """``pieces`` without repetitions and known ones."""
    return [piece for piece in dict.fromkeys(pieces) if piece not in known]


def _counted(text):
    return {character: text.count(character) for character in set(text)}


def sentence_piece_file(path, special=("<|eot|>", "<tool>"), **keys):
    """A llama tokenizer: bytes, the common characters, merges; neighbors share a score, so that ties occur."""
    text = TEXT.replace(" ", "▁")
    common = [character for character, number in _counted(text).items() if number > 5 and character != "\n"]
    merges = [pair for pair in learn(tuple(text.split("\n")), 400) if {*"".join(pair)} <= {*common}]
    first = ["<unk>", "<s>", "</s>", *special, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = _new([*sorted(common), *("".join(pair) for pair in merges)], first)
    tokens = [*first, *pieces]
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(rank // 3) for rank in range(len(pieces))]
    keys = {"model": "llama", "scores": scores, **keys}
    return _write(path, keys, tokens, [2, 3, 3, 3, 4] + [6] * 256 + [1] * len(pieces))


@cache
def _unigram():
    """(pieces, scores, character map) that SentencePiece learns from TEXT, with its usual normalization."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model_pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")), model_writer=model, model_type="unigram", vocab_size=400, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    proto = model_pb2.ModelProto.FromString(model.getvalue())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces[3:]]
    return pieces, proto.normalizer_spec.precompiled_charsmap


def unigram_file(path, special=("<|eot|>", "<tool>"), charsmap=True, **keys):
    """A t5 tokenizer."""
    pieces, blob = _unigram()
    tokens = ["<pad>", "</s>", "<unk>", *special, *(text for text, _ in pieces)]
    scores = [0.0] * 5 + [float(score) for _, score in pieces]
    keys = {"model": "t5", "scores": scores, "unknown_token_id": 2, "eos_token_id": 1, "add_space_prefix": True} | keys
    keys |= {"precompiled_charsmap": blob} if charsmap else {}
    return _write(path, keys, tokens, [3, 3, 2, 3, 4] + [1] * len(pieces))


def listed_file(path, texts, **keys):
    """A llama tokenizer of bytes, lower-case letters and ``texts``, which are normal tokens."""
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefghijklmnopqrstuvwxyz▁"]
    tokens = [*first, *_new(texts, first)]
    keys = {"model": "llama", "scores": [0.0] * len(tokens)} | keys
    return _write(path, keys, tokens, [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))


def _write(path, keys, tokens, types):
    assert len({*tokens}) == len(tokens), "llama.cpp ends the process"
    writer = gguf.GGUFWriter(path, "llama")
    keys = {"bos_token_id": 1, "eos_token_id": 2} | keys | {"tokens": tokens, "token_type": types}
    if "name" in keys:
        writer.add_name(keys.pop("name"))
    for key, value in keys.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        kinds.get(type(value), writer.add_array)(f"tokenizer.ggml.{key}", value)
    for key in ("context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
