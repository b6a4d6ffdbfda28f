"""The cut of text into words: linear in the text for every pre-tokenizer, and where a pattern was replaced, the same words."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.model import pretokenizers
from kit.model.bytepair import _splitter

KINDS = {kind.patterns: names.split()[0] for names, kind in pretokenizers._KINDS.items()}
UNITS = ["a", "A", "7", "٣", "\u0301", "漢", "!", " ", "\t", "\n", " \n", "a1", "A b", "123,"]
OF_OLD = {  # kind -> its patterns as their authors wrote them, whose time is quadratic
    "tiny_aya": (r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", pretokenizers.AYA),
    "afmoe": (r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", pretokenizers._SCRIPTS, pretokenizers.DEEPSEEK3),
    "superbpe": (r"\p{N}+", r"[\s\S]+?(?=(?:[0-9]{3})+(?![0-9])|\z)"),
    "jais-2": tuple(each.replace(r"(?<![^\S\r\n])", "") for each in pretokenizers.PRE_TOKENIZERS["jais-2"].patterns),
    "deepseek-llm": tuple(each.replace(r"(?<!\s)", "") for each in pretokenizers.PRE_TOKENIZERS["deepseek-llm"].patterns),
}
TEXTS = st.lists(
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


@pytest.mark.parametrize("patterns", KINDS, ids=KINDS.get)
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
@given(pieces=TEXTS)
@example(pieces=["1"] * 7)
@example(pieces=["a", "1234567", " ", "\n", "   "])
def test_the_words_are_those_of_the_authors_patterns(name, pieces):
    text = "".join(pieces)
    new, old = _splitter(pretokenizers.PRE_TOKENIZERS[name].patterns), _splitter(OF_OLD[name])
    assert new(text) == old(text)
