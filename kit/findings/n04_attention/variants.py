"""Attention and the projections: every variant equal, then timed beside its bound; attention's share of a token."""

import itertools
import math
import timeit
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from kit.findings.live import relative_rms
from kit.gguf.names import layer_of
from kit.lab import measure, tables
from kit.lab.machine import Machine
from kit.model.attention import ATTENTION
from kit.model.config import Config
from kit.model.linear import LINEAR

TOLERANCE = 1e-6  # of every variant in f32, largest difference from float64 on standard normal inputs
PYTHON_STEPS = 300_000  # multiplications a call that plain Python is asked for: about a tenth of a second
TOUCHED_BYTES = 256 << 20  # what is read between two uses of the same memory: more than a cache holds
PREFILL = 128  # tokens of the prefill in the roofline
PROJECTIONS = ("matmul", "loop", "strided", "fused")  # float32 throughout, so that all must agree


def elements_read(config: Config, layers: int) -> int:
    """Weights that one token of a model of so many layers reads: the layers and the output head."""
    layer = 0
    for name, shape in config.tensors().items():
        if layer_of(name) == 0:
            layer += math.prod(shape) * config.experts_used // config.experts if "_exps" in name else math.prod(shape)
    return layers * layer + config.vocabulary * config.hidden_size


def predict(config: Config, machine: Machine, contexts, layers: int) -> pd.DataFrame:
    """By context: FLOPs of a token of ``layers`` layers such as the first, attention's share of them, the most that a free
    attention gives, least seconds."""
    elements, rows = elements_read(config, layers), {}
    for context in contexts:
        attention = layers * attention_flops(config, context)
        flops = 2 * elements + attention
        nbytes = 4 * elements + layers * kv_bytes(config, context)
        least = max(machine.seconds_to_read(nbytes), machine.seconds_to_compute(flops))
        rows[context] = (flops, attention / flops, amdahl(attention / flops), nbytes, least)
    return tables.frame(
        rows, "context", "FLOPs", "attention's share", "most it can give", "bytes in f32", "least seconds a token"
    )


# --- the variants of attention


def heads(config: Config, context: int, tokens: int = 1) -> tuple[torch.Tensor, ...]:
    """Random q (heads, tokens, head_dim), k and v (kv_heads, context, head_dim) of a model's shape."""
    random = torch.Generator().manual_seed(0)
    shapes = (config.heads, tokens), *[(config.kv_heads, context)] * 2
    return tuple(torch.randn(*shape, config.head_dim, generator=random) for shape in shapes)


def affordable(name: str, config: Config, context: int, tokens: int = 1) -> bool:
    """Plain Python takes small shapes only."""
    return name != "python" or 2 * config.heads * tokens * context * config.head_dim <= PYTHON_STEPS


def equality(config: Config, contexts=(1, 5, 48, 300)) -> pd.DataFrame:
    """Largest difference of every variant from float64 arithmetic, with one query and with five at each context."""
    rows, window = {}, config.window_of(0)
    for context, queries in itertools.product(contexts, (1, 5)):
        queries = min(queries, context)
        q, k, v = heads(config, context, queries)
        seen = torch.ones(queries, context, dtype=torch.bool).tril(context - queries)
        if window:
            seen &= ~torch.ones_like(seen).tril(context - queries - window)
        wide = (x.double()[None] for x in (q, k, v))
        exact = F.scaled_dot_product_attention(*wide, attn_mask=seen, scale=config.attention_scale, enable_gqa=True)[0]
        for name, variant in ATTENTION.items():
            if affordable(name, config, context, queries):
                got = variant(q, k, v, config.attention_scale, window)
                rows[name, f"{queries} x {context}"] = float((got - exact).abs().max())
    return pd.Series(rows).unstack(sort=False).rename_axis("variant", axis=0).rename_axis("queries x context", axis=1)


def attention_flops(config: Config, context: int, layer: int = 0) -> int:
    """Multiplications and additions of a layer's scores and weighted values for one token."""
    return 4 * config.heads * config.head_dim * min(context, config.window_of(layer) or context)


def kv_bytes(config: Config, context: int, layer: int = 0, width: int = 4) -> int:
    """Bytes of a layer's keys and values that one token attends to, ``width`` bytes a number."""
    return 2 * width * config.kv_heads * config.head_dim * min(context, config.window_of(layer) or context)


