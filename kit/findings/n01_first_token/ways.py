"""First token: the ways from a closed file to a token, the least that each can take, and where each spends its time."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

import kit
from kit.findings import reported
from kit.gguf import pagecache
from kit.lab import tables
from kit.lab.machine import memory_available
from kit.units import format_bytes


@dataclass(frozen=True)
class Way:
    """How weights get from the file to the first token. ``preload`` are arguments of Weights.preload, None: lazy. ``most``:
    samples at most, for what takes a minute."""

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
_FIRST = ("dequantize", "read", "upload", "open", "compute")  # the phase that an instant inside several counts for
FUSED = "compute from blocks"


@dataclass(frozen=True)
class Run:
    """One way, once: spans, seconds by phase, logits of the prompt's last token, bytes held, whether the file was cold."""

    way: str
    label: str
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
    Dequantized weights are kept when they all fit in memory; else a lazy way lets each go after its use."""
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
    with trace.span("compute"):
        logits = model.logits(prompt)[-1]
    after, frame = weights.store.stats, trace.frame()
    file.close()
    counts = after.resident_bytes, after.hits - before.hits, after.misses - before.misses
    return Run(way, how.label, frame, phases(frame), logits, *counts, cold)


def _warm_memory(path, dtype: str) -> bool:
    """Touch and release as much memory as the way will hold, so that no way pays for fresh pages (fresh_gbps). False, with
    nothing touched, when it would not fit."""
    with kit.open(path) as file:
        nbytes = working_set(file, dtype)
    if nbytes > 0.9 * memory_available():
        return False
    torch.empty(nbytes, dtype=torch.uint8).zero_()
    return True


def phases(frame: pd.DataFrame, names: tuple[str, ...] = PHASES) -> dict[str, float]:
    """Wall seconds by phase; an instant inside spans of several phases counts for the first of them in _FIRST."""
    marks = np.unique(frame[["start", "end"]])
    middles, left, parts = (marks[1:] + marks[:-1]) / 2, np.diff(marks), {}
    for phase in _FIRST:
        begun, ended = (np.searchsorted(np.sort(frame.loc[frame["what"] == phase, end]), middles) for end in ("start", "end"))
        parts[phase] = float(left[begun > ended].sum())
        left[begun > ended] = 0  # claimed
    return {phase: parts[phase] for phase in names}


# --- the least that any way can take, here and on the reports' machine -----------------------------------------------


def predict(file, machine, prompt_tokens: int, disk_gbps: float, dtype: str = "float32") -> pd.DataFrame:
    """The least seconds of each phase on this machine: bytes over bandwidth, or FLOPs over peak where that is more.
    Dequantizing writes every weight in ``dtype``; a pass over the prompt reads each once, or reads the blocks instead."""
    blocks = sum(tensor.nbytes for tensor in file.tensors.values())
    arithmetic = machine.seconds_to_compute(2 * prompt_tokens * sum(t.elements for t in file.tensors.values()))
    weights = working_set(file, dtype)
    compute, fused = (max(machine.seconds_to_read(nbytes), arithmetic) for nbytes in (weights, blocks))
    rows = {
        "read": (blocks, f"{disk_gbps:.1f} GB/s from disk, measured here", blocks / disk_gbps / 1e9),
        "dequantize": (weights, f"{dtype} written at write bandwidth", machine.seconds_to_write(weights)),
        "compute": (weights, f"{dtype} weights read once, or FLOPs", compute),
        FUSED: (blocks, "blocks read once, or FLOPs", fused),
    }
    return tables.frame(rows, "phase", "bytes", "bound", "seconds")


def least_seconds(way: str, predicted: pd.DataFrame) -> float:
    """The bound of a way: its phases in a row, or the longer of two that it overlaps."""
    how, least = WAYS[way], predicted["seconds"]
    compute = least[FUSED if how.linear == "fused" else "compute"]
    if how.warm:
        return compute
    if how.linear == "fused":
        return max(least["read"], compute)  # the blocks are read as they are used
    if (how.preload or {}).get("read_ahead"):
        return max(least["read"], least["dequantize"]) + compute
    return least["read"] + least["dequantize"] + compute


def disk_gbps(path) -> float:
    """GB/s of reading the whole file, its pages dropped before (cached, where they cannot be): the best of three."""
    speeds = []
    for _ in range(3):
        pagecache.drop(path)
        with kit.open(path) as file:
            weights = kit.Weights(file)
            for name in weights:
                weights.read(name)
            frame = weights.trace.frame()
        speeds.append(frame["nbytes"].sum() / frame["seconds"].sum() / 1e9)
    return float(max(speeds))


def needed(seconds: float, devices: pd.DataFrame) -> pd.DataFrame:
    """What it takes to read the reports' model in f32 in ``seconds``: what each device can read, and its least time."""
    least = reported.f32_bytes() / devices["read_gbps"] / 1e9
    columns = {"read GB/s": devices["read_gbps"], "times too slow": least / seconds, "least seconds a token": least}
    return pd.DataFrame(columns).set_axis(devices["name"].rename("device"))
