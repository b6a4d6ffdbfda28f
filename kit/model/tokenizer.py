"""Tokenizer: text to token ids and back, from a GGUF file's own metadata; the same ids as llama.cpp."""

import codecs
import heapq
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from kit.errors import TokenizerError
from kit.model.pretokenizers import PRE_TOKENIZERS, PreTokenizer, byte_symbols

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
# Files mark one token as the end; chat models end a turn by others, known by their text alone.
END_TEXTS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|endoftext|> <|eom_id|> <|end_of_text|> <end_of_turn> </s> <EOT>".split()
)
_SPACE = "▁"  # SentencePiece's visible space


def merge(symbols: list, priority: Callable) -> list:
    """Merge neighbors while any pair has a priority: lowest first, leftmost of equals.

    ``priority(left, right)`` is None for a pair that does not merge. Byte-pair encoding (Sennrich et al. 2016) in
    O(n log n): a doubly linked list and a heap of candidates, stale ones known by their length.
    """
    left_of, right_of = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
    heap = []

    def offer(left, right):
        if left >= 0 and right >= 0:
            found = priority(symbols[left], symbols[right])
            if found is not None:
                heapq.heappush(heap, (found, left, right, len(symbols[left]) + len(symbols[right])))

    for left, right in enumerate(right_of):
        offer(left, right)
    while heap:
        _, left, right, length = heapq.heappop(heap)
        a, b = symbols[left], symbols[right]
        if not a or not b or len(a) + len(b) != length:
            continue
        symbols[left], symbols[right] = a + b, a[:0]
        right_of[left] = right_of[right]
        if right_of[right] >= 0:
            left_of[right_of[right]] = left
        offer(left_of[left], left)
        offer(left, right_of[left])
    return [symbol for symbol in symbols if symbol]


class Tokenizer:
    """Special tokens, begin and end, and decoding: what the two kinds share. Only metadata is read.

    ``tokens``: the texts by id; ``end_tokens``: ids after which a model has no more to say; ``bos``: the id that begins
    a text, None when the file wants none.
    """

    def __init__(self, file, adds_bos: bool, defaults: dict[str, int]):
        self.path = file.path
        self._metadata = metadata = file.metadata
        self.tokens: list[str] = metadata["tokenizer.ggml.tokens"].tolist()
        kinds = metadata.get("tokenizer.ggml.token_type")
        self.kinds: list[int] = kinds.tolist() if kinds is not None else [NORMAL] * len(self.tokens)
        for token, text in enumerate(self.tokens):
            if text in END_TEXTS:
                self.kinds[token] = CONTROL  # not every converter marks them
        ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id", defaults.get(name)) for name in _NAMED}
        self.bos = self._wanted("bos", ids, adds_bos)
        self.eos = self._wanted("eos", ids, False)
        self.unknown = ids["unknown"]
        ends = {ids["eos"], ids["eot"], ids["eom"]} - {None}
        self.end_tokens = ends | {token for token, text in enumerate(self.tokens) if text in END_TEXTS}
        special = [t for t, kind in enumerate(self.kinds) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
        self._special = sorted(special, key=lambda token: -len(self.tokens[token].encode()))

    def _wanted(self, name, ids, default):
        if not self._metadata.get(f"tokenizer.ggml.add_{name}_token", default):
            return None
        if ids[name] is None:
            raise TokenizerError(f"{self.path}: the file asks for a {name} token but does not name one")
        return ids[name]

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        """Token ids of ``text``, begin and end tokens added where the file wants them.

        ``special``: the text of a control token such as ``<s>`` becomes that token. Bytes need not be valid UTF-8;
        a str brings invalid bytes as the lone surrogates of ``surrogateescape``.
        """
        try:
            data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise TokenizerError(f"the text is not Unicode at position {error.start}: {error.reason}") from None
        ids = [] if self.bos is None else [self.bos]
        after_special = True
        for part in self._parts(data, special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_part(part, after_special)
            after_special = isinstance(part, int)
        return ids if self.eos is None else [*ids, self.eos]

    def _parts(self, data: bytes, special: bool) -> list[bytes | int]:
        """``data`` cut at special tokens, the longest first wherever they stand."""
        parts: list[bytes | int] = [data] if data else []
        for token in self._special:
            text = self.tokens[token].encode()
            if text in data and text and (special or self.kinds[token] == USER_DEFINED):
                parts = [piece for part in parts for piece in _cut(part, text, token)]
        return parts

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text of ``ids``; control tokens appear only with ``special``. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.piece(token, special) for token in ids).decode("utf-8", "replace")

    def stream(self) -> Callable[[int], str]:
        """A function from one token after another to the text that it completes: whole characters only."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: decoder.decode(self.piece(token))

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; none for an id beyond the vocabulary (embeddings are padded) or a control token."""
        if token >= len(self.tokens):
            return b""
        kind, text = self.kinds[token], self.tokens[token]
        if kind in (UNKNOWN, CONTROL):
            return text.encode() if special else b""
        if kind == USER_DEFINED:
            return text.encode()
        return b"" if kind == UNUSED else self._piece(kind, text)


_NAMED = ("bos", "eos", "eot", "eom", "unknown")


def _cut(part, text, token):
    if isinstance(part, int):
        return [part]
    pieces = [piece for between in part.split(text) for piece in (token, between)][1:]
    return [piece for piece in pieces if piece != b""]


class SentencePiece(Tokenizer):
    """``llama``: pieces with scores, spaces made visible, unknown characters as bytes (``<0xE2>``)."""

    def __init__(self, file):
        super().__init__(file, True, {"bos": 1, "eos": 2, "unknown": 0})
        scores = file.metadata.get("tokenizer.ggml.scores")
        self._scores = scores.tolist() if scores is not None else [0.0] * len(self.tokens)
        self._ids = {text.encode(): token for token, text in enumerate(self.tokens)}
        self._prefix = b" " if file.metadata.get("tokenizer.ggml.add_space_prefix", True) else b""

    def _encode_part(self, data, after_special):
        data = (self._prefix + data if after_special else data).replace(b" ", _SPACE.encode())
        ids = []
        for symbol in merge(_characters(data), self._priority):
            token = self._ids.get(symbol)
            ids += [token] if token is not None else [self._byte(byte) for byte in symbol]
        return ids

    def _priority(self, left, right):
        token = self._ids.get(left + right)
        return None if token is None else -self._scores[token]

    def _byte(self, byte):
        for text in (b"<0x%02X>" % byte, bytes([byte])):
            if text in self._ids:
                return self._ids[text]
        raise TokenizerError(f"{self.path}: the vocabulary has no token for the byte 0x{byte:02X}")

    def _piece(self, kind, text):
        return bytes([int(text[3:5], 16)]) if kind == BYTE else text.replace(_SPACE, " ").encode()

    def decode(self, ids, special=False):
        """As Tokenizer.decode, without the space that encoding put in front."""
        text = super().decode(ids, special)
        return text.removeprefix(" ") if self._prefix else text


def _characters(data: bytes) -> list[bytes]:
    """Cut by the length that each first byte announces, valid or not, as llama.cpp does."""
    pieces, start = [], 0
    while start < len(data):
        length = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)[data[start] >> 4]
        pieces.append(data[start : start + length])
        start += length
    return pieces


