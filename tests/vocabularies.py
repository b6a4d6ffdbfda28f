"""Vocabularies learnt from a text by plain byte-pair encoding, and GGUF files that hold nothing but them."""

from collections import Counter
from itertools import pairwise

import gguf
import numpy as np

from kit.model.pretokenizers import byte_symbols

TEXT = (
    """The quick brown fox jumps over the lazy dog. It's what we'll do, isn't it? I'M sure THEY'VE seen 1234567 of them,
or 3.14159, 2,000,000 and 0x7f.   Spaces,\ttabs,\n\n  new lines; for (int i = 0; i < n; ++i) { total += x[i]; }
def count(words):\n    return len(words)  # the number of words, nothing more
Les élèves français étaient déjà là où naïve cœur. Größe, Straße, Übung. Привет, как дела? 漢字かな交じり文、日本語のテスト。
한국어 문장입니다. मेरा नाम. السلام عليكم. 😀😀 👩‍👩‍👧 \u0301e\u0301 \u00a0\u3000 <html><s>text</s></html> $100 €5 a+b=c ^~|
"""
    * 3
)


def learn(words: Counter, count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges over words (tuples of symbols), the most frequent pair first."""
    words, merges = dict(words), []
    for _ in range(count):
        pairs = Counter()
        for word, number in words.items():
            for pair in pairwise(word):
                pairs[pair] += number
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = {_apply(word, best): number for word, number in words.items()}
    return merges


def _apply(word, pair):
    out = []
    for symbol in word:
        out.append(symbol)
        if tuple(out[-2:]) == pair:
            out[-2:] = ["".join(pair)]
    return tuple(out)


def byte_pair_file(path, pre, special=("<|eot|>", "<tool>")):
    """A gpt2 tokenizer of 256 bytes and 250 merges with the pre-tokenizer ``pre``; <|eot|> is control, <tool> the user's."""
    visible = byte_symbols()
    text = "".join(visible[byte] for byte in TEXT.encode())
    merges = learn(Counter(map(tuple, text.split("Ċ"))), 250)
    pieces = [*visible, *dict.fromkeys("".join(pair) for pair in merges)]
    tokens = ["<unk>", "<s>", "</s>", *special, *pieces]
    keys = {"model": "gpt2", "pre": pre, "merges": [" ".join(pair) for pair in merges]}
    return _write(path, keys, tokens, [2, 3, 3, 3, 4] + [1] * len(pieces))


def sentence_piece_file(path, special=("<|eot|>", "<tool>"), **keys):
    """A llama tokenizer: bytes, the common characters, 250 merges; neighbors share a score, so that ties occur."""
    text = TEXT.replace(" ", "▁")
    common = [character for character, number in Counter(text).most_common() if number > 5 and character != "\n"]
    merges = learn(Counter(map(tuple, text.split("\n"))), 250)
    pieces = list(dict.fromkeys([*common, *("".join(pair) for pair in merges)]))
    tokens = ["<unk>", "<s>", "</s>", *special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(rank // 3) for rank in range(len(pieces))]
    keys = {"model": "llama", "scores": scores, **keys}
    return _write(path, keys, tokens, [2, 3, 3, 3, 4] + [6] * 256 + [1] * len(pieces))


def _write(path, keys, tokens, types):
    writer = gguf.GGUFWriter(path, "llama")
    keys = keys | {"tokens": tokens, "token_type": types, "bos_token_id": 1, "eos_token_id": 2}
    for key, value in keys.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        kinds.get(type(value), writer.add_array)(f"tokenizer.ggml.{key}", value)
    for key in ("context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
