"""First token: the least that any way can take, here and on the reports' machine."""

import pandas as pd

import kit
from kit.findings import reported
from kit.findings.n01_first_token.ways import WAYS, working_set
from kit.gguf import pagecache
from kit.lab import tables

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
    return max(_read_gbps(path) for _ in range(3))


def _read_gbps(path) -> float:
    pagecache.drop(path)
    with kit.open(path) as file:
        weights = kit.Weights(file)
        for name in weights:
            weights.read(name)
        frame = weights.trace.frame()
    return float(frame["nbytes"].sum() / frame["seconds"].sum() / 1e9)


def needed(seconds: float, devices: pd.DataFrame) -> pd.DataFrame:
    """What it takes to read the reports' model in f32 in ``seconds``: what each device can read, and its least time."""
    least = reported.f32_bytes() / devices["read_gbps"] / 1e9
    columns = {"read GB/s": devices["read_gbps"], "times too slow": least / seconds, "least seconds a token": least}
    return pd.DataFrame(columns).set_axis(devices["name"].rename("device"))
