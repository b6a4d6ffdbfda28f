"""The tokenizer of a GGUF file, from its metadata; it gives the same ids as llama.cpp."""

from kit.errors import TokenizerError
from kit.model.bytepair import BytePair
from kit.model.pieces import Rwkv, SentencePiece, Unigram, WordPiece
from kit.model.vocabulary import Tokenizer

_KINDS = {
    "llama": SentencePiece, "gpt2": BytePair, "gemma4": BytePair, "bert": WordPiece, "t5": Unigram, "rwkv": Rwkv,
}  # fmt: skip


def tokenizer_of(file) -> Tokenizer:
    """The tokenizer of ``file`` (a GGUFFile); TokenizerError when it has none, or one of an unknown kind."""
    name = file.metadata.get("tokenizer.ggml.model", "none")
    if "tokenizer.ggml.tokens" not in file.metadata or name in ("none", "no_vocab"):
        raise TokenizerError(f"{file.path}: the file has no tokenizer; give the prompt as token ids")
    if name not in _KINDS:
        raise TokenizerError(f"{file.path}: tokenizer {name!r} is not supported; the kit knows {', '.join(_KINDS)}")
    return _KINDS[name](file)
