"""Tokenizers: the same ids as llama.cpp on tricky text; text survives the way there and back."""

import random
from itertools import pairwise
from types import SimpleNamespace

import gguf
import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import TEXT, byte_pair_file, sentence_piece_file

import kit
from kit.errors import TokenizerError
from kit.model.pretokenizers import PRE_TOKENIZERS
from kit.model.tokenizer import merge, tokenizer_of

TRICKY = [
    *("", "a", " ", " a", "  a", "a ", "a  ", "   ", "\n", "\n\n", " \n ", "\t\tx", "\r\n\r\nfoo", "Hello, world!"),
    *("it's I'M we'Ve you'LL 'tis ''s", "123 4567 89012345", "1.5e-10", "１２３ ٣٤٥ Ⅻ ½", "😀", "👩‍👩‍👧‍👦 🏳️‍🌈", "🇩🇪"),
    *("漢字かな交じり文、テスト。", "한국어 텍스트", "e\u0301cole é caf\u00e9", "नमस्ते दुनिया", "ไทย ไม่", "العربية"),
    *("a\u0300\u0301b", "\u00a0nbsp\u2003em\u3000ideo", "zero\u200bwidth", "\u2028line", "\x85nel\x0bvt"),
    *("\ufeffbom", "camelCaseWORDSÉcoleÀB"),
    *(
        "<s>hi</s>",
        "<|eot|><|eot|> x<|eot|>",
        "<s",
        "<tool>call</tool><tool>",
        "$100,000.00 + <=> ^~|`x`",
        "/a/b//c\n/x",
    ),
    *("x" * 300, "....!!!???", "if (a<b) { return c; }\n    else:\n\tpass\n", "ſ 'ſ K", "𝔘𝔫𝔦 𠀀", "ǅungla ʰ ªº", TEXT),
]
BROKEN = [
    b"\xff",
    b"a\xe2\x82",
    b"\xc3(",
    b"\xf0\x9f\x98",
    b"ok\x80\x81ok",
    b"\xf8\x88\x80\x80\x80 z",
    b"\xe2\x28\xa1 x",
]


def scrambled(count):
    """Random strings over what makes tokenizers stumble, always the same."""
    alphabet = "aZé漢😀'sT \u00a0\u3000\n\r\t1٣½.,!<>|/\u0301\u200d_$한"
    dice = random.Random(0)
    return ["".join(dice.choices(alphabet, k=dice.randint(1, 24))) for _ in range(count)]


TEXTS = [text.encode() for text in TRICKY + scrambled(150)] + BROKEN
one_name_each = {kind: name for name, kind in reversed(PRE_TOKENIZERS.items())}.values()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabularies")


def open_tokenizer(path):
    return tokenizer_of(kit.open(path))


@pytest.mark.parametrize("pre", one_name_each)
def test_byte_pairs_equal_llama_cpp(folder, pre):
    path = byte_pair_file(folder / f"{pre}.gguf", pre)
    ours = open_tokenizer(path)
    assert [ours.encode(text) for text in TEXTS] == llama_cpp.tokenize(path, TEXTS)
    ours.bos = None
    assert [ours.encode(text, special=False) for text in TEXTS] == llama_cpp.tokenize(path, TEXTS, False, False)


def test_every_pre_tokenizer_name_means_the_same_to_llama_cpp(folder):
    text = TEXT.encode()
    for pre in PRE_TOKENIZERS:
        path = byte_pair_file(folder / "name.gguf", pre)
        assert [open_tokenizer(path).encode(text)] == llama_cpp.tokenize(path, [text]), pre


@pytest.mark.parametrize("keys", [{}, {"add_space_prefix": False}, {"add_bos_token": False, "add_eos_token": True}])
def test_sentence_pieces_equal_llama_cpp(folder, keys):
    path = sentence_piece_file(folder / "spm.gguf", **keys)
    ours = open_tokenizer(path)
    assert [ours.encode(text) for text in TEXTS] == llama_cpp.tokenize(path, TEXTS)


@pytest.fixture(scope="module")
def tokenizers(folder):
    paths = byte_pair_file(folder / "b.gguf", "llama-bpe"), sentence_piece_file(folder / "s.gguf")
    return [open_tokenizer(path) for path in paths]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_text_survives(tokenizers, text):
    """Any text but SentencePiece's own sign for a space."""
    for tokenizer in tokenizers:
        ids = tokenizer.encode(text, special=False)
        assert tokenizer.decode(ids) == text
        piece = tokenizer.stream()
        assert "".join(map(piece, ids)).removeprefix(" " if text[:1] != " " else "").endswith(text)


