"""The base of all tokenizers: tokens by id and ids by token, special tokens, begin and end tokens, decoding."""

import codecs
import heapq
import re
import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kit.errors import KitWarning, TokenizerError
from kit.gguf.keys import Keys
from kit.model.special_tokens import BYTE, CONTROL, PREFIX, UNKNOWN, UNUSED, USER_DEFINED, special_tokens

_BYTE_TEXT = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
_BLANKS = b" \t\n\v\f\r"
SPACE = "▁"  # SentencePiece's character for a space


class Words(Sequence):
    """The tokens of a vocabulary: ``words[id]`` is a text, ``words.find(text)`` its id.

    All texts are one bytes object; the ids are in a hash table with open addressing and linear probing, at most half full.
    This takes a seventh of the memory of a list and a dict.
    """

    def __init__(self, texts: Iterable[bytes]):
        texts = list(texts)
        count = len(texts)
        size = 1 << (2 * count - 1).bit_length()
        self._blob, self._mask = b"".join(texts), size - 1
        self._stops = memoryview(np.cumsum(np.fromiter(map(len, texts), np.int64, count)))
        slots, left = np.fromiter(map(hash, texts), np.int64, count) & self._mask, np.arange(count, dtype=np.int32)
        table = np.full(size, -1, np.int32)
        while len(left):
            free = table[slots] < 0
            table[slots[free]] = left[free]  # numpy stores the last of several, so find returns the last of equal texts
            lost = table[slots] != left
            left, slots = left[lost], (slots[lost] + 1) & self._mask
        self._table = memoryview(table)

    def __len__(self) -> int:
        return len(self._stops)

    def __getitem__(self, index: int) -> bytes:
        return self._blob[self._stops[index - 1] if index else 0 : self._stops[index]]

    def __contains__(self, text) -> bool:
        return self.find(text) is not None

    def find(self, text: bytes) -> int | None:
        """The id of ``text``, the last of several; None when it is not in the vocabulary."""
        slot = hash(text) & self._mask
        while (entry := self._table[slot]) >= 0:
            if self[entry] == text:
                return entry
            slot = slot + 1 & self._mask
        return None

    def __reduce__(self):
        return Words, (list(self),)


