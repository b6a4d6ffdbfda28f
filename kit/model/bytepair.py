"""Byte-pair vocabularies (``gpt2``, ``gemma4``): the pre-tokenizer cuts text into words; symbols are merged by rank."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import groupby

from kit.errors import NoTokenizer, TokenizerError
from kit.gguf.keys import REQUIRED, Keys
from kit.model.pretokenizers import DIGITS, PRE_TOKENIZERS, byte_symbols, threes
from kit.model.special_tokens import BYTE, PREFIX
from kit.model.vocabulary import SPACE, Tokenizer, Words, characters, encoded, merge, valid

_VISIBLE = dict(enumerate(byte_symbols()))  # byte -> GPT-2's printable character for it
_LINE_START = re.compile(f"(?m:^)(?=[^\n{SPACE}])")
_BYTES = {character: byte for byte, character in _VISIBLE.items()}


class BytePair(Tokenizer):
    """Byte-pair encoding; symbols are bytes, each written as a printable character, or characters if the kind is ``raw``."""

    def __init__(self, file):
        keys = Keys(file, PREFIX, TokenizerError)
        gemma = keys.text("model") == "gemma4"
        name = "gemma4" if gemma else keys.text("pre", "default")
        kind = PRE_TOKENIZERS.get(name)
        if kind is None:
            known = ", ".join(PRE_TOKENIZERS)
            raise NoTokenizer(f"{file.path}: pre-tokenizer {name!r} is not supported; kit supports {known}")
        super().__init__(file, ("bos",) if kind.add_bos else ())
        if kind.whole_lines:
            self.bos = self.begin
        merges = keys.texts("merges", () if name == "kimi-k2" else REQUIRED)
        self._merges = Words(reversed(encoded(merges)))  # reversed: find takes the last of equals
        self._kind = kind
        self._split = _splitter(kind.patterns)
        self._encode_word = lru_cache(1 << 16)(self._encode_word)

    def _encode_part(self, data, after_special):
        text = valid(data.replace(b" ", SPACE.encode()) if self._kind.raw else data)
        text = _LINE_START.sub(SPACE, text) if self._kind.spaced else text
        return [token for word in self._split(text) for token in self._encode_word(word)]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        visible = word if self._kind.raw else word.encode().decode("latin-1").translate(_VISIBLE)
        whole = self._kind.whole_words or (self._kind.whole_lines and not word.strip("\n"))
        if whole and (token := self._words.find(visible.encode())) is not None:
            return (token,)
        symbols = merge([c.encode() for c in visible], self._priority)
        return tuple(token for symbol in symbols for token in self._symbol(symbol))

    def _priority(self, left, right):
        rank = self._merges.find(left + b" " + right)
        return None if rank is None else -rank

    def _symbol(self, symbol):
        if (token := self._words.find(symbol)) is not None:
            return [token]
        if self._kind.raw:
            return [self._byte(byte) for byte in symbol]
        missing = [character for character in characters(symbol) if character not in self._words]
        if missing:
            byte = _BYTES[missing[0].decode()]
            raise TokenizerError(f"{self.path}: the vocabulary has no token for the byte 0x{byte:02X}")
        return [self._words.find(character) for character in characters(symbol)]

    def _piece(self, kind, text):
        if self._kind.raw or kind == BYTE:
            return super()._piece(kind, text)
        shown = text.decode()
        return bytes(_BYTES[c] for c in shown) if _BYTES.keys() >= set(shown) else text


def _splitter(patterns: Sequence[str | Callable]) -> Callable[[str], list[str]]:
    """A function that cuts text into words, by Oniguruma in the tokenizers library: Python's ``re`` has no \\p{L}."""
    from tokenizers import Regex, pre_tokenizers

    def by_patterns(group):
        cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in group])
        return lambda text: [word for word, _ in cut.pre_tokenize_str(text)]

    digits = pre_tokenizers.Split(Regex(DIGITS), "removed")
    in_threes = lambda text: threes(text, [place for _, place in digits.pre_tokenize_str(text)])  # noqa: E731
    steps = []
    for of_text, group in groupby(patterns, lambda pattern: isinstance(pattern, str)):
        some = [*group]
        steps += [by_patterns(some)] if of_text else [in_threes if cut is threes else cut for cut in some]
    return lambda text: reduce(lambda words, cut: [piece for word in words for piece in cut(word)], steps, [text])
