"""llama.cpp as the independent answer: tokens and logits of a file; a test that asks skips where it is not installed."""

import pytest

from kit.errors import ModelError
from kit.lab import llama_cpp


def tokenize(path, texts, add_special=True, parse_special=True):
    """Token ids that llama.cpp gives for each of ``texts`` (bytes)."""
    with opened(path, vocabulary_only=True) as llama:
        return [llama.tokenize(text, add_special, parse_special) for text in texts]


def detokenize(path, texts):
    """The text (bytes) of each list of ids, without control tokens."""
    with opened(path, vocabulary_only=True) as llama:
        return [llama.detokenize(ids) for ids in texts]


def logits(path, tokens, vocabulary=None):
    """Logits (tokens, vocabulary) after each token, with a float32 KV cache and without flash attention."""
    with opened(path, context=max(512, len(tokens)), kv="float32", exact=True) as llama:
        assert vocabulary in (None, llama.vocabulary)
        return llama.logits(tokens)


def opened(path, **options):
    try:
        llama_cpp.library()
    except ModelError as error:
        pytest.skip(str(error))
    return llama_cpp.Llama(path, **options)
