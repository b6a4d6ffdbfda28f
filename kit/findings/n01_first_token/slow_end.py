"""What makes 194 s: loops, their order, the prompt's length, the dequantizer and the threads, each measured, then combined.

Reports 000 and 001 name none of these. A cost is measured once a weight and scaled: by weights to the reports' model, by
tokens to the prompt. ``evidence`` shows that both scalings hold here.
"""

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pandas as pd
import torch

import kit
from kit.findings import reported
from kit.findings.n04_attention.variants import one_of_each_shape
from kit.gguf.names import layer_of
from kit.lab import figures, measure, tables
from kit.lab.machine import usable_cores
from kit.model.config import read_config
from kit.model.linear import LINEAR

PROMPTS = (1, 4, 16, 64)
LOOPS = {"loop": "along rows", "strided": "along columns"}
_ROUND_SECONDS = 0.5  # of the evidence: one product at every prompt
NEAR = 0.25  # relative difference from the reported time that counts as giving it


def loop_costs(file, samples: int = 2) -> pd.DataFrame:
    """Seconds a weight and token of one layer's shapes and the output head: one row a loop and number of threads."""
    weights = kit.Weights(file)
    config, rows = read_config(file), []
    names = [*one_of_each_shape(config), "token_embd.weight" if config.tied else "output.weight"]
    for kind, threads in product(LOOPS, sorted({1, usable_cores()})):
        _loop(kind, torch.ones(threads, 1), threads, 1)  # compiles
        seconds = elements = 0
        for name in names:
            value = weights[name]
            counts = sum(layer_of(n) == layer_of(name) and t.shape == file.tensors[name].shape for n, t in file.tensors.items())
            repeat = samples if value.numel() < 2**26 else 1  # the head is large enough for one
            seconds += counts * min(_loop(kind, value, threads, 1) for _ in range(repeat))
            elements += counts * value.numel()
        rows.append((LOOPS[kind], threads, seconds / elements))
    return pd.DataFrame(rows, columns=["loops", "threads", "seconds a weight"])


def _loop(kind, value, threads, tokens) -> float:
    """Seconds of one product, the rows shared out among threads."""
    x, parts = torch.ones(tokens, value.shape[1]), value.tensor_split(threads)
    start = time.perf_counter()
    if threads == 1:
        LINEAR[kind].apply({"part": value}, "part", x)
        return time.perf_counter() - start
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda part: LINEAR[kind].apply({"part": part}, "part", x), parts):
            pass
    return time.perf_counter() - start


def evidence(file, costs: pd.DataFrame, dequantizing: pd.DataFrame, run, prompt_tokens: int) -> pd.DataFrame:
    """Whether both scalings hold: a matrix at every prompt against one token, in turn; an inference against its parts."""
    name = max(one_of_each_shape(read_config(file)), key=lambda name: file.tensors[name].elements)
    value, rows = kit.Weights(file)[name], {}
    _loop("strided", value[:, :1], 1, 1)  # compiles
    one = min(_loop("strided", value, 1, 1) for _ in range(2))
    value = value[:, : max(1, int(value.shape[1] * min(1.0, _ROUND_SECONDS / (sum(PROMPTS) * one))))]  # strides stay
    ways = {tokens: functools.partial(_loop, "strided", value, 1, tokens) for tokens in PROMPTS}
    narrow = lambda so_far: all(measure.decided(so_far.ratios(tokens, 1), (tokens,)) for tokens in PROMPTS[1:])  # noqa: E731
    found = measure.rounds(ways, 5, 4.0, narrow)
    for tokens in PROMPTS[1:]:
        ratio = float(np.median(found.ratios(tokens, 1))) / tokens
        rows[f"{name}, {value.shape[1]} columns, {tokens} tokens"] = tokens * found.median(1), found.median(tokens), ratio
    elements = sum(tensor.elements for tensor in file.tensors.values())
    parts = inference(costs, dequantizing, elements, (prompt_tokens,))
    slow = parts.query("loops == 'along columns' and threads == 1 and dequantizer == 'gguf-py'")
    scaled = float(slow["seconds"].iloc[0])
    rows["the reported way through this file, run before its parts"] = scaled, run.seconds, run.seconds / scaled
    return tables.frame(rows, "strided loops, one thread", "scaled, s", "measured, s", "measured / scaled")


def inference(costs: pd.DataFrame, dequantizing: pd.DataFrame, elements: int, prompts=PROMPTS) -> pd.DataFrame:
    """Seconds of a first inference of so many weights, by loops, threads, dequantizer and prompt. ``dequantizing``: GB/s of f32
    by threads and dequantizer (parallel.speeds); the threads are the same for both."""
    rows = [
        (loops, threads, dequantizer, prompt, elements * (each * prompt + 4 / dequantizing.loc[threads, dequantizer] / 1e9))
        for (loops, threads, each), dequantizer, prompt in product(costs.itertuples(index=False), dequantizing, prompts)
    ]
    return pd.DataFrame(rows, columns=["loops", "threads", "dequantizer", "prompt", "seconds"])


def combinations(costs: pd.DataFrame, dequantizing: pd.DataFrame, target: float) -> pd.DataFrame:
    """The same for the reports' model, and whether each combination gives the reported time."""
    table = inference(costs, dequantizing, reported.elements())
    return table.assign(near=(table["seconds"] / target - 1).abs() <= NEAR)


def figure(table: pd.DataFrame, target: float):
    """Seconds by prompt, a line a combination of loops, threads and dequantizer; what gives the reported time is ringed."""
    drawn, axes = figures.new(height=4.8)
    colors = {("along rows", True): figures.SKY, ("along rows", False): figures.BLUE,
              ("along columns", True): figures.ORANGE, ("along columns", False): figures.VERMILION}  # fmt: skip
    for (loops, threads, dequantizer), line in table.groupby(["loops", "threads", "dequantizer"], sort=False):
        label = f"{loops}, {threads} thread{'s' * (threads > 1)}, {dequantizer}"
        axes.plot(line["prompt"], line["seconds"], "-o" if dequantizer == "gguf-py" else "--s", ms=4, label=label,
                  color=colors[loops, threads > 1])  # fmt: skip
    near, ring = table[table["near"]], {"ms": 13, "mfc": "none", "mec": figures.BLACK}
    axes.plot(near["prompt"], near["seconds"], "o", **ring, label=f"within {NEAR:.0%} of {target:g} s")
    figures.bound(axes, target, f"reported: {target:g} s")
    figures.log(axes, "x", "y")
    axes.set(xlabel="tokens of the prompt, which the reports do not give", xticks=PROMPTS)
    axes.set_ylabel("seconds of a first inference")
    axes.set_title(f"{len(near)} of {len(table)} set-ups give {target:g} s: the report does not say which it was")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5)
    return drawn


def told(table: pd.DataFrame, target: float) -> str:
    """Which combinations give the reported time, in a sentence."""
    near = [f"{row.seconds:.0f} s: loops {row.loops}, {row.threads} thread{'s' * (row.threads > 1)}, {row.dequantizer} "
            f"dequantizer, prompt of {row.prompt}" for row in table[table["near"]].itertuples()]  # fmt: skip
    told = f"{len(near)} of {len(table)} set-ups come within {NEAR:.0%} of {target:g} s ({'; '.join(near) or 'none'})"
    return f"{told}; they span {table['seconds'].min():.0f} to {table['seconds'].max():,.0f} s"