class BytePair(Tokenizer):
    """``gpt2``: words cut by the file's pre-tokenizer, their bytes as visible characters, merged by rank."""

    def __init__(self, file):
        name = file.metadata.get("tokenizer.ggml.pre", "default")
        kind: PreTokenizer | None = PRE_TOKENIZERS.get(name)
        if kind is None:
            known = ", ".join(PRE_TOKENIZERS)
            raise TokenizerError(f"{file.path}: pre-tokenizer {name!r} is not known; the kit knows {known}")
        super().__init__(file, kind.add_bos, {})
        merges = file.metadata.get("tokenizer.ggml.merges")
        if merges is None:
            raise TokenizerError(f"{file.path}: a gpt2 tokenizer without 'tokenizer.ggml.merges'")
        self._ids = {text: token for token, text in enumerate(self.tokens)}
        self._whole_words = kind.whole_words
        self._words = _splitter(kind.patterns)
        self._ranks = {}
        for rank, line in enumerate(merges.tolist()):
            left, _, right = line[1:].partition(" ")
            self._ranks.setdefault((line[:1] + left, right), rank)
        self._encode_word = lru_cache(1 << 16)(self._encode_word)

    def _encode_part(self, data, after_special):
        text = re.sub("[\udc80-\udcff]", "\ufffd", data.decode("utf-8", "surrogateescape"))
        return [token for word in self._words(text) for token in self._encode_word(word)]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        visible = word.encode().decode("latin-1").translate(_VISIBLE)
        if self._whole_words and visible in self._ids:
            return (self._ids[visible],)
        symbols = merge(list(visible), lambda left, right: self._ranks.get((left, right)))
        return tuple(token for symbol in symbols for token in self._symbol(symbol))

    def _symbol(self, symbol):
        if symbol in self._ids:
            return [self._ids[symbol]]
        missing = [character for character in symbol if character not in self._ids]
        if missing:
            byte = _BYTES[missing[0]]
            raise TokenizerError(f"{self.path}: the vocabulary has no token for the byte 0x{byte:02X}")
        return [self._ids[character] for character in symbol]

    def _piece(self, kind, text):
        return bytes(_BYTES[c] for c in text) if _BYTES.keys() >= set(text) else text.encode()


_VISIBLE = dict(enumerate(byte_symbols()))  # GPT-2's: no byte looks like a space or a control character
_BYTES = {character: byte for byte, character in _VISIBLE.items()}


def _splitter(patterns: Sequence[str]) -> Callable[[str], list[str]]:
    """A function that cuts text into words. Python's ``re`` has no \\p{L}; the tokenizers library brings Oniguruma."""
    from tokenizers import Regex, pre_tokenizers

    cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])
    return lambda text: [word for word, _ in cut.pre_tokenize_str(text)]


_KINDS = {"gpt2": BytePair, "llama": SentencePiece}


def tokenizer_of(file) -> Tokenizer:
    """The tokenizer that ``file`` (a GGUFFile) brings; TokenizerError when it brings none, or one of another kind."""
    name = file.metadata.get("tokenizer.ggml.model", "none")
    if "tokenizer.ggml.tokens" not in file.metadata or name in ("none", "no_vocab"):
        raise TokenizerError(f"{file.path}: the file has no tokenizer; give the prompt as token ids")
    if name not in _KINDS:
        raise TokenizerError(f"{file.path}: tokenizer {name!r} is not supported; the kit knows {', '.join(_KINDS)}")
    return _KINDS[name](file)
