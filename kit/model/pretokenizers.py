"""How byte-level BPE vocabularies cut text into words before merging: patterns by the name in ``tokenizer.ggml.pre``.

The patterns are part of the models' tokenizers; where llama.cpp approximates one, its approximation is followed, so
that both give the same tokens. Oniguruma syntax.
"""

from typing import NamedTuple

_ENGLISH = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_BLANKS}"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = rf"{_ENGLISH}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
QWEN2 = rf"{_ENGLISH}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_LINES}"
QWEN35 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
# A word is capitals and then small letters; a letter outside ASCII is either (llama.cpp's reading of \p{Lu}, \p{Ll}).
_CAPITAL, _SMALL = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{word}" for word in (f"{_CAPITAL}*{_SMALL}+", f"{_CAPITAL}+{_SMALL}*")]
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SYMBOLS_SLASH}|{_LINES}"
GPT4O = rf"{_CASED[0]}{_ENGLISH}?|{_CASED[1]}{_ENGLISH}?|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_LINES}"


class PreTokenizer(NamedTuple):
    """``patterns`` cut one after another, each within the pieces that the one before left; what matches none is a piece.

    ``whole_words``: a word that is a token is taken as it is, without merging. ``add_bos``: unless the file says.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_KINDS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4": PreTokenizer((GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", GPT2)),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenizer((LLAMA3,), True, True),
    "dbrx smaug-bpe glm4 chatglm-bpe": PreTokenizer((LLAMA3,)),
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "tekken": PreTokenizer((TEKKEN,), True, True),
    "gpt-4o llama4 kanana2": PreTokenizer((GPT4O,)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "seed-coder": PreTokenizer((rf"{_ENGLISH}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",)),
}
PRE_TOKENIZERS = {name: kind for names, kind in _KINDS.items() for name in names.split()}


def byte_symbols() -> list[str]:
    """GPT-2's printable character for each byte: itself where printable, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
