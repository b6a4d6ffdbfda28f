"""kit: where does the time between a GGUF file and a token go, and what is the least it could be?

The names below are what a notebook needs. Each is imported at first use, so ``import kit`` costs nothing.
"""

import gc
import importlib
import os
from contextlib import contextmanager

from kit import errors

__version__ = "0.3.0"

_HOME = {  # public name -> module that defines it
    "open": "kit.gguf.reader",
    "Trace": "kit.trace",
    "dequantize": "kit.quants",
    "Weights": "kit.model.weights",
    "Slots": "kit.model.slots",
    "Transformer": "kit.model.transformer",
    "generate": "kit.model.generate",
    "replay": "kit.cache.replay",
    "WeightCache": "kit.cache.store",
    "Session": "kit.lab.claims.session",
    "KitError": "kit.errors",
}
_POLICIES = {  # module of kit.cache.policies -> those that it defines
    "base": ("NoCache", "Unbounded", "HashMap", "FIFO", "LRU", "MRU", "LIP", "LFU", "Random", "TwoRandom"),
    "queues": ("CLOCK", "SIEVE", "S3FIFO"),
    "adaptive": ("ARC", "LIRS", "TinyLFU"),
    "cyclic": ("NextUse", "CyclicAware"),
    "pinned": ("Pinned",),
    "offline": ("MIN",),
}
_HOME |= {name: f"kit.cache.policies.{module}" for module, names in _POLICIES.items() for name in names}
_ALIASES = {"nn": "kit.hf.nn"}  # public name -> the module that it is
__all__ = list(_HOME)


TORCH_VARIABLES = {
    "THP_MEM_ALLOC_ENABLE": "1",  # huge pages make fresh memory 2.5 times faster to fill (Linux); read at a first allocation
    "OMP_WAIT_POLICY": "passive",  # idle threads of torch would spin for 3 ms after each operation, on the kit's cores
}

_TUNED = "KIT_TUNED"  # the variable that names those that tune_torch has set


def tune_torch() -> None:
    """Set the variables of TORCH_VARIABLES that are not set, for this process and those that it starts. The kit's own processes
    (commands, kernels of `kit reproduce`, children that measure) do; a script may, before it imports torch."""
    for name, value in TORCH_VARIABLES.items():
        if name not in os.environ:
            os.environ |= {name: value, _TUNED: f"{os.environ.get(_TUNED, '')} {name}".strip()}


def environment_of_user() -> dict[str, str]:
    """The environment as it was before `tune_torch`, here or in the process that started this one: for programs of the user,
    whose threads would sleep between all parts of a token."""
    added = (*os.environ.get(_TUNED, "").split(), _TUNED)
    return {name: value for name, value in os.environ.items() if name not in added}


@contextmanager
def no_collection():
    """The body without the garbage collector, which takes a fifth of the time of imports, an eighth of compiling, and finds
    nothing."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def __getattr__(name: str):
    try:
        with no_collection():
            home = importlib.import_module(_HOME.get(name) or _ALIASES.get(name, f"kit.{name}"))
    except ModuleNotFoundError as error:
        if error.name == f"kit.{name}":
            raise AttributeError(f"module 'kit' has no attribute {name!r}") from None
        raise errors.extra_for(error) from None
    value = getattr(home, name) if name in _HOME else home
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