class Tokenizer:
    """``bos``, ``eos``: ids that begin and end a text, None if the file adds none; ``begin``: bos, added or not.

    ``end_tokens``: ids that end an answer.
    """

    _prefix = b""  # added before a text by encoding, removed by decoding

    def __init__(self, file, adds: tuple[str, ...] = (), defaults: dict[str, int] | None = None):
        self.path, self._keys = file.path, Keys(file, PREFIX, TokenizerError)
        self._words = Words(encoded(self._keys.texts("tokens")))
        self._model = Keys(file, "general.", TokenizerError).text("name", "").lower()
        kinds, self.end_tokens, ids = special_tokens(self._keys, self._words.find, len(self), defaults or {})
        for token in np.flatnonzero(kinds == BYTE).tolist():
            if not _BYTE_TEXT.fullmatch(self._words[token]):
                fault = f"has {self._words[token]!r:.60} at {token:,}"
                self._keys.fail("tokens", "texts such as <0x0A> for tokens of the kind byte", fault)
        self.begin = ids["bos"]
        self.bos = self._wanted("bos", ids, "bos" in adds)
        self.eos = self._wanted("eos", ids, "eos" in adds)
        self.unknown = ids["unknown"]
        special = np.flatnonzero(np.isin(kinds, (UNKNOWN, CONTROL, USER_DEFINED))).tolist()
        self._special = sorted(special, key=lambda token: -len(self._words[token]))
        self._swallow = self._greedy()
        self.kinds: list[int] = kinds.tolist()

    def __len__(self) -> int:
        return len(self._words)

    def text(self, token: int) -> str:
        """The text of one token as in the file; invalid UTF-8 becomes the lone surrogates of ``surrogateescape``."""
        return self._words[token].decode("utf-8", "surrogateescape")

    def token(self, text: str) -> int | None:
        """The id of the token with this ``text``, or None."""
        return self._words.find(text.encode("utf-8", "surrogateescape"))

    def _wanted(self, name, ids, default):
        if not self._keys.flag(f"add_{name}_token", default):
            return None
        if ids[name] is None:
            raise TokenizerError(f"{self.path}: the file asks for a {name} token but does not name one")
        return ids[name]

    def _greedy(self) -> dict[int, tuple[bool, bool]]:
        """Special token -> whether it absorbs the blanks before and after it; known only from the model's name."""
        before, after = [], []
        name = self._model
        if self._keys.text("pre", "").startswith(("jina-v2-de", "jina-v2-es", "jina-v2-code")):
            before = [b"<mask>"]
        elif "phi-3" in name or "phi3" in name:
            kept = (b"<unk>", b"<s>", b"<|endoftext|>")
            after = [self._words[token] for token in self._special if self._words[token] not in kept]
        elif "modern-bert" in name:
            before = [b"[MASK]"]
        ids = {text: self._words.find(text) for text in (*before, *after)}
        return {token: (text in before, text in after) for text, token in ids.items() if token is not None}

    def encode(self, text: str | bytes, special: bool = True, ends: bool = True) -> list[int]:
        """Token ids of ``text``; with ``ends``, the begin and end tokens that the file asks for are added.

        ``special``: the text of a control token such as ``<s>`` becomes that token. Bytes need not be valid UTF-8; in a str,
        invalid bytes are the lone surrogates of ``surrogateescape``.
        """
        try:
            data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise TokenizerError(f"the text is not Unicode at position {error.start}: {error.reason}") from None
        ids, after_special = [], True
        for part in self._parts(data, special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_part(part, after_special)
            after_special = isinstance(part, int)
        if None in ids:
            raise TokenizerError(
                f"{self.path}: the text has characters that need an unknown token, but the file has none: change the text"
            )
        return self.framed(ids) if ends else ids

    def framed(self, ids: list[int]) -> list[int]:
        """``ids`` between the begin and end tokens that the file asks for; KitWarning where they have a begin token already."""
        if self.bos is not None and ids[:1] == [self.bos]:
            problem = f"the text begins with {self.text(self.bos)!r}, and the tokenizer adds another: leave it out of the text"
            warnings.warn(f"{self.path}: {problem}", KitWarning, stacklevel=3)
        begin, end = ([] if token is None else [token] for token in (self.bos, self.eos))
        return [*begin, *ids, *end]

    def _parts(self, data: bytes, special: bool) -> list[bytes | int]:
        """``data`` cut at special tokens, longer tokens first."""
        parts: list[bytes | int] = [data] if data else []
        for token in self._special:
            text = self._words[token]
            if text in data and text and (special or self.kinds[token] == USER_DEFINED):
                parts = [piece for part in parts for piece in self._cut(part, text, token)]
        return parts

    def _cut(self, part, text, token):
        if isinstance(part, int):
            return [part]
        before, after = self._swallow.get(token, (False, False))
        pieces, rest = [], part.split(text)
        for number, between in enumerate(rest):
            between = between.lstrip(_BLANKS) if after and number else between
            between = between.rstrip(_BLANKS) if before and number < len(rest) - 1 else between
            pieces += ([token] if number else []) + ([between] if between else [])
        return pieces

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text of ``ids``, with control tokens only if ``special``; invalid UTF-8 becomes U+FFFD."""
        text = b"".join(self.piece(token, special) for token in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._prefix else text

    def stream(self) -> Callable[[int], str]:
        """A function to call with one token after another; it returns the text that is complete, whole characters only."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: decoder.decode(self.piece(token))

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; b"" for a control token, and for an id beyond the vocabulary (embeddings are padded)."""
        if token >= len(self._words):
            return b""
        kind, text = self.kinds[token], self._words[token]
        if kind in (UNKNOWN, CONTROL):
            return text if special else b""
        if kind == USER_DEFINED:
            return text
        return b"" if kind == UNUSED else self._piece(kind, text)

    def _piece(self, kind, text):
        """The bytes of a normal token or a byte token in SentencePiece's form."""
        return bytes([int(text[3:5], 16)]) if kind == BYTE else text.replace(SPACE.encode(), b" ")

    def _byte(self, byte: int) -> int:
        """The token of a single byte; TokenizerError when there is none."""
        for text in (b"<0x%02X>" % byte, bytes([byte])):
            if (token := self._words.find(text)) is not None:
                return token
        raise TokenizerError(f"{self.path}: the vocabulary has no token for the byte 0x{byte:02X}")


def encoded(strings) -> list[bytes]:
    """The strings of a metadata array, or of any sequence, as UTF-8."""
    return strings.encoded() if hasattr(strings, "encoded") else [text.encode() for text in strings]


def valid(data: bytes) -> str:
    """``data`` as text; every byte of invalid UTF-8 becomes U+FFFD."""
    return re.sub("[\udc80-\udcff]", "\ufffd", data.decode("utf-8", "surrogateescape"))


def characters(data: bytes) -> list[bytes]:
    """``data`` cut into characters by the lengths in their first bytes, valid or not, as llama.cpp does."""
    pieces, start = [], 0
    while start < len(data):
        length = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)[data[start] >> 4]
        pieces.append(data[start : start + length])
        start += length
    return pieces


def merge(symbols: list, priority: Callable) -> list:
    """Merge neighboring symbols while any pair has a priority: the lowest first, the leftmost of equals.

    ``priority(left, right)``: None for a pair that does not merge. Byte-pair encoding (Sennrich et al. 2016) in O(n log n)
    steps: a doubly linked list and a heap of candidates; a stale candidate has another length than its symbols.
    """
    left_of, right_of = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
    heap = []

    def offer(left, right):
        if left >= 0 and right >= 0:
            rank = priority(symbols[left], symbols[right])
            if rank is not None:
                heapq.heappush(heap, (rank, left, right, len(symbols[left]) + len(symbols[right])))

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
