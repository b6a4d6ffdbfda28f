"""llama.cpp for comparison: logits of a GGUF file, by ctypes from its shared library.

It comes in the wheel ``xllamacpp``, compiled for AVX2 without VNNI. The variable LLAMA_CPP names the CPU backend of another
build to use instead, of one with -DGGML_CPU_ALL_VARIANTS=ON and -DGGML_BACKEND_DL=ON: .../bin/libggml-cpu-icelake.so.
"""

import ctypes
import importlib.util
import os
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import numpy as np

from kit.errors import ModelError
from kit.system import library_file, usable_cores

_KV_TYPES = {"float32": 0, "float16": 1, "q8_0": 8}  # ggml_type
_INT, _BOOL = ctypes.c_int32, ctypes.c_bool

# For the process of a peer: threads of GNU's OpenMP wait as they do by themselves, not as kit/__init__.py asks.
ENVIRONMENT = {"GOMP_SPINCOUNT": "300000"}

# (offset, default) of int32 fields of the parameter structs, so that another layout is an error and not a crash
LAYOUTS = {
    "llama_model_default_params": ((16, -1), (20, 1), (24, -1), (28, 1), (72, 0x00010000)),
    "llama_context_default_params": ((0, 512), (4, 2048), (8, 512), (12, 1), (28, 4), (32, 4), (52, -1), (104, 1), (108, 1)),
}
FIELDS = {  # those that are set -> (offset, type)
    "load_mode": (24, _INT), "vocab_only": (72, _BOOL), "repack": (74, _BOOL), "n_ctx": (0, _INT), "n_batch": (4, _INT),
    "n_ubatch": (8, _INT), "flash": (52, _INT), "type_k": (104, _INT), "type_v": (108, _INT),
}  # fmt: skip
LOAD_MODES = {"mmap": 1, "none": 0, "mlock": 2, "dio": 4}  # llama_load_mode; none: no map, dio: past the page cache
_POINTERS = "model_load_from_file init_from_model get_logits model_get_vocab get_memory"


class _Parameters(ctypes.Structure):
    """A parameter struct passed by value: longer than llama.cpp's own, with fields set at known offsets."""

    _fields_ = (("bytes", ctypes.c_uint8 * 1024),)

    def set(self, fields, **values):
        for name in fields.keys() & values.keys():
            offset, kind = fields[name]
            kind.from_buffer(self, offset).value = values[name]


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
        ("unused", ctypes.c_int32 * 3),  # of ik_llama.cpp (benchmarks), as long as the pointers are set
    )


def available() -> bool:
    """Whether the wheel is installed, or a build is named."""
    return bool(os.environ.get("LLAMA_CPP")) or importlib.util.find_spec("xllamacpp") is not None


@cache
def library() -> ctypes.CDLL:
    """The shared library. ModelError when it is not installed, or the layout of its parameter structs is unknown."""
    if not available():
        raise ModelError("llama.cpp is not installed: pip install xllamacpp")
    if os.environ.get("LLAMA_CPP"):
        lib = _built(Path(os.environ["LLAMA_CPP"]))
    else:
        lib = ctypes.CDLL(str(next(Path(importlib.util.find_spec("xllamacpp").origin).parent.glob("*.so"))))
    return prepared(lib, LAYOUTS, "llama.cpp", "install the version of xllamacpp that pyproject.toml names")


def prepared(lib: ctypes.CDLL, layouts: dict, name: str, remedy: str) -> ctypes.CDLL:
    """The library, silent and ready to be called; ModelError with the ``remedy`` where its structs are laid out otherwise."""
    for function, layout in layouts.items():
        getattr(lib, function).restype = _Parameters
        defaults = getattr(lib, function)()
        if any(ctypes.c_int32.from_buffer(defaults, offset).value != value for offset, value in layout):
            raise ModelError(f"{name}: {function} has an unknown layout: {remedy}")
    for function in _POINTERS.split():
        getattr(lib, f"llama_{function}").restype = ctypes.c_void_p
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    return lib


_silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


def loaded(variable: str, path: Path) -> ctypes.CDLL:
    """The shared library at ``path``, as a ``variable`` of the environment names it; ModelError where it cannot be loaded."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ModelError(f"{variable}={os.environ[variable]}: {error}") from None


def _built(backend: Path) -> ctypes.CDLL:
    """llama.cpp's library beside a CPU backend, with that backend loaded."""
    lib = loaded("LLAMA_CPP", backend.with_name(library_file("llama")))
    lib.llama_log_set(_silent, None)
    lib.ggml_backend_load.restype = ctypes.c_void_p
    if not lib.ggml_backend_load(str(backend).encode()):
        raise ModelError(f"LLAMA_CPP={backend}: this CPU has no such ggml backend; unset the variable, or name another")
    return lib


class Llama(AbstractContextManager):
    """A GGUF file mapped by llama.cpp, one thread a core; usable in a ``with``.

    ``kv``: type of the KV cache. ``exact``: float32 sums in attention (no flash attention). ``vocabulary_only``: load no
    weights. ``load``: one of LOAD_MODES. ``repack``: as it comes, llama.cpp copies many matrices into memory of its own, in
    another order; False leaves them where they lie. ``more``: other ``fields`` of the context. Raises ModelError when it cannot
    load the file or make the context.
    """

    library, fields = staticmethod(library), FIELDS

    def __init__(self, path, context=512, kv="float16", exact=False, vocabulary_only=False, repack=True, load="mmap", **more):
        lib = self._lib = self.library()
        parameters = lib.llama_model_default_params()
        parameters.set(self.fields, load_mode=LOAD_MODES[load], vocab_only=vocabulary_only, repack=repack)
        model = lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise ModelError(f"{path}: llama.cpp cannot load this file: update xllamacpp, or check the file with kit inspect")
        self._model, self._context = ctypes.c_void_p(model), None
        self._vocab = ctypes.c_void_p(lib.llama_model_get_vocab(self._model))
        self.vocabulary = lib.llama_vocab_n_tokens(self._vocab)
        if not vocabulary_only:
            parameters = lib.llama_context_default_params()
            types = {"type_k": _KV_TYPES[kv], "type_v": _KV_TYPES[kv]} | ({"flash": 0} if exact else {})
            parameters.set(self.fields, **dict(n_ctx=context, n_batch=context, n_ubatch=512) | types | more)
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
        if not self._lib.llama_memory_seq_rm(self._memory, 0, held, -1) & 0xFF:  # a bool
            raise ModelError(f"llama.cpp cannot go back to {held} positions: a recurrent layer has the state of the last one")
        n = len(tokens)
        wanted = n if wanted is None else wanted
        ints, sequence = ctypes.c_int32 * n, (ctypes.c_int32 * 1)(0)
        batch = _Batch(
            n, ints(*tokens), None, ints(*range(held, held + n)), ints(*[1] * n),
            (ctypes.POINTER(ctypes.c_int32) * n)(*[sequence] * n), (ctypes.c_int8 * n)(*[i >= n - wanted for i in range(n)]),
        )  # fmt: skip
        if self._lib.llama_decode(self._context, batch):
            raise ModelError("llama.cpp cannot decode these tokens: give a larger context")
        address = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))  # waits
        return np.ctypeslib.as_array(address, (wanted, self.vocabulary)).copy()

    def close(self) -> None:
        """Free the model."""
        if self._context:
            self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def __exit__(self, *_):
        self.close()
