"""One token: what its parts take, each way of computing it, over as many layers of a model as memory holds."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

import kit
from kit.lab import measure
from kit.lab.machine import Machine
from kit.model.config import read_config
from kit.model.kvcache import KV_TYPES
from kit.synthetic.geometry import GEOMETRIES


class Way(NamedTuple):
    """How one token is computed."""

    label: str
    linear: str = "matmul"
    attention: str = "blas"


WAYS = {  # in the order in which they run on one set of weights: the first finds nothing dequantized
    "first": Way("reports' first inference: slow dequantizer, loops", "strided", "loop"),
    "again": Way("reports' second inference: all cached, loops", "strided", "loop"),
    "loop-attention": Way("cached f32: BLAS projections, looped attention", attention="loop"),
    "loop-projections": Way("cached f32: looped projections, BLAS attention", linear="strided"),
    "cached": Way("cached f32: BLAS for both"),
    "fused": Way("best: straight from the blocks, fused attention", "fused", "fused"),
}
PARTS = ("dequantize", "projections", "attention", "norms", "rest")


def true_layers(lab, file) -> int:
    """Layers of the model that ``file`` stands for: its own, or those of the geometry that it was cut from."""
    if lab.model:
        return read_config(file).layers
    return GEOMETRIES[lab.profile.models["granite-3.3-8b"][0]].layers


def one_token(model: kit.Transformer, context: int, scale: float = 1.0, samples: int = 1) -> pd.DataFrame:
    """Seconds of one token by part (see PARTS), a row a sample, after a random context. ``scale``: see parts."""
    config, cache, rows = model.config, model.new_cache(context + 1), []
    k, v = torch.randn(2, context, config.kv_heads, config.head_dim, generator=torch.Generator().manual_seed(0))
    for layer in range(config.layers):
        cache.write(layer, k, v)
    cache.advance(context)
    for _ in range(samples):
        model.trace.clear()
        cache.truncate(context)
        model.step([0], cache)
        rows.append(parts(model.trace.frame(), scale))
    return pd.DataFrame(rows)


def parts(frame: pd.DataFrame, scale: float = 1.0) -> dict[str, float]:
    """The spans of one token as seconds by part. Each layer counts ``scale`` times: a model with more of the same. What is
    dequantized within a projection or a norm counts as dequantizing."""
    whole = float(frame["seconds"][frame["what"] == "token"].sum())
    rest = whole - sum(_told(frame, frame["seconds"]).values())
    return _told(frame, frame["seconds"] * np.where(frame["layer"] >= 0, scale, 1.0)) | {"rest": rest * scale}


def _told(frame, seconds):
    def of(*what, rows=True):
        return float(seconds[frame["what"].isin(what) & rows].sum())

    in_norms = of("read", "dequantize", rows=frame["tensor"].str.endswith("norm.weight"))
    is_embedding = (frame["what"] == "dequantize") & (frame["tensor"] == "token_embd.weight")
    dequantizing, embedding = of("read", "dequantize"), float(seconds[is_embedding].head(1).sum())
    return {
        "dequantize": dequantizing,
        "projections": of("linear") - (dequantizing - in_norms - embedding),
        "attention": of("attention"),
        "norms": of("norm") - in_norms,
    }


def by_way(file, context: int, scale: float, samples: int = 3) -> tuple[kit.Weights, pd.DataFrame]:
    """One token each way over one set of weights, which the first way dequantizes; a row a sample, index (way, sample)."""
    weights, tables = kit.Weights(file, kit.HashMap(), backend="reference"), {}
    for name, way in WAYS.items():
        model = kit.Transformer(weights, attention=way.attention, linear=way.linear)
        if name in ("fused", "cached"):
            one_token(model, context)  # pages of the file, threads, compiled kernels
        taken = 1 if name == "first" else min(2, samples) if way.linear == "strided" else samples
        tables[name] = one_token(model, context, scale, taken)
    return weights, pd.concat(tables, names=["way", "sample"])


def paired(weights, context: int, scale: float, least: int = 10, budget: float = 10.0) -> pd.DataFrame:
    """Seconds of a token with attention in loops and by BLAS, in turn, and of the loops' attention alone; a row a round."""
    alone = {}

    def way(attention):
        model = kit.Transformer(weights, attention=attention, linear=WAYS["cached"].linear)

        def take():
            taken = one_token(model, context, scale).iloc[0]
            alone[taken.sum()] = taken["attention"]
            return float(taken.sum())

        take()  # warms up
        return take

    found = measure.rounds({"loops": way("loop"), "blas": way("blas")}, least, budget)
    return pd.DataFrame(found.seconds).assign(attention=[alone[total] for total in found.seconds["loops"]])


def token_table(tokens: pd.DataFrame, machine: Machine, elements: int) -> pd.DataFrame:
    """Median seconds by part and way, tokens a second, and total over the time that reading all f32 weights takes."""
    table = tokens.groupby(level="way", sort=False).median()
    total = table.sum(axis=1)
    table.index = [WAYS[way].label for way in table.index]
    least = machine.seconds_to_read(4 * elements)
    table["rest"] += table.pop("norms")
    table = table.rename(columns=lambda part: f"{part}, s")
    return table.assign(**{"total, s": total.values, "tok/s": 1 / total.values, "times f32 read once": total.values / least})


def kv_speeds(weights, machine: Machine, context: int, scale: float, samples: int = 3) -> pd.DataFrame:
    """Decoded tokens a second by attention and KV type at a context, and what read bandwidth allows each KV type."""
    rows = []
    for kv in KV_TYPES:
        for attention in ("loop", "blas", "sdpa", "chunked", "fused"):
            model = kit.Transformer(weights, attention=attention, kv_dtype=kv)
            seconds = one_token(model, context, scale, samples).sum(axis=1).median()
            cache = model.new_cache(1).bytes_per_position * context * scale
            read = model.trace.frame().query("what == 'linear'")
            nbytes = cache + float((read["nbytes"] * np.where(read["layer"] >= 0, scale, 1.0)).sum())
            rows.append((attention, kv, 1 / seconds, 1 / machine.seconds_to_read(nbytes), nbytes / seconds / 1e9))
    return pd.DataFrame(rows, columns=["attention", "KV cache", "tok/s", "bound tok/s", "GB/s"])
