"""First token: the ways from a closed file to a token, and where each spends its time."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

import kit
from kit.gguf import pagecache
from kit.lab.machine import memory_available
from kit.units import format_bytes


@dataclass(frozen=True)
class Way:
    """How weights get from the file to the first token. ``preload`` are arguments of Weights.preload, None: lazy.

    ``most``: samples at most, for what takes a minute.
    """

    label: str
    what: str
    backend: str = "cpu"
    preload: dict | None = None
    linear: str = "dequantized"
    attention: str = "blas"
    warm: bool = False  # measure the second request, not the first
    most: int = 99


_LAZY, _PRELOAD = "each tensor dequantized at its first use", "every tensor dequantized before the request"
WAYS = {
    "reported": Way(
        "as reported", f"{_LAZY} by gguf-py; loops that stride through columns", "reference", None, "strided", "strided", most=1
    ),
    "lazy-reference": Way("lazy, reference", f"{_LAZY} by gguf-py; matrix products", "reference", most=1),
    "lazy": Way("lazy, fast", f"{_LAZY} by the kit"),
    "preload": Way("preloaded", f"{_PRELOAD}, one after another", preload={"workers": 1}),
    "overlapped": Way(
        "preloaded while reading", f"{_PRELOAD}, a thread reads ahead", preload={"workers": 1, "read_ahead": True}
    ),
    "warm": Way("warm", "the second request after a preload", preload={"workers": 1}, warm=True),
    "fused": Way("fused", "weights used from the file's blocks, read ahead by a thread; nothing to preload", linear="fused"),
    "fused-warm": Way("fused, warm", "the second request, from the file's blocks", linear="fused", warm=True),
}
PHASES = ("open", "read", "dequantize", "compute")
_SPANS = {  # phase -> its spans
    "dequantize": "dequantize",
    "read": "read",
    "upload": "upload",
    "open": "open",
    "compute": "answer",
}


@dataclass(frozen=True)
class Run:
    """One way, once: spans, seconds by phase, logits of the prompt's last token, bytes held, whether the file was cold."""

    way: str
    frame: pd.DataFrame
    phases: dict[str, float]
    logits: torch.Tensor
    held_bytes: int
    hits: int
    misses: int
    cold: bool

    @property
    def seconds(self) -> float:
        """From the closed file (warm: from the request) to the token."""
        return sum(self.phases.values())


def ways_that_fit(file, dtype: str = "float32") -> dict[str, str]:
    """Each way, and why it cannot be measured here: empty when it can, else the memory that is missing."""
    need, have = working_set(file, dtype), memory_available()
    missing = f"all weights in {dtype} need {format_bytes(need)}, {format_bytes(have)} are free"
    return {way: missing if how.preload is not None and need > 0.9 * have else "" for way, how in WAYS.items()}


def working_set(file, dtype: str = "float32") -> int:
    """Bytes of all tensors of the file, dequantized."""
    return kit.Weights(file, dtype=dtype).working_set


def measure(path, way: str, prompt: list[int], dtype: str = "float32") -> Run:
    """Run one way from the closed file at ``path`` to the first token, its pages out of the page cache where possible.

    Dequantized weights are kept when they all fit in memory; else a lazy way lets each go after its use.
    """
    how, trace = WAYS[way], kit.Trace()
    cold = pagecache.drop(path)
    keep = how.linear == "fused" or _warm_memory(path, dtype)
    with trace.span("open"):
        file = kit.open(path)
        weights = kit.Weights(file, kit.HashMap() if keep else kit.NoCache(), how.backend, dtype, trace)
        model = kit.Transformer(weights, attention=how.attention, linear=how.linear)
    if how.preload:
        weights.preload(**how.preload)
    if how.warm:
        model.logits(prompt)
        trace.clear()
    before = weights.store.stats
    with trace.span("answer"):
        logits = model.logits(prompt)[-1]
    after = weights.store.stats
    hits, misses = after.hits - before.hits, after.misses - before.misses
    frame = trace.frame()
    file.close()
    return Run(way, frame, phases(frame), logits, after.resident_bytes, hits, misses, cold)


def _warm_memory(path, dtype: str) -> bool:
    """Touch and release as much memory as the way will hold, so that no way pays for fresh pages (fresh_gbps).

    False, with nothing touched, when it would not fit.
    """
    with kit.open(path) as file:
        nbytes = working_set(file, dtype)
    if nbytes > 0.9 * memory_available():
        return False
    torch.empty(nbytes, dtype=torch.uint8).zero_()
    return True


def phases(frame: pd.DataFrame, names: tuple[str, ...] = PHASES) -> dict[str, float]:
    """Wall seconds by phase; an instant inside spans of several phases counts for the first of them in _SPANS."""
    marks = np.unique(frame[["start", "end"]])
    middles, left, parts = (marks[1:] + marks[:-1]) / 2, np.diff(marks), {}
    for phase, what in _SPANS.items():
        begun, ended = (np.searchsorted(np.sort(frame.loc[frame["what"] == what, end]), middles) for end in ("start", "end"))
        parts[phase] = float(left[begun > ended].sum())
        left[begun > ended] = 0  # claimed
    return {phase: parts[phase] for phase in names}
