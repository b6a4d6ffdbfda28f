"""A minimal valid tokenizer of any size: bytes, common English words learned by BPE, special tokens, unused tokens."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from kit.model.pretokenizers import byte_symbols
from kit.model.special_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED
from kit.model.vocabulary import SPACE

_SPACE = {"gpt2": "Ġ", "llama": SPACE}  # the character for the space before a word
WORDS = (
    "the of and to in is that it was for on are as with they at be this have from or one had by word but not what all "
    "were we when your can said there use an each which she do how their if will up other about out many then them these "
    "so some her would make like him into time has look two more write go see number no way could people my than first "
    "water been call who its now find long down day did get come made may part over new sound take only little work know "
    "place year live me back give most very after thing our just name good man think say great where help through much "
    "before line right too mean old any same tell boy follow came want show also around form three small set put end does "
    "another well large must big even such because turn here why ask went men read need land different home us move try "
    "kind hand picture again change off play spell air away animal house point page letter mother answer found study still "
    "learn should America world capital France Paris language model memory token weight cache"
).split()


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a model. ``kind``: ``tokenizer.ggml.model`` ("gpt2": byte-level BPE, "llama": SentencePiece).

    ``pre``: name of the pre-tokenizer. ``size``: number of tokens. ``special``: control tokens by id.
    """

    kind: str
    pre: str
    size: int
    special: dict[int, str]
    bos: int
    eos: int
    add_bos: bool = False

    def metadata(self) -> dict[str, Any]:
        """The ``tokenizer.ggml.*`` keys."""
        pieces, merges = _pieces(self.kind)
        free = [token for token in range(self.size) if token not in self.special]
        tokens = dict(self.special) | dict(zip(free, pieces, strict=False))
        kinds = np.full(self.size, UNUSED, np.int32)
        scores = np.full(self.size, -1e6, np.float32)
        for rank, token in enumerate(free[: len(pieces)]):
            is_byte = self.kind == "llama" and pieces[rank].startswith("<0x")
            kinds[token], scores[token] = (BYTE, 0) if is_byte else (NORMAL, -rank)
        for token, text in self.special.items():
            kinds[token], scores[token] = (UNKNOWN if text == "<unk>" else CONTROL), 0
        known = set(pieces[: len(free)])
        keys = {
            "model": self.kind,
            "pre": self.pre,
            "tokens": [tokens.get(token, f"<unused_{token}>") for token in range(self.size)],
            "token_type": kinds,
            "bos_token_id": self.bos,
            "eos_token_id": self.eos,
            "add_bos_token": self.add_bos,
        }
        if self.kind == "llama":
            keys |= {"scores": scores, "unknown_token_id": 0}
        else:
            keys["merges"] = [f"{left} {right}" for left, right in merges if left + right in known]
        return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


@cache
def _pieces(kind: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens in order of rank, and the merges that make them; for SentencePiece, single letters are tokens too."""
    merges = _learn_merges(_SPACE[kind])
    merged = list(dict.fromkeys(left + right for left, right in merges))
    if kind == "gpt2":
        return byte_symbols() + merged, merges
    letters = [chr(code) for code in range(0x21, 0x7F)] + [_SPACE[kind]]
    return [f"<0x{byte:02X}>" for byte in range(256)] + letters + merged, merges


def _learn_merges(space: str) -> list[tuple[str, str]]:
    """Byte-pair encoding on WORDS, weighted by Zipf's law (Sennrich et al., 2016), until every word is one token."""
    words = {" ".join(space + word): len(WORDS) / rank for rank, word in enumerate(WORDS, start=1)}
    words |= {" ".join(word.capitalize()): 1 / rank for rank, word in enumerate(WORDS, start=1)}  # first word of a text
    merges = []
    while True:
        pairs = Counter()
        for word, weight in words.items():
            for pair in pairwise(word.split()):
                pairs[pair] += weight
        if not pairs:
            return merges
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        bigram = re.compile(rf"(?<!\S){re.escape(' '.join(best))}(?!\S)")
        words = {bigram.sub("".join(best), word): weight for word, weight in words.items()}