def test_streamed_text_comes_in_whole_characters(tokenizers):
    for tokenizer in tokenizers:
        ids = tokenizer.encode("👩‍👩‍👧‍👦 naïve", special=False)
        piece = tokenizer.stream()
        pieces = [piece(token) for token in ids]
        assert "\ufffd" not in "".join(pieces) and "" in pieces


def test_special_tokens_are_text_only_on_request(tokenizers):
    for tokenizer in tokenizers:
        ids = tokenizer.encode("a<|eot|>b<tool>")
        assert ids[0] == 1 and 3 in ids and 4 in ids
        assert tokenizer.decode(ids).strip().replace(" ", "") == "ab<tool>"
        assert "<|eot|>" in tokenizer.decode(ids, special=True)
        assert tokenizer.end_tokens == {2}


def test_padding_beyond_the_vocabulary_is_no_text(tokenizers):
    assert all(tokenizer.decode([10**6]) == "" for tokenizer in tokenizers)


@given(
    symbols=st.lists(st.sampled_from("abc"), max_size=14),
    ranks=st.permutations(["ab", "bc", "abc", "cc", "ca", "aa", "aaaa"]),
)
def test_merge_is_the_lowest_rank_first(symbols, ranks):
    """Against the definition: scan all pairs, merge the best, start again."""
    expected = list(symbols)
    while found := [(ranks.index(a + b), i) for i, (a, b) in enumerate(pairwise(expected)) if a + b in ranks]:
        _, at = min(found)
        expected[at : at + 2] = [expected[at] + expected[at + 1]]
    assert merge(list(symbols), lambda a, b: ranks.index(a + b) if a + b in ranks else None) == expected


# --- errors


def edited(path, **keys):
    """The file's metadata with other ``tokenizer.ggml.*`` keys (None: without), as far as a tokenizer looks."""
    file = kit.open(path)
    metadata = dict(file.metadata.items()) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}

    kept = {key: value for key, value in metadata.items() if value is not None}
    return SimpleNamespace(path=file.path, metadata=kept)


@pytest.mark.parametrize(
    "keys,message",
    [
        ({"model": "bert"}, r"tokenizer 'bert' is not supported; the kit knows gpt2, llama"),
        ({"model": None}, "the file has no tokenizer; give the prompt as token ids"),
        ({"tokens": None}, "the file has no tokenizer; give the prompt as token ids"),
        ({"pre": "novel"}, r"pre-tokenizer 'novel' is not known; the kit knows default.*llama-bpe"),
        ({"merges": None}, "without 'tokenizer.ggml.merges'"),
        ({"bos_token_id": None}, "asks for a bos token but does not name one"),
    ],
)
def test_an_unusable_tokenizer(folder, keys, message):
    with pytest.raises(TokenizerError, match=message):
        tokenizer_of(edited(byte_pair_file(folder / "e.gguf", "llama-bpe"), **keys))


def test_a_byte_without_a_token(folder):
    path = sentence_piece_file(folder / "e.gguf")
    tokens = [text.replace("<0xF0>", "?0xF0>") for text in kit.open(path).metadata["tokenizer.ggml.tokens"]]
    tokenizer = tokenizer_of(edited(path, tokens=np.array(tokens, object)))
    with pytest.raises(TokenizerError, match="no token for the byte 0xF0"):
        tokenizer.encode("𝔘")


def test_a_lone_surrogate_is_no_text(tokenizers):
    with pytest.raises(TokenizerError, match="not Unicode at position 1"):
        tokenizers[0].encode("a\ud800")


def test_the_vocabulary_of_a_large_model_is_ready_within_a_second():
    """llama 3's 128,256 tokens: opening and the first words."""
    from kit.synthetic.geometry import GEOMETRIES

    metadata = GEOMETRIES["llama-3.1-8b"].vocabulary.metadata()
    arrays = {key: np.array(value, object) for key, value in metadata.items() if isinstance(value, list)}
    tokenizer = tokenizer_of(SimpleNamespace(path="llama-3.gguf", metadata=metadata | arrays))
    assert tokenizer.decode(tokenizer.encode("The capital of France is")) == "The capital of France is"
    assert gguf.TokenType.CONTROL == tokenizer.kinds[128000]
