"""llama.cpp as a peer, through ctypes on the library inside the wheel ``xllamacpp``: tokens and logits of a file."""

import ctypes
from pathlib import Path

import numpy as np
import pytest


class _Parameters(ctypes.Structure):
    """A parameter struct passed by value; longer than any, and only a few fields at known offsets are touched."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)

    def set(self, offset, value, kind=ctypes.c_int32):
        kind.from_buffer(self, offset).value = value


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


# (offset, default) of fields around those that are set: with another layout the tests skip and do not crash.
_MODEL_LAYOUT = ((16, -1), (20, 1), (24, -1), (28, 1), (72, 0x00010000))
_CONTEXT_LAYOUT = ((0, 512), (4, 2048), (8, 512), (12, 1), (28, 4), (32, 4), (52, -1), (104, 1), (108, 1))
_VOCAB_ONLY, _N_CTX, _N_BATCH, _N_UBATCH, _FLASH, _TYPE_K, _TYPE_V = 72, 0, 4, 8, 52, 104, 108


def library():
    """The shared library, or a skip that says why."""
    package = pytest.importorskip("xllamacpp", reason="llama.cpp (the wheel xllamacpp) is not installed")
    lib = ctypes.CDLL(next(str(path) for path in Path(package.__file__).parent.glob("*.so")))
    for name, layout in (
        ("llama_model_default_params", _MODEL_LAYOUT),
        ("llama_context_default_params", _CONTEXT_LAYOUT),
    ):
        function = getattr(lib, name)
        function.restype = _Parameters
        defaults = function()
        if any(ctypes.c_int32.from_buffer(defaults, offset).value != value for offset, value in layout):
            pytest.skip(f"this llama.cpp lays out {name} in a way that the test does not know")
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab", "llama_get_logits"):
        getattr(lib, name).restype = ctypes.c_void_p
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    lib.quiet = quiet(lambda level, text, data: None)
    lib.llama_log_set(lib.quiet, None)
    lib.llama_backend_init()
    return lib


def _load(lib, path, vocab_only):
    parameters = lib.llama_model_default_params()
    parameters.set(_VOCAB_ONLY, vocab_only, ctypes.c_bool)
    model = lib.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"llama.cpp cannot load {path}"
    return ctypes.c_void_p(model)


def tokenize(path, texts, add_special=True, parse_special=True):
    """Token ids that llama.cpp gives for each of ``texts`` (bytes)."""
    lib = library()
    model = _load(lib, path, True)
    vocab = ctypes.c_void_p(lib.llama_model_get_vocab(model))
    results = []
    for text in texts:
        room = len(text) + 16
        ids = (ctypes.c_int32 * room)()
        count = lib.llama_tokenize(
            vocab, text, len(text), ids, room, ctypes.c_bool(add_special), ctypes.c_bool(parse_special)
        )
        assert count >= 0
        results.append(list(ids[:count]))
    lib.llama_model_free(model)
    return results


def logits(path, tokens, vocabulary):
    """Logits (tokens, vocabulary) after each token, with a float32 KV cache and without flash attention."""
    lib = library()
    model = _load(lib, path, False)
    parameters = lib.llama_context_default_params()
    for offset, value in ((_N_CTX, 512), (_N_BATCH, 512), (_N_UBATCH, 512), (_FLASH, 0), (_TYPE_K, 0), (_TYPE_V, 0)):
        parameters.set(offset, value)
    context = ctypes.c_void_p(lib.llama_init_from_model(model, parameters))
    assert context
    n = len(tokens)
    ints, sequence = ctypes.c_int32 * n, (ctypes.c_int32 * 1)(0)
    batch = _Batch(
        n, ints(*tokens), None, ints(*range(n)), ints(*[1] * n),
        (ctypes.POINTER(ctypes.c_int32) * n)(*[sequence] * n), (ctypes.c_int8 * n)(*[1] * n),
    )  # fmt: skip
    assert lib.llama_decode(context, batch) == 0
    address = lib.llama_get_logits(context)
    values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (n, vocabulary)).copy()
    lib.llama_free(context)
    lib.llama_model_free(model)
    return values
