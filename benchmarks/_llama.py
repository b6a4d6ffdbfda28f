"""llama.cpp as a peer: the library inside the wheel ``xllamacpp`` through ctypes, at its own defaults."""

import ctypes
import importlib.util
from pathlib import Path

from kit.lab import machine


class _Parameters(ctypes.Structure):
    """A parameter struct that is passed by value and never looked into; longer than any."""

    _fields_ = (("bytes", ctypes.c_uint8 * 1024),)


class _Batch(ctypes.Structure):
    _fields_ = (("tokens", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6))


def available() -> bool:
    """Whether the wheel is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


class Llama:
    """A file, loaded as llama.cpp does by default: mapped, repacked where it has a layout of its own; KV cache in f16.

    As many threads as the process has cores; a context of 512.
    """

    def __init__(self, path):
        self._lib = lib = _library()
        self._model = ctypes.c_void_p(
            lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        )
        self._context = ctypes.c_void_p(lib.llama_init_from_model(self._model, lib.llama_context_default_params()))
        lib.llama_set_n_threads(self._context, machine.usable_cores(), machine.usable_cores())
        self._memory = ctypes.c_void_p(lib.llama_get_memory(self._context))

    def step(self, tokens, held: int = 0) -> None:
        """Logits after the last of ``tokens``, which follow the first ``held`` positions; what came later is forgotten."""
        self._lib.llama_memory_seq_rm(self._memory, 0, held, -1)
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        self._lib.llama_get_logits(self._context)  # waits for the result

    def close(self) -> None:
        """Free the model."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


def _library():
    package = Path(importlib.util.find_spec("xllamacpp").origin).parent
    lib = ctypes.CDLL(str(next(package.glob("*.so"))))
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(lib, name).restype = _Parameters
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory", "llama_get_logits"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_batch_get_one.restype = _Batch
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    return lib


_silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)
