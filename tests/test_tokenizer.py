"""Tokenizers: the same ids as llama.cpp on tricky text; text survives the way there and back; its cut into words takes time
linear in the text, and where a pattern was replaced, gives the same words."""

import pickle
import time
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import gguf
import llama_cpp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from vocabularies import TEXT, TEXTS, byte_pair_file, sentence_piece_file, unigram_file

import kit
from kit.errors import TokenizerError
from kit.model import pretokenizers
from kit.model.bytepair import _splitter
from kit.model.pretokenizers import PRE_TOKENIZERS
from kit.model.tokenizer import tokenizer_of
from kit.model.vocabulary import Words, merge

pytestmark = pytest.mark.filterwarnings("ignore:.*begins with .* and the tokenizer adds another")

one_name_each = {kind: name for name, kind in reversed(PRE_TOKENIZERS.items())}.values()
KINDS = {
    "llama": sentence_piece_file,
    "llama, no prefix": partial(sentence_piece_file, add_space_prefix=False),
    "llama, ended": partial(sentence_piece_file, add_bos_token=False, add_eos_token=True),
    "gemma4": partial(byte_pair_file, pre="default", raw=True, model="gemma4", add_bos_token=False),
    "t5": unigram_file,
    "t5, spaces merged": partial(unigram_file, remove_extra_whitespaces=True),
    "t5, as it is": partial(unigram_file, charsmap=False, add_space_prefix=False, add_eos_token=False),
}


def open_tokenizer(path):
    return tokenizer_of(kit.open(path))


@given(st.lists(st.binary(max_size=2)), st.lists(st.binary(max_size=2)))
def test_words_are_found_as_by_a_dict(texts, others):
    words = pickle.loads(pickle.dumps(Words(texts)))
    assert list(words) == texts
    expected = dict(zip(texts, range(len(texts)), strict=True))
    assert [words.find(text) for text in texts + others] == [expected.get(text) for text in texts + others]


@pytest.mark.parametrize("pre", one_name_each)
def test_byte_pairs_equal_llama_cpp(folder, pre):
    path = byte_pair_file(folder / f"{pre}.gguf", pre, raw=PRE_TOKENIZERS[pre].raw)
    ours = open_tokenizer(path)
    assert [ours.encode(text) for text in TEXTS] == llama_cpp.tokenize(path, TEXTS)
    ours.bos = None
    assert [ours.encode(text, special=False) for text in TEXTS] == llama_cpp.tokenize(path, TEXTS, False, False)


def test_every_pre_tokenizer_name_means_the_same_to_llama_cpp(folder):
    text = TEXT.encode()
    for pre, kind in PRE_TOKENIZERS.items():
        path = byte_pair_file(folder / "name.gguf", pre, raw=kind.raw)
        assert [open_tokenizer(path).encode(text)] == llama_cpp.tokenize(path, [text]), pre


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_equals_llama_cpp(folder, kind):
    path = KINDS[kind](folder / "kind.gguf")
    ours, theirs = open_tokenizer(path), llama_cpp.tokenize(path, TEXTS)
    assert [ours.encode(text) for text in TEXTS] == theirs
    pieces = [text.decode("utf-8", "replace") for text in llama_cpp.detokenize(path, theirs)]
    for ids, joined in zip(theirs, pieces, strict=True):
        assert ours.decode(ids) in (joined, joined.removeprefix(" "))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.text(st.sampled_from("aZé漢😀'sT \u00a0\u3000\n\r\t1٣½.,<>/\u0301한\u200d_") | st.characters(codec="utf-8")),
        max_size=8,
    )
)
def test_any_text_equals_llama_cpp(drawn_files, texts):
    for path, ours in drawn_files:
        data = [text.encode() for text in texts]
        assert [ours.encode(text) for text in data] == llama_cpp.tokenize(path, data), ours


