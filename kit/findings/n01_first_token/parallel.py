"""Dequantizing several tensors at once: one thread against 2, 4 ... all cores, with two dequantizers, in turn.

In a child process whose kernels use one thread each, so that "one after another" is serial and nothing else runs.
"""

import io
import os
import subprocess
import sys
import time

import pandas as pd

import kit
from kit.errors import ReportError
from kit.gguf.names import layer_of
from kit.lab import figures
from kit.lab.machine import usable_cores

_BYTES = 250 << 20  # of f32 that a sample dequantizes, at most: whole tensors of the first layers
DEQUANTIZERS = {"reference": "gguf-py", "cpu": "the kit's"}


def measure(path, budget: float = 7.0, cores: int | None = None) -> pd.DataFrame:
    """One row a dequantizer, number of threads and round: seconds, bytes of f32. ``budget``: seconds for all of it."""
    command = [sys.executable, "-m", __name__, str(path), str(budget), str(cores or usable_cores())]
    child = subprocess.run(command, env=os.environ | {"KIT_THREADS": "1"}, capture_output=True, text=True)
    if child.returncode:
        raise ReportError(f"dequantizing {path} in parallel failed: {child.stderr.strip()[-300:]}")
    return pd.read_csv(io.StringIO(child.stdout))


def _take(path, budget, cores):
    counts = sorted({cores} | {2**power for power in range(cores.bit_length()) if 2**power <= cores})
    with kit.open(path) as file:
        names = _some(file)
        ways = {(kind, count): kit.Weights(file, kit.HashMap(), kind) for kind in DEQUANTIZERS for count in counts}
        rows, number, end = [], -1, time.perf_counter() + budget
        while number < 3 or (time.perf_counter() < end and number < 12):  # round -1 warms up: pages, memory, kernels
            for (kind, count), weights in ways.items():
                start = time.perf_counter()
                weights.preload(names, workers=count)
                seconds = time.perf_counter() - start
                weights.store.clear()
                rows.append((DEQUANTIZERS[kind], count, number, seconds, sum(map(weights.nbytes, names))))
            number += 1
    table = pd.DataFrame(rows, columns=["dequantizer", "threads", "round", "seconds", "bytes"])
    print(table[table["round"] >= 0].to_csv(index=False))


def _some(file) -> list[str]:
    """Matrices of the layers, smallest first, up to ``_BYTES`` in f32 but two at least: enough for every core, and balanced."""
    sizes = {name: 4 * t.elements for name, t in file.tensors.items() if len(t.shape) == 2 and layer_of(name) >= 0}
    smallest = pd.Series(sizes).sort_values(kind="stable")
    count = max(2, int((smallest.cumsum() <= _BYTES).sum()))
    return list(smallest.index[:count][::-1])  # the largest first: no thread is left with one at the end


def speeds(taken: pd.DataFrame) -> pd.DataFrame:
    """Median GB/s of f32 by dequantizer and threads."""
    rates = taken.assign(rate=taken["bytes"] / taken["seconds"] / 1e9)
    return rates.pivot_table(index="threads", columns="dequantizer", values="rate", aggfunc="median", sort=False)


def gains(taken: pd.DataFrame, dequantizer: str) -> pd.Series:
    """Seconds on one thread over seconds on all, round by round."""
    wide = taken[taken["dequantizer"] == dequantizer].pivot(index="round", columns="threads", values="seconds")
    return wide.iloc[:, 0] / wide.iloc[:, -1]


def figure(taken: pd.DataFrame, write_gbps: float):
    """GB/s of f32 by threads, a line a dequantizer; the store's bandwidth is the ceiling."""
    table = speeds(taken)
    drawn, axes = figures.new(height=3.4)
    table.plot(ax=axes, legend=False, style=["-o", "-s"], xticks=table.index, ylim=(0, write_gbps * 1.25))
    for (threads, _), value in table.stack().items():
        axes.annotate(f" {value:.3g}", (threads, value), va="bottom", fontsize=9)
    figures.bound(axes, write_gbps, f"write bandwidth, {write_gbps:.1f} GB/s")
    axes.set(xlabel="threads, each with a tensor of its own", ylabel="GB/s of f32")
    gained = ", ".join(f"{name} {gain:.1f}x" for name, gain in (table.iloc[-1] / table.iloc[0]).items())
    axes.set_title(f"{table.index[-1]} tensors at once, beside one: {gained}")
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawn


if __name__ == "__main__":
    _take(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
