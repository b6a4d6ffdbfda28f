"""The task compiler: a function of a task's number and named integers becomes machine code that the thread pool calls."""

import inspect
from pathlib import Path

from numba import types
from numba.core.ccallback import CFunc

from kit.cpu.simd.atomics import WORDS
from kit.cpu.simd.vectors import source_stamp

_kept = []  # machine code lives as long as what compiled it


def compile_task(function) -> int:
    """Compile ``function(task, *parameters)``, int64 all of them and at most WORDS parameters, to the address that
    kit.cpu.threads takes. It returns nothing and must not raise. The code comes from the cache on disk where there is one."""
    count = len(inspect.signature(function).parameters)
    if count > 1 + WORDS:
        raise TypeError(f"{function.__qualname__}: a task takes up to {WORDS} parameters besides its number, not {count - 1}")
    compiled = CFunc(function, ((types.int64,) * count, types.void), {}, {"error_model": "numpy"})
    try:
        compiled.enable_caching()
        compiled._cache._cache_file._source_stamp = source_stamp(Path(function.__code__.co_filename).parent)
    except RuntimeError:  # nowhere to write to: compile in each process
        pass
    compiled.compile()
    _kept.append(compiled)
    return compiled.address
