"""The tokenizer of a GGUF file: SentencePiece (``llama``), unigram (``t5``), byte pairs.

All give the same ids as llama.cpp; text that needs a byte for which the vocabulary has no token is an error.
"""

import re
from array import array

import numpy as np

from kit.errors import NoTokenizer, TokenizerError
from kit.gguf.keys import Keys
from kit.model.bytepair import BytePair
from kit.model.special_tokens import NORMAL, PREFIX, UNUSED, USER_DEFINED
from kit.model.vocabulary import SPACE, Tokenizer, characters, merge, valid

_VISIBLE_SPACE = SPACE.encode()


def _scores(keys, count) -> array:
    scores = keys.numbers("scores", None, count, what="the score of each token")
    return array("f", bytes(4 * count) if scores is None else scores.astype(np.float32).tobytes())


class SentencePiece(Tokenizer):
    """Pieces are merged by score; a space is written as "▁", unknown characters as bytes (``<0xE2>``)."""

    def __init__(self, file):
        super().__init__(file, ("bos",), {"bos": 1, "eos": 2, "unknown": 0})
        self._scores = _scores(self._keys, len(self))
        self._prefix = b" " if self._keys.flag("add_space_prefix", True) else b""

    def _encode_part(self, data, after_special):
        data = (self._prefix + data if after_special else data).replace(b" ", _VISIBLE_SPACE)
        ids = []
        for symbol in merge(characters(data), self._priority):
            token = self._words.find(symbol)
            ids += [token] if token is not None else [self._byte(byte) for byte in symbol]
        return ids

    def _priority(self, left, right):
        token = self._words.find(left + right)
        return None if token is None else -self._scores[token]


class Unigram(Tokenizer):
    """The most probable segmentation by the pieces' log probabilities (Kudo 2018), after the file's normalization."""

    def __init__(self, file):
        super().__init__(file, ("eos",), {"eos": 1, "unknown": 2})
        self._prefix = self._keys.flag("add_space_prefix", False)
        self._merged = self._keys.flag("remove_extra_whitespaces", False)
        scores = _scores(self._keys, len(self))
        normal = [score for score, kind in zip(scores, self.kinds, strict=True) if kind == NORMAL]
        self._missing = float(np.float32(min(normal, default=0.0)) - np.float32(10))
        self._pieces = {
            text: (token, 0.0 if self.kinds[token] == USER_DEFINED else scores[token])
            for token, text in enumerate(self._words)
            if self.kinds[token] in (NORMAL, USER_DEFINED, UNUSED)
        }
        self._longest = max(map(len, self._pieces), default=0)
        own = [text for text, kind in zip(self._words, self.kinds, strict=True) if kind == USER_DEFINED]
        self._own = {text[:length] for text in own for length in range(1, len(text) + 1)}
        self._charsmap = _Charsmap(self._keys)

    def _encode_part(self, data, after_special):
        data = self._normalized(data)
        best: list[tuple[float, int, int]] = [(0.0, 0, self.unknown)] + [(-np.inf, 0, self.unknown)] * len(data)
        start = 0
        for character in characters(data):
            sum_, stop, single = best[start][0], start + len(character), False
            for end in range(start + 1, min(start + self._longest, len(data)) + 1):
                token, score = self._pieces.get(data[start:end], (None, 0.0))
                if token is not None:
                    single |= end == stop
                    if sum_ + score > best[end][0]:
                        best[end] = sum_ + score, start, token
            if not single and sum_ + self._missing > best[stop][0]:
                best[stop] = sum_ + self._missing, start, self.unknown
            start = stop
        ids, at = [], len(data)
        while at:
            _, at, token = best[at]
            if not (ids and token == ids[-1] == self.unknown):
                ids.append(token)
        return ids[::-1]

    def _normalized(self, data: bytes) -> bytes:
        """Characters replaced by the file's map; spaces written as "▁", merged and added in front if the file says so."""
        out, word, begun = [], False, False
        for text in self._replaced(data):
            for byte in re.findall(b" |[^ ]+", text):
                if byte != b" ":
                    if not word and (self._merged or (self._prefix and not begun)):
                        out.append(_VISIBLE_SPACE)
                        begun = True
                    word = True
                    out.append(byte)
                else:
                    word = False
                    if not self._merged:
                        out.append(_VISIBLE_SPACE)
        return b"".join(out)

    def _replaced(self, data):
        start = 0
        while start < len(data):
            length = 0
            while start + length < len(data) and data[start : start + length + 1] in self._own:
                length += 1  # user-defined tokens, and their prefixes, are not replaced
            text = data[start : start + length]
            if not length:
                length, text = self._charsmap.longest(data, start)
            if not length:
                character = characters(data[start : start + 4])[0]
                text = valid(character).encode()
                length = len(character) if text == character else 1
                text = text if text == character else "\ufffd".encode()
            yield text
            start += length


class _Charsmap:
    """SentencePiece's precompiled normalization: a double-array trie of prefixes (Kanda 2018) and their replacements."""

    def __init__(self, keys):
        self._keys, blob = keys, keys.numbers("precompiled_charsmap", (), least=-128, most=255, whole=True)
        data = np.asarray(blob).astype(np.uint8).tobytes()
        size = int.from_bytes(data[:4], "little")
        if data and (size % 4 or not 0 < size <= len(data) - 4 or data[-1]):
            self._fail(f"has a table of {size:,} bytes in {len(data):,}")
        self._units = np.frombuffer(data[4 : 4 + size], "<u4").tolist()
        self._replacements = data[4 + size :]

    def longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """(length of the longest prefix of data[start:] in the map, its replacement); (0, b"") for none."""
        length, replacement = 0, b""
        if not self._units:
            return length, replacement
        node = _base(self._units[0])
        for place in range(start, len(data)):
            node ^= data[place]
            if not data[place] or node >= len(self._units) or self._units[node] & 0x800000FF != data[place]:
                break
            unit = self._units[node]
            node ^= _base(unit)
            if unit >> 8 & 1:
                at = self._units[node] & 0x7FFFFFFF if node < len(self._units) else len(self._replacements)
                if at >= len(self._replacements):
                    self._fail(f"leads to text {at:,} of {len(self._replacements):,}")
                length, replacement = place - start + 1, self._replacements[at : self._replacements.index(b"\0", at)]
        return length, replacement

    def _fail(self, actual):
        self._keys.fail("precompiled_charsmap", "a table and the texts that it leads to, the last ended by a zero", actual)


def _base(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


_KINDS = {"llama": SentencePiece, "gpt2": BytePair, "gemma4": BytePair, "t5": Unigram}  # of models that the kit or kit.hf runs


def tokenizer_of(file) -> Tokenizer:
    """The tokenizer of ``file`` (a GGUFFile); TokenizerError when it has none, or one of an unknown kind."""
    keys = Keys(file, PREFIX, TokenizerError)
    name = keys.text("model", "none")
    if "tokens" not in keys or name in ("none", "no_vocab"):
        raise NoTokenizer(f"{file.path}: the file has no tokenizer; give the prompt as token ids")
    if name not in _KINDS:
        raise NoTokenizer(f"{file.path}: tokenizer {name!r} is not supported; kit supports {', '.join(_KINDS)}")
    return _KINDS[name](file)
