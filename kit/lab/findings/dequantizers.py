"""Dequantizers compared on a file's matrices, one tensor per thread: kit's, gguf-py's, and one like the reports'."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pandas as pd
import torch

import kit
from kit.cpu import simd
from kit.cpu.operations import run
from kit.gguf.formats import FORMATS
from kit.gguf.names import layer_of
from kit.lab.findings import scalar
from kit.lab.measuring import child
from kit.lab.measuring.kept import once_a_run
from kit.system import usable_cores

STAND_IN, OURS, GGUF_PY = "the stand-in", "the kit's", "gguf-py's"
_BYTES = {STAND_IN: 250 << 20, OURS: 250 << 20, GGUF_PY: 40 << 20}  # of float32 that a sample dequantizes


class StandIn(kit.Weights):
    """Weights as the reports' program dequantizes them: the calling thread alone, a weight at a time, compiled without vector
    code, into memory that is new each time (a Rust ``Vec``).

    Theirs made 7.6 GB/s of float32 in the median of their log (data/evidence.yaml: dequantize-gbps). Formats that
    kit.lab.findings.scalar has no loop for take the kit's kernels on one thread.
    """

    def load(self, name: str) -> torch.Tensor:
        """Read and dequantize the tensor without the cache."""
        format = FORMATS[self.info(name).qtype]
        blocks, out = np.ascontiguousarray(self.read(name)), torch.empty(self.shape(name), dtype=self.dtype, device="cpu")
        with self.trace.span("dequantize", name, layer_of(name), self.nbytes(name)):
            if format.name in scalar.LOOPS and out.dtype == torch.float32:
                scalar.dequantize(blocks, format, out)
            else:
                with simd.using("plain"):
                    run("dequantize", blocks, format, out, alone=True)
        return out


SOURCES = {STAND_IN: (StandIn, "cpu"), OURS: (kit.Weights, "cpu"), GGUF_PY: (kit.Weights, "reference")}  # and its backend


@once_a_run
def measure(path, budget: float = 6.0, cores: int | None = None) -> pd.DataFrame:
    """A row per dequantizer, number of threads and round: seconds, float32 bytes. ``budget``: seconds, after three rounds."""
    rows = child.call(_take, str(path), budget, cores or usable_cores(), env=os.environ | {"KIT_THREADS": "1"})
    return pd.DataFrame(rows, columns=["dequantizer", "threads", "round", "seconds", "bytes"])


def _take(path, budget, cores) -> list[tuple]:
    counts = sorted({cores} | {2**power for power in range(cores.bit_length()) if 2**power <= cores})
    rows, number, end = [], -1, time.perf_counter() + budget
    with kit.open(path) as file:
        sources = {name: make(file, backend=backend) for name, (make, backend) in SOURCES.items()}
        while number < 3 or (time.perf_counter() < end and number < 12):  # round -1 warms up: pages, memory, kernels
            for (name, weights), count in product(sources.items(), counts):
                some = _some(file, _BYTES[name])
                with ThreadPoolExecutor(count) as pool:
                    start = time.perf_counter()
                    list(pool.map(lambda tensor, weights=weights: weights.load(tensor).numel(), some))
                    seconds = time.perf_counter() - start
                rows += [(name, count, number, seconds, sum(map(weights.nbytes, some)))] * (number >= 0)
            number += 1
    return rows


def _some(file, nbytes) -> list[str]:
    """Matrices of the layers, smallest first, up to ``nbytes`` of float32 but two at least: enough for every core, balanced."""
    sizes = {name: 4 * t.elements for name, t in file.tensors.items() if len(t.shape) == 2 and layer_of(name) >= 0}
    smallest = pd.Series(sizes).sort_values(kind="stable")
    count = max(2, int((smallest.cumsum() <= nbytes).sum()))
    return list(smallest.index[:count][::-1])  # the largest first: no thread is left with one at the end
