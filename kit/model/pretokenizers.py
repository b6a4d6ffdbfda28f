"""Pre-tokenizers: the patterns that cut text into words before merging, by the name in ``tokenizer.ggml.pre``.

The patterns are those of the models' tokenizers, or llama.cpp's approximations, so that both give the same tokens. They
are in Oniguruma's syntax. Each takes time that is linear in the text: what would look ahead from every character is a function.
"""

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

_ENGLISH = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LETTER, _OR_MARK = r"\p{L}", r"[\p{L}\p{M}]"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_BLANKS = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_BLANKS}"
_HALVES = "|".join(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s"  # of blanks
_HAN = r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_HANGUL = r"[[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]&&[^\s]]+"  # and the code points between it and CJK
_SCRIPTS = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}"
    r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
_LATIN = (  # letters of all scripts with two cases: Latin, Greek, Cyrillic, Georgian, ...
    "["
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷ"
    "ᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ"
    "-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
    "]+"
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = rf"{_ENGLISH}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
QWEN2 = rf"{_ENGLISH}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_LINES}"
QWEN35 = rf"{_ENGLISH}|{_MARKED}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
LINE = r"[^\n]+|\n+"


def _cased(letter: str, suffix: str = "") -> str:
    """Words of capitals and then small letters; letters outside ASCII count as both (llama.cpp's \\p{Lu} and \\p{Ll})."""
    capital, small = rf"[{letter}&&[^a-z]]", rf"[{letter}&&[^A-Z]]"
    words = f"{capital}*{small}+", f"{capital}+{small}*"
    return "|".join(rf"[^\r\n\p{{L}}\p{{N}}]?{word}{suffix}" for word in words)


TEKKEN = rf"{_cased(_LETTER)}|\p{{N}}|{_SYMBOLS_SLASH}|{_LINES}"
GPT4O = rf"{_cased(_LETTER, _ENGLISH + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_LINES}"
GRANITE = rf"{_cased(_OR_MARK, _ENGLISH + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_LINES}"
HORIZON = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}\x{{200C}}\x{{200D}}]+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
YOUTU = rf"{_MARKED}{_ENGLISH}?|\p{{N}}|{_SYMBOLS_SLASH}|{_LINES}"
AYA = rf"{_MARKED}{_ENGLISH}?|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_LINES}"
KIMI = rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_ENGLISH}?|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
BAILING = rf"{_ENGLISH}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|{_BLANKS}"
EXAONE = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_BLANKS}"
)
_WORD_AFTER_SYMBOL = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
DEEPSEEK3 = rf"{_WORD_AFTER_SYMBOL}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
SPARK = rf"{_WORD_AFTER_SYMBOL}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_BLANKS}"

DIGITS, _ASCII_DIGITS = r"\p{N}+", re.compile("[0-9]+")


def threes(text: str, others: list[tuple[int, int]]) -> list[str]:
    r"""Digits in threes from the right, the first with the text before them: \P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})), and
    what is left. ``others``: where (first, end) the text has something else than digits."""
    ends, cuts = [0, *(end for _, end in others)], []
    for first, end in zip(ends, [*(start for start, _ in others), len(text)], strict=True):  # of digits
        cuts += [*range(first + (end - first - 1) % 3 + 1, end, 3), end] if end > first else []
    return _pieces(text, cuts)


def ascii_threes(text: str) -> list[str]:
    """Cut before each three digits from the right of those from 0 to 9."""
    return _pieces(
        text, [at for run in _ASCII_DIGITS.finditer(text) for at in range(run.start() + len(run[0]) % 3, run.end(), 3)]
    )


def _pieces(text, cuts):
    cuts = dict.fromkeys([0, *cuts, len(text)])
    return [text[start:stop] for start, stop in itertools.pairwise(cuts)]


class PreTokenizer(NamedTuple):
    """``patterns`` are applied in order, each to the pieces of the one before; text between matches is a piece too. Among them
    may be ``threes``, which gets what the pattern of digits leaves, and another function of a piece.

    ``whole_words``: a word that is a token is not merged. ``add_bos``: the default if the file does not say. ``raw``:
    symbols are characters, with a space as "▁" and bytes as ``<0xE2>``, instead of bytes as printable characters.
    ``whole_lines``: newlines that are a token are not merged, and a text always begins with bos. ``spaced``: every line
    begins with a space.
    """

    patterns: tuple[str | Callable, ...]
    whole_words: bool = False
    add_bos: bool = False
    raw: bool = False
    whole_lines: bool = False
    spaced: bool = False


_KINDS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 modern-bert "
    "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe": PreTokenizer((GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", GPT2)),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer((LLAMA3,), True, True),
    "dbrx smaug-bpe glm4 glm5 chatglm-bpe": PreTokenizer((LLAMA3,)),
    "jais-2": PreTokenizer((rf"{_ENGLISH}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|(?<![^\S\r\n])\s*[\r\n]+|{_HALVES}",)),
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2 f2llmv2": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "laguna": PreTokenizer((LINE, QWEN2)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", QWEN2.replace(r"\p{N}|", r"\p{N}+|")), True),
    "ufakzeka": PreTokenizer((rf"{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_LINES}",)),
    "seed-coder": PreTokenizer((rf"{_ENGLISH}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((BAILING,)),
    "exaone-moe": PreTokenizer((EXAONE,)),
    "k2-horizon": PreTokenizer((HORIZON,)),
    "tekken": PreTokenizer((TEKKEN,), True, True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((GRANITE,), True),
    "youtu": PreTokenizer(("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA, YOUTU), True),
    "tiny_aya cohere2moe": PreTokenizer((threes, AYA)),
    "kimi-k2": PreTokenizer((KIMI,)),
    "superbpe": PreTokenizer((DIGITS, ascii_threes)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "bloom poro-chat gpt3-finnish": PreTokenizer((BLOOM,)),
    "viking": PreTokenizer((BLOOM, r"\p{N}")),
    "chameleon": PreTokenizer(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2), add_bos=True
    ),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", rf"\s?{_LATIN}", r"\s?[!-/:-~！-／：-～‘-‟\x{3001}-。]+", r"(?<!\s)\s+\z", _HANGUL, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HANGUL, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer((r"\p{N}{1,3}", _KANA, DEEPSEEK3)),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _KANA, SPARK, r"\p{N}")),
    "afmoe": PreTokenizer((threes, _SCRIPTS, DEEPSEEK3)),
    "gemma4 granite-embed-multi-311m": PreTokenizer((LINE,), add_bos=True, raw=True, whole_lines=True),
    "sarvam-moe": PreTokenizer((LINE,), raw=True),
    "mmbert": PreTokenizer((LINE, "▁[^▁]*"), raw=True, spaced=True),
}
PRE_TOKENIZERS = {name: kind for names, kind in _KINDS.items() for name in names.split()}


def byte_symbols() -> list[str]:
    """GPT-2's printable character for each byte: itself if printable, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
