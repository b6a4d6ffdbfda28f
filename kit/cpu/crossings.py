"""Which kernel multiplies a few tokens or many: measured on this machine at first use, and kept next to the kernels.

For one token a row of dot products is fastest, and for many tokens a tile of rows and tokens, which has more to prepare. Where
they cross depends on the CPU, the format and the activations, so nothing here is a constant.
"""

import contextlib
import functools
import json
import math
import time
from typing import NamedTuple

import numpy as np
import torch

from kit.cpu import gemm, gemm_codes, gemv_few, gemv_values
from kit.cpu.activations import DIGITS, quantize
from kit.cpu.gemv_codes import kernel as kernel_of_rows
from kit.cpu.gemv_codes import layout as layout_of_rows
from kit.cpu.simd.tiers import matrix, tier
from kit.cpu.superblocks import SUPERBLOCK
from kit.cpu.tasks import Task, address_of, beside, function
from kit.errors import KitError
from kit.gguf.formats import FORMATS, Format
from kit.system.files import replacing
from kit.units import from_json

ROWS, FEW, TILES, FLOATS = "rows", "few", "tiles", "floats"  # kit.cpu.gemv_codes, gemv_few, gemm_codes, gemm
_ALIKE = "alike"
_FEW = 16  # tokens, each number of which is measured; then the numbers up to these by the last of them
_MORE = (32, 64, 256)
_HEIGHT, _SHARE, _WIDTH = 128, 64, 6 * SUPERBLOCK  # of the matrices that are multiplied
_ROUNDS, _PLACES = 5, 5  # how many, and in how many places of memory: up to 15 MB for two kernels


def fastest(format: Format, activations: str, tokens: int, recorded: bool = False, alike: bool = False) -> str:
    """The kernel for so many tokens, 2 or more, of a format with codes. ``recorded``: not FLOATS, which are for prompts.
    ``alike``: ROWS or FEW, which give each token the bits that it has alone."""
    at = tokens if tokens <= _FEW else next((more for more in _MORE if tokens <= more), _MORE[-1])
    if alike:
        times = _times(format.name, activations, at, tier().value, _ALIKE) if tokens <= gemv_few.MOST else {ROWS: 0.0}
        return min(times, key=times.get)
    times = _times(format.name, activations, at, tier().value, gemm_codes.multiplier(activations, at))
    return min((name for name in times if not (recorded and name == FLOATS)), key=times.get)


def candidates(activations: str, tokens: int, alike: bool = False) -> list[str]:
    """The kernels that can multiply so many tokens, all with the same rounding of activations or with none, or those that are
    ``alike``."""
    if alike:
        return [ROWS, FEW]
    most = gemm_codes.FEWEST - 1 if DIGITS[activations] == 1 else _MORE[0]
    tiles = gemm_codes.multiplier(activations, tokens) in gemm_codes.TILES
    can = {ROWS: tokens <= most or not tiles, TILES: tiles, FLOATS: DIGITS[activations] > 1 and tokens >= gemm.FEWEST}
    return [name for name in can if can[name]]


@functools.cache
def _times(name, activations, tokens, *of) -> dict[str, float]:
    if len(names := candidates(activations, tokens, _ALIKE in of)) == 1:
        return {names[0]: 0.0}
    key, kept = " ".join(map(str, (name, activations, tokens, *of))), _kept()
    if key not in kept:
        kept[key] = measured(FORMATS[name], activations, tokens, _ALIKE in of)
        with contextlib.suppress(KitError, OSError):  # nowhere to write to: measured by each process
            path = beside("crossings")
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(json.dumps(_read() | kept, indent=1).encode())
    return kept[key]


@functools.cache
def _kept() -> dict[str, dict[str, float]]:
    return _read()


def _read() -> dict[str, dict[str, float]]:
    with contextlib.suppress(OSError, ValueError):
        kept = from_json(beside("crossings").read_bytes())
        return {key: times for key, times in kept.items() if _are_times(times)} if isinstance(kept, dict) else {}
    return {}


def _are_times(kept) -> bool:
    known = isinstance(kept, dict) and kept and set(kept) <= {ROWS, FEW, TILES, FLOATS}
    return bool(known) and all(isinstance(each, float) and 0 < each < math.inf for each in kept.values())


