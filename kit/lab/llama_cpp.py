"""llama.cpp and its fork ik_llama.cpp for comparison: logits of a GGUF file, by ctypes from their shared libraries.

llama.cpp comes in the wheel ``xllamacpp``, compiled for AVX2 without VNNI. The variable LLAMA_CPP names the CPU backend of
another build to use instead, of one with -DGGML_CPU_ALL_VARIANTS=ON and -DGGML_BACKEND_DL=ON: .../bin/libggml-cpu-icelake.so.
IK_LLAMA_CPP names the libllama.so of a build of ik_llama.cpp, which has no wheel.
"""

import ctypes
import importlib.util
import os
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kit.errors import ModelError
from kit.lab.system import library_file, usable_cores

MODES = {"mmap": 1, "no-mmap": 0, "mlock": 3}  # llama_load_mode; mlock maps and locks
_KV_TYPES = {"float32": 0, "float16": 1, "q8_0": 8}  # ggml_type
_INT, _BOOL = ctypes.c_int32, ctypes.c_bool

# For the process of a peer: threads of GNU's OpenMP wait as they do by themselves, not as kit/__init__.py asks.
ENVIRONMENT = {"GOMP_SPINCOUNT": "300000"}


class _Api(NamedTuple):
    """What differs between the two: (offset, default) of int32 fields of the parameter structs, so that a library of another
    layout is an error and not a crash; the offset and type of the fields that are set; names of functions."""

    layouts: dict[str, tuple[tuple[int, int], ...]]
    fields: dict[str, tuple[int, type]]
    names: dict[str, str]
    remedy: str


_API = {
    "llama.cpp": _Api(
        {
            "llama_model_default_params": ((16, -1), (20, 1), (24, -1), (28, 1), (72, 0x00010000)),
            "llama_context_default_params": (
                (0, 512), (4, 2048), (8, 512), (12, 1), (28, 4), (32, 4), (52, -1), (104, 1), (108, 1),
            ),
        },
        {
            "load_mode": (24, _INT), "vocab_only": (72, _BOOL), "repack": (74, _BOOL), "n_ctx": (0, _INT), "n_batch": (4, _INT),
            "n_ubatch": (8, _INT), "flash": (52, _INT), "type_k": (104, _INT), "type_v": (108, _INT),
        },
        {"free_model": "llama_model_free", "n_vocab": "llama_vocab_n_tokens", "forget": "llama_memory_seq_rm"},
        "install the version of xllamacpp that pyproject.toml names",
    ),
    "ik_llama.cpp": _Api(
        {
            "llama_model_default_params": ((8, -1), (16, 1), (32, 1), (36, 1), (168, 0x00000100), (176, 0x01000000)),
            "llama_context_default_params": (
                (0, -1), (4, 512), (8, 2048), (12, 512), (16, 1), (36, -1), (96, 1), (100, 1), (148, 0x01010000),
            ),
        },
        {
            "vocab_only": (168, _BOOL), "n_ctx": (4, _INT), "n_batch": (8, _INT), "n_ubatch": (12, _INT),
            "flash": (151, _BOOL), "type_k": (96, _INT), "type_v": (100, _INT),
        },
        {"free_model": "llama_free_model", "n_vocab": "llama_n_vocab", "forget": "llama_kv_cache_seq_rm"},
        "build commit 8337e4c",
    ),
}  # fmt: skip
_POINTERS = "model_load_from_file init_from_model get_logits"


class _Parameters(ctypes.Structure):
    """A parameter struct passed by value: longer than llama.cpp's own, with fields set at known offsets."""

    _fields_ = (("bytes", ctypes.c_uint8 * 1024),)

    def set(self, fields, **values):
        for name, value in values.items():
            offset, kind = fields[name]
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
        ("unused", ctypes.c_int32 * 3),  # of ik_llama.cpp, as long as the pointers are set
    )


def available(peer: str = "llama.cpp") -> bool:
    """Whether the wheel is installed, or a build is named."""
    if peer == "ik_llama.cpp":
        return bool(os.environ.get("IK_LLAMA_CPP"))
    return bool(os.environ.get("LLAMA_CPP")) or importlib.util.find_spec("xllamacpp") is not None


@cache
def library(peer: str = "llama.cpp") -> ctypes.CDLL:
    """The shared library. ModelError when it is not installed, or the layout of its parameter structs is unknown."""
    if not available(peer):
        raise ModelError(
            {
                "llama.cpp": "llama.cpp is not installed: pip install xllamacpp",
                "ik_llama.cpp": "no build of ik_llama.cpp is named: set IK_LLAMA_CPP to its libllama.so",
            }[peer]
        )
    if peer == "ik_llama.cpp":
        lib = _loaded("IK_LLAMA_CPP", Path(os.environ["IK_LLAMA_CPP"]))
    elif os.environ.get("LLAMA_CPP"):
        lib = _built(Path(os.environ["LLAMA_CPP"]))
    else:
        lib = ctypes.CDLL(str(next(Path(importlib.util.find_spec("xllamacpp").origin).parent.glob("*.so"))))
    for name, layout in _API[peer].layouts.items():
        function = getattr(lib, name)
        function.restype = _Parameters
        defaults = function()
        if any(ctypes.c_int32.from_buffer(defaults, offset).value != value for offset, value in layout):
            raise ModelError(f"{peer}: {name} has an unknown layout: {_API[peer].remedy}")
    for name in _POINTERS.split():
        getattr(lib, f"llama_{name}").restype = ctypes.c_void_p
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    return lib


_silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


def _loaded(variable: str, path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ModelError(f"{variable}={os.environ[variable]}: {error}") from None


def _built(backend: Path) -> ctypes.CDLL:
    """llama.cpp's library beside a CPU backend, with that backend loaded."""
    lib = _loaded("LLAMA_CPP", backend.with_name(library_file("llama")))
    lib.llama_log_set(_silent, None)
    lib.ggml_backend_load.restype = ctypes.c_void_p
    if not lib.ggml_backend_load(str(backend).encode()):
        raise ModelError(f"LLAMA_CPP={backend}: not a CPU backend of ggml that this CPU can run")
    return lib


class Llama(AbstractContextManager):
    """A GGUF file loaded by llama.cpp, one thread a core; usable in a ``with``.

    ``mode``: one of MODES, of ik_llama.cpp "mmap" alone. ``kv``: type of the KV cache. ``exact``: float32 sums in attention
    (no flash attention). ``vocabulary_only``: load no weights. ``repack``: as it comes, llama.cpp copies many matrices into
    memory of its own, in another order; False leaves them where they lie. ``peer``: llama.cpp or ik_llama.cpp. Raises
    ModelError when it cannot load the file or make the context.
    """

    def __init__(
        self, path, mode="mmap", context=512, kv="float16", exact=False, vocabulary_only=False, repack=True, peer="llama.cpp"
    ):  # fmt: skip
        self._lib, self._api, self.peer = library(peer), _API[peer], peer
        lib, fields = self._lib, self._api.fields
        parameters = lib.llama_model_default_params()
        parameters.set(fields, vocab_only=vocabulary_only)
        if "load_mode" in fields:
            parameters.set(fields, load_mode=MODES[mode], repack=repack)
        elif mode != "mmap":
            raise ModelError(f"{peer}: mode {mode!r} is not known here; choose mmap")
        model = lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise ModelError(f"{path}: {peer} cannot load it")
        self._model, self._context = ctypes.c_void_p(model), None
        self._vocab = self._model
        if peer == "llama.cpp":
            lib.llama_model_get_vocab.restype = ctypes.c_void_p
            self._vocab = ctypes.c_void_p(lib.llama_model_get_vocab(self._model))
        self.vocabulary = self._call("n_vocab", self._vocab)
        if not vocabulary_only:
            parameters = lib.llama_context_default_params()
            parameters.set(fields, n_ctx=context, n_batch=context, n_ubatch=512, type_k=_KV_TYPES[kv], type_v=_KV_TYPES[kv])
            if exact:
                parameters.set(fields, flash=0)
            self._context = ctypes.c_void_p(lib.llama_init_from_model(self._model, parameters))
            if not self._context:
                self.close()
                raise ModelError(f"{path}: {peer} cannot make a context of {context} positions: give fewer")
            lib.llama_set_n_threads(self._context, usable_cores(), usable_cores())
            self._memory = self._context
            if peer == "llama.cpp":
                lib.llama_get_memory.restype = ctypes.c_void_p
                self._memory = ctypes.c_void_p(lib.llama_get_memory(self._context))

    def _call(self, name, *arguments):
        return getattr(self._lib, self._api.names[name])(*arguments)

    def logits(self, tokens, held: int = 0, wanted=None) -> np.ndarray:
        """Logits (wanted, vocabulary) float32 of the last ``wanted`` of ``tokens`` (None: of all).

        The first ``held`` positions of the KV cache are kept, ``tokens`` follow them.
        """
        self._call("forget", self._memory, 0, held, -1)
        n = len(tokens)
        wanted = n if wanted is None else wanted
        ints, sequence = ctypes.c_int32 * n, (ctypes.c_int32 * 1)(0)
        batch = _Batch(
            n, ints(*tokens), None, ints(*range(held, held + n)), ints(*[1] * n),
            (ctypes.POINTER(ctypes.c_int32) * n)(*[sequence] * n), (ctypes.c_int8 * n)(*[i >= n - wanted for i in range(n)]),
        )  # fmt: skip
        if self._lib.llama_decode(self._context, batch):
            raise ModelError(f"{self.peer}: llama_decode failed: is the context large enough?")
        address = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))  # waits
        return np.ctypeslib.as_array(address, (wanted, self.vocabulary)).copy()

    def close(self) -> None:
        """Free the model."""
        if self._context:
            self._lib.llama_free(self._context)
        self._call("free_model", self._model)

    def __exit__(self, *_):
        self.close()
