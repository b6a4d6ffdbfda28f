"""Attention and the projections: every variant equal, then timed, and where the time of one token goes."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

import kit
from kit import measure
from kit.architectures import Config, read_config
from kit.attention import ATTENTION
from kit.gguf.geometry import GEOMETRIES
from kit.gguf.reader import layer_of
from kit.kvcache import KV_TYPES
from kit.linear import LINEAR
from kit.machine import Machine, memory_available

TOLERANCE = 1e-6  # of every variant in f32, largest difference from float64 on standard normal inputs
PYTHON_STEPS = 300_000  # multiplications a call that plain Python is asked for: about a tenth of a second
TOUCHED_BYTES = 128 << 20  # keys and values timed in turn: more than a cache holds, as between the layers of a model


class Way(NamedTuple):
    """How one token is computed."""

    label: str
    linear: str = "matmul"
    attention: str = "blas"


WAYS = {  # in the order in which they run on one set of weights: the first finds nothing decoded
    "first": Way("reports' first inference: slow dequantiser, loops", "strided", "loop"),
    "again": Way("reports' second inference: all cached, loops", "strided", "loop"),
    "loop-attention": Way("cached f32: BLAS projections, looped attention", attention="loop"),
    "loop-projections": Way("cached f32: looped projections, BLAS attention", linear="strided"),
    "cached": Way("cached f32: BLAS for both"),
    "fused": Way("best: straight from the blocks, BLAS attention", linear="fused"),
}
PROJECTIONS = ("matmul", "loop", "strided", "fused")  # float32 throughout, so that all must agree
PARTS = ("dequantise", "projections", "attention", "norms", "rest")


class FirstLayers:
    """A GGUFFile with only its first ``layers`` layers: what fits in memory of a model that does not."""

    def __init__(self, file, layers: int):
        self._file, self.path, self.architecture = file, file.path, file.architecture
        self.metadata = dict(file.metadata.items()) | {f"{file.architecture}.block_count": layers}
        self.tensors = {name: tensor for name, tensor in file.tensors.items() if layer_of(name) < layers}
        self.raw, self.blocks = file.raw, file.blocks


def what_fits(file, share: float = 0.5, most: int | None = None) -> FirstLayers:
    """The first layers (``most`` at most) whose f32 weights take up to ``share`` of the free memory, one at least."""
    room = share * memory_available()
    nbytes = pd.Series({name: 4 * tensor.elements for name, tensor in file.tensors.items()})
    by_layer = nbytes.groupby(nbytes.index.map(layer_of)).sum().sort_index().cumsum()
    fitting = int((by_layer[by_layer.index >= 0] <= room).sum())
    return FirstLayers(file, max(1, min(fitting, most or fitting)))


def true_layers(lab, file) -> int:
    """Layers of the model that ``file`` stands for: its own, or those of the geometry that it was cut from."""
    if lab.model:
        return read_config(file).layers
    return GEOMETRIES[lab.profile.models["granite-3.3-8b"][0]].layers


def elements_read(config: Config, layers: int) -> int:
    """Weights that one token of a model of so many layers reads: the layers and the output head."""
    layer = sum(math.prod(shape) for name, shape in config.tensors().items() if layer_of(name) == 0)
    return layers * layer + config.vocabulary * config.width


def predict(config: Config, machine: Machine, contexts, layers: int) -> pd.DataFrame:
    """By context: FLOPs of a token, attention's share of them, the most that a free attention gives, least seconds."""
    elements = elements_read(config, layers)
    rows = {}
    for context in contexts:
        attention = layers * attention_flops(config, context)
        flops = 2 * elements + attention
        nbytes = 4 * elements + layers * kv_bytes(config, context)
        least = max(machine.seconds_to_read(nbytes), machine.seconds_to_compute(flops))
        rows[context] = (flops, attention / flops, amdahl(attention / flops), nbytes, least)
    names = ["FLOPs", "attention's share", "most it can give", "bytes in f32", "least seconds a token"]
    return pd.DataFrame(rows, index=names).T.rename_axis("context")


# --- the variants of attention