@pytest.fixture(scope="module")
def drawn_files(folder):
    """(path, tokenizer) of every kind that takes any character, and of two pre-tokenizers."""
    made = {kind: KINDS[kind](folder / f"drawn-{kind}.gguf") for kind in ("llama", "t5", "gemma4")}
    made |= {pre: byte_pair_file(folder / f"drawn-{pre}.gguf", pre) for pre in ("llama-bpe", "deepseek-v3")}
    return [(path, open_tokenizer(path)) for path in made.values()]


def test_phi_3_takes_the_blanks_after_a_special_token(folder):
    special = ("<|endoftext|>", "<tool>")
    path = sentence_piece_file(folder / "phi.gguf", special, name="Phi-3 mini")
    texts = [b"<tool>  \n x<|endoftext|> y<s> z </s> w", b" <tool>  <tool> "]
    ours = [open_tokenizer(path).encode(text) for text in texts]
    assert ours == llama_cpp.tokenize(path, texts)
    assert ours[0] != open_tokenizer(sentence_piece_file(folder / "other.gguf", special)).encode(texts[0])


@pytest.mark.slow
def test_a_trained_vocabulary(trained):
    """SmolLM2's 48,900 merges and Gemma's 262,144 pieces, against llama.cpp."""
    ours, theirs = open_tokenizer(trained), llama_cpp.tokenize(trained, TEXTS)
    assert [ours.encode(text) for text in TEXTS] == theirs
    assert {"<end_of_turn>", "<|im_end|>"} & {ours.text(token) for token in ours.end_tokens}


@pytest.fixture(scope="module")
def tokenizers(folder):
    paths = byte_pair_file(folder / "b.gguf", "llama-bpe"), sentence_piece_file(folder / "s.gguf")
    return [open_tokenizer(path) for path in paths]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_text_survives(tokenizers, text):
    """Any text without SentencePiece's character for a space."""
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
    symbols=st.lists(st.sampled_from("abc"), max_size=14), ranks=st.permutations(["ab", "bc", "abc", "cc", "ca", "aa", "aaaa"])
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
    """A stand-in for the file with other ``tokenizer.ggml.*`` keys (None removes a key)."""
    file = kit.open(path)
    metadata = dict(file.metadata.items()) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}

    kept = {key: value for key, value in metadata.items() if value is not None}
    return SimpleNamespace(path=file.path, metadata=kept)


@pytest.mark.parametrize("keys,message", [
    ({"model": "plamo2"}, r"tokenizer 'plamo2' is not supported; kit supports llama, gpt2"),
    ({"model": None}, "the file has no tokenizer; give the prompt as token ids"),
    ({"tokens": None}, "the file has no tokenizer; give the prompt as token ids"),
    ({"pre": "novel"}, r"pre-tokenizer 'novel' is not supported; kit supports default.*llama-bpe"),
    ({"merges": None}, "'tokenizer.ggml.merges' is missing: it should be a list of texts"),
    ({"bos_token_id": None}, "asks for a bos token but does not name one"),
])  # fmt: skip
def test_an_unusable_tokenizer(folder, keys, message):
    with pytest.raises(TokenizerError, match=message):
        tokenizer_of(edited(byte_pair_file(folder / "e.gguf", "llama-bpe"), **keys))


def test_scores_for_fewer_tokens(folder):
    for make in (sentence_piece_file, unigram_file):
        with pytest.raises(
            TokenizerError, match=r"'tokenizer.ggml.scores' should be a list of \d+ numbers .*, it has 1: convert"
        ):
            tokenizer_of(edited(make(folder / "e.gguf"), scores=np.zeros(1)))


def test_a_byte_without_a_token(folder):
    path = sentence_piece_file(folder / "e.gguf")
    tokens = [text.replace("<0xF0>", "<0xF1>") for text in kit.open(path).metadata["tokenizer.ggml.tokens"]]
    tokenizer = tokenizer_of(edited(path, tokens=np.array(tokens, object)))
    with pytest.raises(TokenizerError, match="no token for the byte 0xF0"):
        tokenizer.encode("𝔘")


