"""llama.cpp as the independent answer: tokens and logits of a file; a test that asks skips where it is not installed."""

import ctypes

import numpy as np
import pytest

from kit.lab.engines import llama_cpp


def tokenize(path, texts, add_special=True, parse_special=True):
    """Token ids that llama.cpp gives for each of ``texts`` (bytes)."""
    with opened(path, vocabulary_only=True) as llama:
        flags = ctypes.c_bool(add_special), ctypes.c_bool(parse_special)
        room = 4 * max(map(len, texts), default=0) + 16
        ids = (ctypes.c_int32 * room)()
        return [ids[: llama._lib.llama_tokenize(llama._vocab, text, len(text), ids, room, *flags)] for text in texts]


def end_tokens(path):
    """The ids that end an answer."""
    with opened(path, vocabulary_only=True) as llama:
        llama._lib.llama_vocab_is_eog.restype = ctypes.c_bool
        return {token for token in range(llama.vocabulary) if llama._lib.llama_vocab_is_eog(llama._vocab, token)}


def detokenize(path, texts):
    """The text (bytes) of each list of ids, without control tokens."""
    with opened(path, vocabulary_only=True) as llama:
        return [b"".join(_piece(llama, token) for token in ids) for ids in texts]


def _piece(llama, token):
    room = ctypes.create_string_buffer(4096)
    length = llama._lib.llama_token_to_piece(llama._vocab, token, room, len(room), 0, ctypes.c_bool(False))
    return room.raw[:length]


def logits(path, tokens, vocabulary=None):
    """Logits (tokens, vocabulary) after each token, with a float32 KV cache and without flash attention."""
    with opened(path, context=max(512, len(tokens)), kv="float32", exact=True) as llama:
        assert vocabulary in (None, llama.vocabulary)
        return llama.logits(tokens)


class _Traits(ctypes.Structure):
    """The start of ggml_type_traits."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("elements", ctypes.c_int64), ("interleaved", ctypes.c_int64), ("nbytes", ctypes.c_size_t),
        ("quantized", ctypes.c_bool), ("to_float", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_int64)),
    ]  # fmt: skip


def _traits(id):
    needed()
    library = llama_cpp.library()
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    return library.ggml_get_type_traits(id).contents


def format_of(id):
    """(name, weights, bytes of a block) of the ggml type with this id."""
    traits = _traits(id)
    return traits.name.decode(), traits.elements, traits.nbytes


def dequantized(blocks, id):
    """float32 numbers of (count, bytes of a block) uint8 by ggml's own dequantizer."""
    traits = _traits(id)
    out = np.empty((len(blocks), traits.elements), np.float32)
    traits.to_float(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def needed():
    """Skip the test where llama.cpp is not installed; one that is there and cannot be loaded is an error."""
    if not llama_cpp.available():
        pytest.skip("llama.cpp is not installed: pip install xllamacpp")


def opened(path, **options):
    needed()
    return llama_cpp.Llama(path, **options)