def heads(config: Config, context: int, tokens: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Random q (heads, tokens, head_dim), k and v (kv_heads, context, head_dim) of a model's shape."""
    random = torch.Generator().manual_seed(seed)
    shapes = (config.heads, tokens), *[(config.kv_heads, context)] * 2
    return tuple(torch.randn(*shape, config.head_dim, generator=random) for shape in shapes)


def affordable(name: str, config: Config, context: int, tokens: int = 1) -> bool:
    """Plain Python takes small shapes only."""
    return name != "python" or 2 * config.heads * tokens * context * config.head_dim <= PYTHON_STEPS


def equality(config: Config, contexts=(1, 5, 48, 300), tokens: int = 5) -> pd.DataFrame:
    """Largest difference of every variant from float64 arithmetic, one query and ``tokens`` queries at each context."""
    rows = {}
    for context, queries in itertools.product(contexts, (1, tokens)):
        queries = min(queries, context)
        q, k, v = heads(config, context, queries)
        seen = torch.ones(queries, context, dtype=torch.bool).tril(context - queries)
        if config.window:
            seen &= ~torch.ones_like(seen).tril(context - queries - config.window)
        wide = (x.double()[None] for x in (q, k, v))
        exact = F.scaled_dot_product_attention(*wide, attn_mask=seen, scale=config.attention_scale, enable_gqa=True)[0]
        for name, variant in ATTENTION.items():
            if affordable(name, config, context, queries):
                got = variant(q, k, v, config.attention_scale, config.window)
                rows[name, f"{queries} x {context}"] = float((got - exact).abs().max())
    return pd.Series(rows).unstack(sort=False).rename_axis("variant", axis=0).rename_axis("queries x context", axis=1)


def attention_flops(config: Config, context: int, tokens: int = 1) -> int:
    """Multiplications and additions of one layer's scores and weighted values."""
    return 4 * config.heads * config.head_dim * tokens * min(context, config.window or context)


def kv_bytes(config: Config, context: int) -> int:
    """Bytes of one layer's keys and values in f32."""
    return 2 * 4 * config.kv_heads * config.head_dim * min(context, config.window or context)


def times(config: Config, machine: Machine, contexts, samples: int = 5) -> pd.DataFrame:
    """Seconds of one query of one layer by variant and context, beside the least that this machine allows.

    Each call gets other keys and values than the one before, so that they come from memory as in a model.
    """
    rows = []
    for context in contexts:
        q, k, v = heads(config, context)
        copies = int(np.clip(TOUCHED_BYTES // (k.nbytes + v.nbytes), 1, 64))
        pairs = [(k, v), *((k.clone(), v.clone()) for _ in range(copies - 1))]
        nbytes, flops = kv_bytes(config, context), attention_flops(config, context)
        bound = max(machine.seconds_to_read(nbytes), machine.seconds_to_compute(flops))
        for name, variant in ATTENTION.items():
            if affordable(name, config, context):
                timed = measure.time(_in_turn(variant, q, pairs, config), samples, min_sample=0.002)
                rows.append((name, context, timed.median, bound, flops, nbytes))
    columns = ["variant", "context", "seconds", "bound", "flops", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def _in_turn(variant, q, pairs, config):
    turn = itertools.cycle(pairs)
    return lambda: variant(q, *next(turn), config.attention_scale, config.window)


# --- the projections


def projections(weights, config: Config, machine: Machine, samples: int = 3) -> pd.DataFrame:
    """Seconds of one token through a matrix of each shape by PROJECTIONS, with GB/s of the weights as each reads them.

    Timed over the layers in turn, so that the weights come from memory and not from a cache.
    """
    rows = []
    for name in one_of_each_shape(config):
        x = torch.randn(1, weights.info(name).shape[-1], generator=torch.Generator().manual_seed(0))
        exact = None
        for variant in PROJECTIONS:
            linear = LINEAR[variant]
            y = linear.apply(weights, name, x).double()
            exact = y if exact is None else exact
            error = float((y - exact).pow(2).mean().sqrt() / exact.std())
            stack = [name.replace("blk.0.", f"blk.{layer}.") for layer in range(config.layers)]
            timed = measure.time(_over_layers(linear, weights, stack, x), samples, min_sample=0.005)
            nbytes = linear.nbytes(weights, name)
            bound = machine.seconds_to_read(nbytes)
            flops = 2 * weights.info(name).elements
            rows.append((name, variant, timed.median, nbytes / timed.median / 1e9, timed.median / bound, error, flops, nbytes))
    columns = ["tensor", "variant", "seconds", "GB/s", "time / bound", "rms / std", "flops", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def _over_layers(linear, weights, names, x):
    turn = itertools.cycle(names)
    return lambda: linear.apply(weights, next(turn), x)


def one_of_each_shape(config: Config) -> list[str]:
    """A matrix of layer 0 for every shape that it has, the smallest first."""
    matrices = {shape: name for name, shape in config.tensors().items() if len(shape) == 2 and layer_of(name) == 0}
    return [matrices[shape] for shape in sorted(matrices, key=lambda shape: shape[0] * shape[1])]


# --- one token


def fill(model: kit.Transformer, cache, positions: int, seed: int = 0) -> None:
    """Put ``positions`` random keys and values into an empty cache: a context that nobody had to compute."""
    config = model.config
    shape = (positions, config.kv_heads, config.head_dim)
    random = torch.Generator().manual_seed(seed)
    k, v = torch.randn(shape, generator=random), torch.randn(shape, generator=random)
    for layer in range(config.layers):
        cache.append(layer, k, v)
    cache.advance(positions)


def one_token(model: kit.Transformer, context: int, scale: float = 1.0, samples: int = 1) -> pd.DataFrame:
    """Seconds of one token by part (see PARTS), a row a sample, after a random context. ``scale``: see parts."""
    cache = model.new_cache(context + 1)
    if context:
        fill(model, cache, context)
    rows = []
    for _ in range(samples):
        model.trace.clear()
        cache.truncate(context)
        model.step([0], cache)
        rows.append(parts(model.trace.frame(), scale))
    return pd.DataFrame(rows)


def parts(frame: pd.DataFrame, scale: float = 1.0) -> dict[str, float]:
    """The spans of one token as seconds by part. Each layer counts ``scale`` times: a model with more of the same.

    What is decoded within a projection or a norm counts as dequantising.
    """
    whole = float(frame["seconds"][frame["what"] == "token"].sum())
    rest = whole - sum(_told(frame, frame["seconds"]).values())
    return _told(frame, frame["seconds"] * np.where(frame["layer"] >= 0, scale, 1.0)) | {"rest": rest * scale}


def _told(frame, seconds):
    def of(*what, rows=True):
        return float(seconds[frame["what"].isin(what) & rows].sum())

    in_norms = of("read", "dequantize", rows=frame["tensor"].str.endswith("norm.weight"))
    is_embedding = (frame["what"] == "dequantize") & (frame["tensor"] == "token_embd.weight")
    decoding, embedding = of("read", "dequantize"), float(seconds[is_embedding].head(1).sum())
    return {
        "dequantise": decoding,
        "projections": of("linear") - (decoding - in_norms - embedding),
        "attention": of("attention"),
        "norms": of("norm") - in_norms,
    }


def by_way(file, context: int, scale: float, samples: int = 3) -> tuple[kit.Weights, pd.DataFrame]:
    """One token each way over one set of weights, which the first way decodes; a row a sample, index (way, sample)."""
    weights = kit.Weights(file, kit.HashMap(), backend="reference")
    tables = {}
    for name, way in WAYS.items():
        model = kit.Transformer(weights, attention=way.attention, linear=way.linear)
        if name in ("fused", "cached"):
            one_token(model, context)  # pages of the file, threads, compiled kernels
        tables[name] = one_token(model, context, scale, samples=1 if way.linear == "strided" else samples)
    return weights, pd.concat(tables, names=["way", "sample"])


def token_table(tokens: pd.DataFrame, machine: Machine, elements: int) -> pd.DataFrame:
    """Median seconds by part and way, tokens a second, and total over the time that reading all f32 weights takes."""
    table = tokens.groupby(level="way", sort=False).median()
    total = table.sum(axis=1)
    table.index = [WAYS[way].label for way in table.index]
    least = machine.seconds_to_read(4 * elements)
    return table.assign(total=total.values, **{"tok/s": 1 / total.values, "total / f32 read once": total.values / least})


def shares(config: Config, timed: pd.DataFrame, tokens: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Share of attention in a token at each context, by FLOPs and by measured time, and the most that removing it gives.

    Measured: looped attention beside the looped projections of the reports, and beside BLAS projections.
    """
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


def kv_speeds(weights, machine: Machine, context: int, scale: float, samples: int = 3) -> pd.DataFrame:
    """Decoded tokens a second by attention and KV type at a context, and what read bandwidth allows each KV type."""
    rows = []
    for kv in KV_TYPES:
        for attention in ("loop", "blas", "sdpa", "chunked"):
            model = kit.Transformer(weights, attention=attention, kv_dtype=kv)
            seconds = one_token(model, context, scale, samples).sum(axis=1).median()
            cache = model.new_cache(1).bytes_per_position * context * scale
            read = model.trace.frame().query("what == 'linear'")
            nbytes = cache + float((read["nbytes"] * np.where(read["layer"] >= 0, scale, 1.0)).sum())
            rows.append((attention, kv, 1 / seconds, 1 / machine.seconds_to_read(nbytes), nbytes / seconds / 1e9))
    return pd.DataFrame(rows, columns=["attention", "KV cache", "tok/s", "bound tok/s", "GB/s"])


def roofline(config: Config, timed: pd.DataFrame, matrices: pd.DataFrame, weights, prefill: int = 128) -> pd.DataFrame:
    """Intensity (FLOPs a byte) and GFLOP/s of every variant: attention at its longest context, projections, a prefill."""
    last = timed[timed["context"] == timed.groupby("variant")["context"].transform("max")]
    points = [(f"attention {row.variant}", row.flops, row.bytes, row.seconds) for row in last.itertuples()]
    largest = matrices["tensor"].iloc[-1]
    for row in matrices[matrices["tensor"] == largest].itertuples():
        points.append((f"projection {row.variant}", row.flops, row.bytes, row.seconds))
    x = torch.randn(prefill, weights.info(largest).shape[-1])
    seconds = measure.time(lambda: LINEAR["matmul"].apply(weights, largest, x), 3).median
    flops = 2 * prefill * weights.info(largest).elements
    points.append((f"projection matmul, {prefill} tokens", flops, weights.nbytes(largest) + 2 * x.nbytes, seconds))
    table = pd.DataFrame(points, columns=["point", "flops", "bytes", "seconds"]).set_index("point")
    return table.assign(intensity=table["flops"] / table["bytes"], gflops=table["flops"] / table["seconds"] / 1e9)
