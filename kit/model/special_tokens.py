"""Special tokens: what the ids of a vocabulary are for, by the keys of the file and by llama.cpp's lists of texts.

Source: src/llama-vocab.cpp of llama.cpp, which tells end tokens and those of fill-in-the-middle by their texts where a
converter did not.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kit.errors import TokenizerError
from kit.gguf.keys import Keys

PREFIX = "tokenizer.ggml."
UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)  # tokenizer.ggml.token_type
_ENDS = (  # a file names one end token; the others that end an answer are known only by their texts
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <|endoftext|> <|eom_id|> <|end_of_text|> "
    "<end_of_turn> </s> <EOT> _<EOT> [EOT] [EOS] <end_of_utterance> <eos> <turn|> <|tool_response> "
    "<｜end▁of▁sentence｜> [e~["
).split()
_FILL = {  # fill-in-the-middle: keys of an id -> the texts that mean the same in a file without these keys
    ("fim_pre", "prefix"): "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
    ("fim_suf", "suffix"): "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
    ("fim_mid", "middle"): "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
    ("fim_pad",): "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    ("fim_rep",): "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    ("fim_sep",): "<|file_sep|>",
}
_FILL_ENDS = ("fim_pad", "fim_rep", "fim_sep")  # those that end an answer: what follows them is another file
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # control tokens of gpt-oss that decode to their text
_NO_END = (  # (texts, end text, kind): in a vocabulary with all of these texts, that end text is a token of this kind
    ({"<|return|>", "<|call|>"}, "<|end|>", USER_DEFINED),
    ({"<|calls|>", "<|flush|>"}, "<|end|>", USER_DEFINED),
    ({"<|call|>", "<|flush|>"}, "<|end|>", USER_DEFINED),
    ({"<|tool_response>"}, "</s>", NORMAL),
)
NAMES = {  # transformers' name of a special token -> GGUF's; "seperator" is GGUF's spelling
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator",
    "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip


class SpecialTokens(NamedTuple):
    """``kinds``: (vocabulary,) of NORMAL, CONTROL ... ``ends``: ids that end an answer. ``ids``: by GGUF's names, or None."""

    kinds: np.ndarray
    ends: set[int]
    ids: dict[str, int | None]


def special_tokens(keys: Keys, find: Callable[[bytes], int | None], count: int, defaults: dict[str, int]) -> SpecialTokens:
    """Those of a vocabulary of ``count`` tokens; ``find`` gives the id of a text, ``defaults`` ids by name."""
    kinds = keys.numbers("token_type", None, count, UNDEFINED, BYTE, whole=True, what="the kind of each token")
    kinds = np.full(count, NORMAL) if kinds is None else np.array(kinds)  # a copy: end tokens are marked in it

    def id_of(name):
        default = defaults.get(name, count)
        return keys.whole(f"{name}_token_id", default if default < count else None, 0, count - 1, "a token's id")

    def ids_of(texts):
        return {text: token for text in texts if (token := find(text.encode())) is not None}

    ids = {name: id_of(name) for name in ("bos", "eos", "eot", "eom", "unknown", *_FILL_ENDS)}
    ends = ids_of(_ENDS)
    for names, texts in _FILL.items():
        if all(id_of(name) is None for name in names):
            marks = ids_of(texts.split())
            kinds[list(marks.values())] = CONTROL  # some converters do not mark them
            ends |= marks if names[0] in _FILL_ENDS else {}
    kinds[list(ends.values())] = CONTROL
    stops = {ids[name] for name in ("eos", "eot", "eom", *_FILL_ENDS)} | set(ends.values())
    for texts, text, kind in _NO_END:
        if texts <= ends.keys() and text in ends:
            kinds[ends[text]] = kind
            stops.discard(ends[text])
    kinds[list(ids_of(_SHOWN).values())] = USER_DEFINED
    return SpecialTokens(kinds, stops - {None}, ids)


def named(file) -> dict[str, str]:
    """The texts of the special tokens that the file names, by transformers' names: what a chat template is shown.

    Some files name a padding token that their vocabulary does not have: they name none (as in llama.cpp).
    """
    keys = Keys(file, PREFIX, TokenizerError)
    words = keys.texts("tokens", ())
    ids = {name: keys.whole(f"{key}_token_id", None, -1, 2**32 - 1, "a token's id") for name, key in NAMES.items()}
    return {name: words[token] for name, token in ids.items() if token is not None and 0 <= token < len(words)}
