"""First token: what physics allows, and what was measured beside it, as tables."""

import math

import numpy as np
import pandas as pd

import kit
from kit.findings.n01_first_token.ways import WAYS, Run, working_set
from kit.gguf import pagecache
from kit.lab.measure import bootstrap_median
from kit.synthetic.geometry import GEOMETRIES
from kit.units import format_bytes, format_seconds

FUSED = "compute from blocks"


def predict(file, machine, prompt_tokens: int, disk_gbps: float, dtype: str = "float32") -> pd.DataFrame:
    """The least seconds of each phase on this machine: bytes over bandwidth, or FLOPs over peak where that is more.

    Dequantizing writes every weight in ``dtype``; a pass over the prompt reads each once, or reads the blocks instead.
    """
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
    return pd.DataFrame(rows, index=["bytes", "bound", "seconds"]).T.rename_axis("phase")


def _least_seconds(way: str, predicted: pd.DataFrame) -> float:
    """The bound of a way: its phases in a row, or the longer of two that it overlaps."""
    how, least = WAYS[way], predicted["seconds"]
    if how.warm:
        return least["compute"]
    if how.linear == "fused":
        return max(least["read"], least[FUSED])  # the blocks are read as they are used
    if (how.preload or {}).get("read_ahead"):
        return max(least["read"], least["dequantize"]) + least["compute"]
    return least["read"] + least["dequantize"] + least["compute"]


def disk_gbps(path, samples: int = 3) -> float:
    """GB/s of reading the whole file, its pages dropped before (cached, where they cannot be): the best of some samples."""
    return max(_read_gbps(path) for _ in range(samples))


def _read_gbps(path) -> float:
    pagecache.drop(path)
    with kit.open(path) as file:
        weights = kit.Weights(file)
        for name in weights:
            weights.read(name)
        frame = weights.trace.frame()
    return float(frame["nbytes"].sum() / frame["seconds"].sum() / 1e9)


def equality(runs: list[Run]) -> pd.DataFrame:
    """Do all ways give the same token? RMS difference of the logits over their standard deviation, against "lazy"."""
    truth = next(run for run in runs if run.way == "lazy").logits.double()
    rows = {
        run.way: (int(run.logits.argmax()), float((run.logits.double() - truth).pow(2).mean().sqrt() / truth.std()))
        for run in runs
    }
    return pd.DataFrame(rows, index=["token", "rms / std"]).T.astype({"token": int})


def table(runs: list[Run], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row a way: seconds by phase, total, its bound, total over bound, bytes held, GB/s dequantized, file cold or not."""
    rows = []
    for way, typical in typical_runs(runs).items():
        wrote = typical.frame.query("what == 'dequantize'")["nbytes"].sum()
        least = _least_seconds(way, predicted)
        rows.append(
            {
                "way": WAYS[way].label, **typical.phases, "total": typical.seconds, "bound": least,
                "× bound": typical.seconds / least, "held": format_bytes(typical.held_bytes),
                "GB/s": wrote / typical.phases["dequantize"] / 1e9 if wrote else np.nan,
                "cold": "yes" if typical.cold else "no",
            }
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("way")


def explained() -> pd.DataFrame:
    """What each way does, in words."""
    return pd.DataFrame({"way": way.label, "what it does": way.what} for way in WAYS.values()).set_index("way")


def typical_runs(runs: list[Run]) -> dict[str, Run]:
    """The median run of each way."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.way, []).append(run)
    return {way: sorted(group, key=lambda run: run.seconds)[len(group) // 2] for way, group in groups.items()}


def needed(elements: int, seconds: float, devices: pd.DataFrame) -> pd.DataFrame:
    """What it takes to read ``elements`` f32 weights in ``seconds``: GB/s needed against what each device can read."""
    gbps = 4 * elements / seconds / 1e9
    rows = [(row["name"], row["read_gbps"], gbps / row["read_gbps"], 4 * elements / row["read_gbps"] / 1e9)
            for _, row in devices.iterrows()]  # fmt: skip
    names = ["device", "read GB/s", "times too slow", "least seconds a token"]
    return pd.DataFrame(rows, columns=names).set_index("device")


def samples(runs: list[Run], way: str) -> list[float]:
    """Total seconds of every run of that way."""
    return [run.seconds for run in runs if run.way == way]


def ratios(runs: list[Run], slow: str, fast: str) -> list[float]:
    """Seconds of ``slow`` over seconds of ``fast``, every pair of runs."""
    return [a / b for a in samples(runs, slow) for b in samples(runs, fast)]


STEPS = (  # from, to, what changed between them
    ("reported", "lazy-reference", "matrix products instead of strided loops"),
    ("lazy-reference", "lazy", "the fast dequantizer"),
    ("lazy", "preload", "preloading"),
    ("preload", "parallel", "tensors in parallel"),
    ("preload", "overlapped", "reading while dequantizing"),
    ("preload", "warm", "not counting the preload"),
    ("preload", "fused", "using the blocks where they lie"),
)


def steps(runs: list[Run]) -> pd.DataFrame:
    """What each change brought: seconds before and after, and their ratio with its 95 % interval."""
    rows = []
    measured = {run.way for run in runs}
    for slow, fast, change in STEPS:
        if not {slow, fast} <= measured:
            continue
        pairs = ratios(runs, slow, fast)
        before, after = np.median(samples(runs, slow)), np.median(samples(runs, fast))
        rows.append((change, before, after, before / after, *bootstrap_median(pairs)))
    names = ["change", "seconds before", "seconds after", "times faster", "at least", "at most"]
    return pd.DataFrame(rows, columns=names).set_index("change")


def elements_of(geometry: str, mix: str = "Q4_K_M") -> int:
    """Weights of a whole model, from its geometry alone."""
    return sum(math.prod(tensor.shape) for tensor in GEOMETRIES[geometry].tensors(mix))


def summary(runs: list[Run]) -> str:
    """The finding in one sentence, from the measured medians."""
    seconds = {way: float(np.median(samples(runs, way))) for way in typical_runs(runs)}
    slow = seconds["reported"]
    parts = [f"{WAYS[way].label} {format_seconds(value)} ({slow / value:,.0f}x)" for way, value in seconds.items()]
    return "From the closed file to the token: " + ", ".join(parts) + "."
