"""Words: the tokens of a vocabulary by id, and ids by token, in a seventh of the memory of a list and a dict."""

from collections.abc import Iterable, Sequence

import numpy as np


class Words(Sequence):
    """``words[id]`` is a text, ``words.find(text)`` its id. All texts are one bytes object; the ids are in a hash table with
    open addressing and linear probing, at most half full."""

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
        while (found := self._table[slot]) >= 0:
            if self[found] == text:
                return found
            slot = slot + 1 & self._mask
        return None

    def __reduce__(self):
        return Words, (list(self),)