def test_a_lone_surrogate_is_no_text(tokenizers):
    with pytest.raises(TokenizerError, match="not Unicode at position 1"):
        tokenizers[0].encode("a\ud800")


def test_the_vocabulary_of_a_large_model_is_ready_within_a_second():
    """llama 3's 128,256 tokens: opening and the first words."""
    from kit.lab.synthetic.geometry import GEOMETRIES

    metadata = GEOMETRIES["llama-3.1-8b"].vocabulary.metadata()
    arrays = {key: np.array(value, object) for key, value in metadata.items() if isinstance(value, list)}
    tokenizer = tokenizer_of(SimpleNamespace(path="llama-3.gguf", metadata=metadata | arrays))
    assert tokenizer.decode(tokenizer.encode("The capital of France is")) == "The capital of France is"
    assert gguf.TokenType.CONTROL == tokenizer.kinds[128000]


# --- the cut of text into words

SPLITTERS = {kind.patterns: names.split()[0] for names, kind in pretokenizers._KINDS.items()}
UNITS = ["a", "A", "7", "٣", "\u0301", "漢", "!", " ", "\t", "\n", " \n", "a1", "A b", "123,"]
OF_OLD = {  # kind -> its patterns as their authors wrote them, whose time is quadratic
    "tiny_aya": (r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", pretokenizers.AYA),
    "afmoe": (r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", pretokenizers._SCRIPTS, pretokenizers.DEEPSEEK3),
    "superbpe": (r"\p{N}+", r"[\s\S]+?(?=(?:[0-9]{3})+(?![0-9])|\z)"),
    "jais-2": tuple(each.replace(r"(?<![^\S\r\n])", "") for each in pretokenizers.PRE_TOKENIZERS["jais-2"].patterns),
    "deepseek-llm": tuple(each.replace(r"(?<!\s)", "") for each in pretokenizers.PRE_TOKENIZERS["deepseek-llm"].patterns),
}
PIECES = st.lists(
    st.sampled_from([*"0 1 7 ٣ Ⅷ ½ a é B ! , 漢 ́".split(), " ", "\n", "\r\n", "\t", "123456", "   ", "1234"]), max_size=24
)


def seconds(cut, text):
    """Of this thread alone: other processes do not count."""
    taken = []
    for _ in range(3):
        start = time.thread_time()
        assert "".join(cut(text)) == text
        taken.append(time.thread_time() - start)
        if taken[0] < 0.1:
            break
    return min(taken)


@pytest.mark.parametrize(
    "patterns",
    [pytest.param(each, marks=[pytest.mark.slow] * (number % 4 > 0)) for number, each in enumerate(SPLITTERS)],
    ids=SPLITTERS.get,
)
def test_time_grows_with_the_text(patterns):
    """Sixteen times the text of one kind takes at most forty times as long; a quadratic one 256 times."""
    cut = _splitter(patterns)
    for unit in UNITS:
        for end in ("", "x", " 1"):
            short, long = ((unit * (size // len(unit))) + end for size in (2**10, 2**14))
            if (took := seconds(cut, long)) > 0.1:
                assert took < 40 * seconds(cut, short), (unit, end)
    blanks = " " * 2**19 + "x"  # of which some kinds take a few hundred at a time
    assert seconds(cut, blanks) < 1


@pytest.mark.parametrize("name", OF_OLD)
@settings(max_examples=200, deadline=None)
@given(pieces=PIECES)
@example(pieces=["1"] * 7)
@example(pieces=["a", "1234567", " ", "\n", "   "])
def test_the_words_are_those_of_the_authors_patterns(name, pieces):
    text = "".join(pieces)
    new, old = _splitter(pretokenizers.PRE_TOKENIZERS[name].patterns), _splitter(OF_OLD[name])
    assert new(text) == old(text)
