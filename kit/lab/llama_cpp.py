"""llama.cpp for comparison: logits of a GGUF file, by ctypes from the shared library in the wheel ``xllamacpp``.

The wheel is compiled for AVX2 without VNNI. The variable LLAMA_CPP names the CPU backend of another build to use instead,
of one with -DGGML_CPU_ALL_VARIANTS=ON and -DGGML_BACKEND_DL=ON: .../bin/libggml-cpu-icelake.so.
"""

import ctypes
import importlib.util
import os
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import numpy as np

from kit.errors import ModelError
from kit.lab.machine import usable_cores

MODES = {"mmap": 1, "no-mmap": 0, "mlock": 3}  # llama_load_mode; mlock maps and locks
_KV_TYPES = {"float32": 0, "float16": 1, "q8_0": 8}  # ggml_type

# (offset, default) of int32 fields beside those that are set: a wheel with another layout is an error, not a crash.
_LAYOUTS = {
    "llama_model_default_params": ((16, -1), (20, 1), (24, -1), (28, 1), (72, 0x00010000)),
    "llama_context_default_params": ((0, 512), (4, 2048), (8, 512), (12, 1), (28, 4), (32, 4), (52, -1), (104, 1), (108, 1)),
}  # fmt: skip
_LOAD_MODE, _VOCAB_ONLY = 24, 72
_N_CTX, _N_BATCH, _N_UBATCH, _FLASH, _TYPE_K, _TYPE_V = 0, 4, 8, 52, 104, 108
_POINTERS = "model_load_from_file init_from_model model_get_vocab get_logits get_memory"


class _Parameters(ctypes.Structure):
    """A parameter struct passed by value: longer than llama.cpp's own, with fields set at known offsets."""

    _fields_ = (("bytes", ctypes.c_uint8 * 1024),)

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


def available() -> bool:
    """Whether the wheel is installed, or a build is named."""
    return bool(os.environ.get("LLAMA_CPP")) or importlib.util.find_spec("xllamacpp") is not None


@cache
def library() -> ctypes.CDLL:
    """The shared library. ModelError when it is not installed, or the layout of its parameter structs is unknown."""
    if not available():
        raise ModelError("llama.cpp is not installed: pip install xllamacpp")
    backend = os.environ.get("LLAMA_CPP")
    if backend:
        lib = _built(Path(backend))
    else:
        lib = ctypes.CDLL(str(next(Path(importlib.util.find_spec("xllamacpp").origin).parent.glob("*.so"))))
    for name, layout in _LAYOUTS.items():
        function = getattr(lib, name)
        function.restype = _Parameters
        defaults = function()
        if any(ctypes.c_int32.from_buffer(defaults, offset).value != value for offset, value in layout):
            raise ModelError(f"{name} has an unknown layout: install the version of xllamacpp that pyproject.toml names")
    for name in _POINTERS.split():
        getattr(lib, f"llama_{name}").restype = ctypes.c_void_p
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    return lib


_silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


def _built(backend: Path) -> ctypes.CDLL:
    """libllama.so beside a CPU backend, with that backend loaded."""
    try:
        lib = ctypes.CDLL(str(backend.with_name("libllama.so")))
    except OSError as error:
        raise ModelError(f"LLAMA_CPP={backend}: {error}") from None
    lib.llama_log_set(_silent, None)
    lib.ggml_backend_load.restype = ctypes.c_void_p
    if not lib.ggml_backend_load(str(backend).encode()):
        raise ModelError(f"LLAMA_CPP={backend}: not a CPU backend of ggml that this CPU can run")
    return lib


class Llama(AbstractContextManager):
    """A GGUF file loaded by llama.cpp, one thread a core; usable in a ``with``.

    ``mode``: one of MODES. ``kv``: type of the KV cache. ``exact``: float32 sums in attention (no flash attention).
    ``vocabulary_only``: load no weights. Raises ModelError when llama.cpp cannot load the file or make the context.
    """

    def __init__(self, path, mode="mmap", context=512, kv="float16", exact=False, vocabulary_only=False):
        self._lib = lib = library()
        parameters = lib.llama_model_default_params()
        parameters.set(_VOCAB_ONLY, vocabulary_only, ctypes.c_bool)
        parameters.set(_LOAD_MODE, MODES[mode])
        model = lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise ModelError(f"{path}: llama.cpp cannot load it")
        self._model, self._context = ctypes.c_void_p(model), None
        self._vocab = ctypes.c_void_p(lib.llama_model_get_vocab(self._model))
        self.vocabulary = lib.llama_vocab_n_tokens(self._vocab)
        if not vocabulary_only:
            parameters = lib.llama_context_default_params()
            for offset, value in ((_N_CTX, context), (_N_BATCH, context), (_N_UBATCH, 512)):
                parameters.set(offset, value)
            for offset in (_TYPE_K, _TYPE_V):
                parameters.set(offset, _KV_TYPES[kv])
            if exact:
                parameters.set(_FLASH, 0)
            self._context = ctypes.c_void_p(lib.llama_init_from_model(self._model, parameters))
            if not self._context:
                self.close()
                raise ModelError(f"{path}: llama.cpp cannot make a context of {context} positions: give fewer")
            lib.llama_set_n_threads(self._context, usable_cores(), usable_cores())
            self._memory = ctypes.c_void_p(lib.llama_get_memory(self._context))

    def logits(self, tokens, held: int = 0, wanted=None) -> np.ndarray:
        """Logits (wanted, vocabulary) float32 of the last ``wanted`` of ``tokens`` (None: of all).

        The first ``held`` positions of the KV cache are kept, ``tokens`` follow them.
        """
        self._lib.llama_memory_seq_rm(self._memory, 0, held, -1)
        n = len(tokens)
        wanted = n if wanted is None else wanted
        ints, sequence = ctypes.c_int32 * n, (ctypes.c_int32 * 1)(0)
        batch = _Batch(
            n, ints(*tokens), None, ints(*range(held, held + n)), ints(*[1] * n),
            (ctypes.POINTER(ctypes.c_int32) * n)(*[sequence] * n), (ctypes.c_int8 * n)(*[i >= n - wanted for i in range(n)]),
        )  # fmt: skip
        if self._lib.llama_decode(self._context, batch):
            raise ModelError("llama.cpp: llama_decode failed: is the context large enough?")
        address = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))  # waits
        return np.ctypeslib.as_array(address, (wanted, self.vocabulary)).copy()

    def close(self) -> None:
        """Free the model."""
        if self._context:
            self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def __exit__(self, *_):
        self.close()