def times(config: Config, machine: Machine, contexts, samples: int = 5) -> pd.DataFrame:
    """Seconds of one query of one layer by variant and context, beside the least that this machine allows. Each call gets other
    keys and values than the one before, so that they come from memory as in a model."""
    rows = []
    for context in contexts:
        q, k, v = heads(config, context)
        copies = int(np.clip(TOUCHED_BYTES // (k.nbytes + v.nbytes), 1, 64))
        pairs = [(k, v), *((k.clone(), v.clone()) for _ in range(copies - 1))]
        nbytes, flops = kv_bytes(config, context), attention_flops(config, context)
        bound = max(machine.seconds_to_read(nbytes), machine.seconds_to_compute(flops))
        for name, variant in ATTENTION.items():
            if affordable(name, config, context):
                turn = itertools.cycle(pairs)

                def once(variant=variant, q=q, turn=turn):
                    return variant(q, *next(turn), config.attention_scale, config.window_of(0))

                timed = measure.time(once, samples, min_sample=0.002)
                rows.append((name, context, timed.median, bound, flops, nbytes))
    return pd.DataFrame(rows, columns=["variant", "context", "seconds", "bound", "flops", "bytes"])


# --- the projections


def projections(weights, config: Config, samples: int = 3) -> pd.DataFrame:
    """Seconds of one token through a matrix of each shape by PROJECTIONS, with GB/s of the weights as each variant reads them.
    The variants run in turn, each after numpy read other memory on one thread: this evicts the weights from the caches, and
    torch's threads fall asleep. "read GB/s" is the fastest read of the same rounds, the bound of all."""
    other, vector = torch.ones(TOUCHED_BYTES // 4).view(-1, 4096), torch.ones(4096)
    taken, errors = {}, {}
    for name in one_of_each_shape(config):
        x = torch.randn(1, weights.info(name).shape[-1], generator=torch.Generator().manual_seed(0))
        results = {variant: LINEAR[variant].apply(weights, name, x) for variant in PROJECTIONS}
        errors[name] = {variant: relative_rms(y, results[PROJECTIONS[0]]) for variant, y in results.items()}
        stack = [name.replace("blk.0.", f"blk.{layer}.") for layer in range(config.layers)]

        def once(work, *arguments):
            other.numpy().max()
            return timeit.timeit(lambda: [work(*each) for each in arguments], number=1) / len(arguments)

        ways = {
            variant: partial(once, LINEAR[variant].apply, *((weights, each, x) for each in stack)) for variant in PROJECTIONS
        }
        taken[name] = measure.rounds(ways | {"read": partial(once, torch.mv, (other, vector))}, samples, budget=0)
    read, rows = other.nbytes / min(min(found.seconds["read"]) for found in taken.values()), []
    for (name, found), variant in itertools.product(taken.items(), PROJECTIONS):
        nbytes, seconds = LINEAR[variant].nbytes(weights, name), found.median(variant)
        speeds = seconds, nbytes / seconds / 1e9, seconds * read / nbytes
        rows.append((name, variant, *speeds, errors[name][variant], read / 1e9, 2 * weights.info(name).elements, nbytes))
    columns = ["tensor", "variant", "seconds", "GB/s", "time / bound", "rms / std", "read GB/s", "flops", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def one_of_each_shape(config: Config) -> list[str]:
    """A matrix of layer 0 for every shape that it has, the smallest first."""
    matrices = {shape: name for name, shape in config.tensors().items() if len(shape) == 2 and layer_of(name) == 0}
    return [matrices[shape] for shape in sorted(matrices, key=lambda shape: shape[0] * shape[1])]


def shares(config: Config, timed: pd.DataFrame, tokens: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Share of attention in a token at each context, by FLOPs and by measured time, and the most that removing it gives.
    Measured: looped attention beside the looped projections of the reports, and beside BLAS projections."""
    elements = elements_read(config, layers)
    loop = timed[timed["variant"] == "loop"].set_index("context")["seconds"] * layers
    rows = {}
    for label, way in (("reports' loops, measured", "again"), ("BLAS projections, measured", "loop-attention")):
        others = float(tokens.loc[way].drop(columns="attention").sum(axis=1).median())
        rows[label] = loop / (loop + others)
    flops = pd.Series({context: layers * attention_flops(config, context) for context in loop.index})
    rows = {"FLOPs": flops / (flops + 2 * elements), **rows}
    return pd.DataFrame(rows).rename_axis("context")


def amdahl(share):
    """The speed-up when a part of that share takes no time at all (Amdahl 1967)."""
    return 1 / (1 - share)


def roofline(config: Config, timed: pd.DataFrame, matrices: pd.DataFrame, weights) -> pd.DataFrame:
    """Intensity (FLOPs a byte) and GFLOP/s of every variant: attention at its longest context, projections, a prefill."""
    last = timed[timed["context"] == timed.groupby("variant")["context"].transform("max")]
    points = [(f"attention {row.variant}", row.flops, row.bytes, row.seconds) for row in last.itertuples()]
    largest = matrices["tensor"].iloc[-1]
    for row in matrices[matrices["tensor"] == largest].itertuples():
        points.append((f"projection {row.variant}", row.flops, row.bytes, row.seconds))
    x = torch.randn(PREFILL, weights.info(largest).shape[-1])
    seconds = measure.time(lambda: LINEAR["matmul"].apply(weights, largest, x), 3).median
    flops = 2 * PREFILL * weights.info(largest).elements
    points.append((f"projection matmul, {PREFILL} tokens", flops, weights.nbytes(largest) + 2 * x.nbytes, seconds))
    table = tables.frame(points, "point", "flops", "bytes", "seconds")
    return table.assign(intensity=table["flops"] / table["bytes"], gflops=table["flops"] / table["seconds"] / 1e9)
