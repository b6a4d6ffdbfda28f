"""How fast memory is read now, in about a second, also on a busy machine: the best of many short reads of different memory.

A long pass is disturbed by whoever else runs; a slice of a millisecond often is not. No slice is read twice in a row, so the
caches hold none of them.
"""

import time

from kit.lab.measuring import state
from kit.system import last_level_cache, memory_available

_SLICE, _SECONDS = 16 << 20, 1.5  # bytes of a slice; how long slices are read
FREE = 1 << 30  # bytes without which nobody measures now: a probe takes 192 MiB
_SHORT = 0.3  # seconds of a look
_TIMES, _LEAST, _MOST = 4, 256 << 20, 2 << 30  # of the caches, which must not hold what is read; bytes of all slices


def now_gbps() -> float:
    """GB/s at which memory is read now, in at most a second: by the short probe, unless the CPU's caches hold its bytes."""
    return read_gbps(_SHORT) if state.in_caches() else state.probe_state().read_gbps


def read_gbps(seconds: float = _SECONDS) -> float:
    """10^9 bytes per second of the fastest slice. Memory: four times the caches, 2 GiB or an eighth of what is free at most."""
    wanted = max(_LEAST, min(_MOST, _TIMES * last_level_cache()))
    count = max(1, min(wanted, memory_available() // 8) // _SLICE)
    memory = state.numbers(count * (_SLICE // 4)).zero_().chunk(count)  # written, so that there are pages
    best, end, number = 0.0, time.perf_counter() + seconds, 0
    while time.perf_counter() < end or number < count:
        part = memory[number % count]
        start = time.perf_counter()
        part.sum()
        best = max(best, part.nbytes / (time.perf_counter() - start) / 1e9)
        number += 1
    return best