def measured(format: Format, activations: str, tokens: int, alike: bool = False) -> dict[str, float]:
    """Seconds of each of the ``candidates``: the least of what it takes in some places of memory, for in one of them, by its
    pages, tiles of six bits took twice the time, and no model of that type ran so."""
    held, places = [], []
    for _ in range(_PLACES):
        size = format.nbytes(_WIDTH)
        x, y = (torch.ones(tokens, n, dtype=torch.float32, device="cpu") for n in (_WIDTH, _HEIGHT))
        calls = {name: _call(format, activations, name, size, x, y) for name in candidates(activations, tokens, alike)}
        pieces = np.ones((len(calls), _ROUNDS + 2, _HEIGHT * size), np.uint8)  # the first is not timed, the last only fetched
        held.append((calls, pieces))  # so that the next has a place of its own
        places.append(_turns(calls, pieces))
    return {name: min(place[name] for place in places) for name in places[0]}


def _turns(calls: dict, pieces: np.ndarray) -> dict[str, float]:
    """The lower quartile of turns on one thread, of its own time where the system counts that finely. A kernel's turns read one
    piece of memory after another, as the tasks of a large matrix do: weights come from memory, and what a kernel fetches ahead
    is what it reads next."""
    taken, clock = {name: [] for name in calls}, _clock()
    for turn in range(_ROUNDS + 1):
        for (name, call), own in zip(calls.items(), pieces, strict=True):
            start = clock()
            call(own[turn])
            taken[name].append(clock() - start)
    return {name: float(np.quantile(times[1:], 0.25)) for name, times in taken.items()}


def _clock():
    """A function that returns seconds: of this thread where they are counted finely, so that others' work is left out."""
    return time.thread_time if time.get_clock_info("thread_time").resolution < 1e-6 else time.perf_counter


def _call(format, activations, name, size, x, y):
    """A function that multiplies the blocks it is given once, all rows by the calling thread."""
    task = kernel(format, activations, name, len(x))
    if name != FLOATS:
        x = quantize(x, **layout(format, activations, name, len(x)))
    run, blocks = function(task, 1 + len(task.parameters)), task.parameters.index("blocks")
    arguments = dict(x=x, x_stride=x.stride(0) * x.itemsize, y=y, y_stride=4 * _HEIGHT, tokens=len(y))
    arguments |= dict(blocks=0, row_bytes=size, rows=_HEIGHT, columns=_WIDTH, share=_SHARE)
    given = [address_of(argument) for argument in task.in_order(arguments)]

    def call(piece, _held=(x, y)):
        given[blocks] = address_of(piece)
        for number in range(_HEIGHT // _SHARE):
            run(number, *given)

    return call


class ChosenKernel(NamedTuple):
    """How so many tokens are multiplied: by ROWS, FEW, TILES or FLOATS. ``layout``: what ``quantize`` needs to know; nothing
    where x stays as it is."""

    name: str
    kernel: Task
    layout: dict[str, int]


def way(format: Format, activations: str, tokens: int, recorded: bool = False, alike: bool = False) -> ChosenKernel:
    """By the fastest kernel. A pass asks hundreds of times, and one took as long to find as a small product."""
    by = tier().value, matrix(), fastest, _times  # the functions, because a test may have put others in their place
    return _way(format, activations, tokens, recorded, alike, *by)


@functools.cache
def _way(format, activations, tokens, recorded, alike, *_):
    if format.codes is None:
        name = FLOATS if tokens >= gemm.FEWEST and not recorded else ROWS
        return ChosenKernel(name, (gemm if name == FLOATS else gemv_values).kernel(format, tier()), {})
    name = ROWS if tokens == 1 else fastest(format, activations, tokens, recorded, alike)
    floats = name == FLOATS
    return ChosenKernel(
        name, kernel(format, activations, name, tokens), {} if floats else layout(format, activations, name, tokens)
    )


def kernel(format: Format, activations: str, name: str, tokens: int) -> Task:
    """The task of one of these kernels."""
    if name == ROWS:
        return kernel_of_rows(format, tier(), activations)
    if name == FEW:
        return gemv_few.kernel(format, tier(), activations, str(tokens))
    if name == FLOATS:
        return gemm.kernel(format, tier())
    by = gemm_codes.multiplier(activations, tokens)
    wide = gemm_codes.wide(tokens, by)
    words = "words" if gemm_codes.in_words(format, activations, tokens) else ""
    how = "alone" if gemm_codes.unpacks_at_once(format, by, tokens) else words
    together = str(gemm_codes.together(format, activations, tokens))
    return gemm_codes.kernel(format, tier(), by, activations, str(wide), how, together)


def layout(format: Format, activations: str, name: str, tokens: int) -> dict[str, int]:
    """What ``quantize`` needs to know for ROWS, FEW or TILES."""
    if name == TILES:
        return gemm_codes.layout(format, activations, tokens)
    return layout_of_rows(format, tier().value, activations)
