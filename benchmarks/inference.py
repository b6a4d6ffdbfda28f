"""Inference: the cost of Python and of the trace in a token, prefill against peak FLOP/s, attention, projections."""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

import kit
from benchmarks._files import cached_model
from kit.lab.measuring import measure
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize
from kit.model.attention import ATTENTION
from kit.model.linear import LINEAR
from kit.system.paths import models_folder
from kit.trace import Trace

MODEL, PREFILL = "tinyllama-1.1b", 128


class _Silent(Trace):
    """A trace that records nothing."""

    def add(self, *args, **kwargs):
        pass


def run(layers: int | None = None) -> pd.DataFrame:
    """One row a measurement: value, unit, what it is compared with, their ratio and the goal for it.

    Takes tinyllama-1.1b in full (4.4 GB of float32 weights) unless ``layers`` says fewer.
    """
    path = cached_model(MODEL, layers=layers, folder=models_folder())
    with kit.open(path) as file, tempfile.TemporaryDirectory() as folder:
        weights = kit.Weights(file, kit.HashMap())
        weights.preload()
        rows = [*_token(weights, Path(folder)), _prefill(weights), *_projections(weights)]
    rows += _attention()
    return pd.DataFrame(rows, columns=["what", "value", "unit", "against", "ratio", "goal"]).set_index("what")


def _stepper(model):
    """A function that decodes one token at position 64, the same at every call."""
    cache = model.new_cache(65)
    model.step([5] * 64, cache)
    mark = cache.mark()

    def step():
        model.trace.clear()
        cache.back_to(mark)
        model.step([7], cache)

    return step


def _token(weights, folder):
    """A decoded token beside its products alone, and the time that remains without their arithmetic."""
    model = kit.Transformer(weights)
    step = _stepper(model)
    matrices = [weights[name] for name, shape in model.config.tensors().items() if len(shape) == 2][1:]
    inputs = {width: torch.rand(1, width) for width in {matrix.shape[1] for matrix in matrices}}

    def products():
        for matrix in matrices:
            inputs[matrix.shape[1]] @ matrix.T

    pair = measure.compare(products, step, samples=9)
    nbytes = sum(matrix.nbytes for matrix in matrices)
    gbps = nbytes / pair.median("b") / 1e9
    yield "decode, float32 cached", 1 / pair.median("b"), "tok/s", f"{gbps:.1f} GB/s; the bare products", 1 / pair.ratio, ""
    traced, silent = (_stepper(_hollow(weights, folder, trace)) for trace in (Trace(), _Silent()))
    hollow = measure.compare(silent, traced, samples=15)
    share = hollow.median("b") / pair.median("b")
    yield "Python and dispatch a token", hollow.median("b") * 1e3, "ms", "a decoded token", share, "<= 0.05"
    spans = hollow.median("b") - hollow.median("a")
    yield "Trace a token", spans * 1e3, "ms", "a decoded token", spans / pair.median("b"), "<= 0.02"


def _hollow(weights, folder, trace):
    """A model that makes the same calls on matrices of 64 x 64, to measure the cost of the calls."""
    source = GEOMETRIES[MODEL]
    vocabulary = replace(source.vocabulary, size=512)
    sizes = dict(vocabulary=vocabulary, hidden_size=64, intermediate_size=64, head_dim=2)
    layers = weights.file.metadata["llama.block_count"]
    path = synthesize(folder / "hollow.gguf", replace(source, name="hollow", **sizes), "F32", layers)
    hollow = kit.Weights(kit.open(path), kit.HashMap(), trace=trace)
    hollow.preload()
    return kit.Transformer(hollow)


def _prefill(weights):
    model = kit.Transformer(weights)
    names = [name for name, shape in model.config.tensors().items() if len(shape) == 2][1:]
    elements = [weights.info(name).elements for name in names]
    flops = 2 * (PREFILL * sum(elements[:-1]) + elements[-1])  # the output head sees the last token alone
    square = torch.rand(2048, 2048)
    pair = measure.compare(lambda: square @ square, lambda: model.step([5] * PREFILL, model.new_cache()), samples=7)
    peak, got = 2 * 2048**3 / pair.median("a") / 1e9, flops / pair.median("b") / 1e9
    name = f"prefill of {PREFILL}, float32 cached"
    return name, PREFILL / pair.median("b"), "tok/s", f"{got:.0f} of {peak:.0f} GFLOP/s", got / peak, ">= 0.6"


def _projections(weights):
    """One projection of one token by each variant, GB/s of the weights that it reads."""
    name = "blk.0.ffn_gate.weight"
    x = torch.rand(1, weights.info(name).shape[1])
    for variant, linear in LINEAR.items():
        timed = functools.partial(linear.apply, weights, name, x)
        pair = measure.compare(lambda: LINEAR["matmul"].apply(weights, name, x), timed, samples=5)
        gbps = linear.nbytes(weights, name) / pair.median("b") / 1e9
        yield f"ffn_gate of one token, {variant}", gbps, "GB/s", "time of matmul", pair.ratio, ""


def _attention(context: int = 1024):
    """One query over ``context`` positions of tinyllama's heads by each variant."""
    geometry = GEOMETRIES[MODEL]
    q = torch.randn(geometry.heads, 1, geometry.head_dim)
    k, v = (torch.randn(geometry.kv_heads, context, geometry.head_dim) for _ in "kv")
    for name, variant in ATTENTION.items():
        timed = functools.partial(variant, q, k, v, 0.125)
        pair = measure.compare(lambda: ATTENTION["blas"](q, k, v, 0.125), timed, samples=3 if name == "python" else 7)
        gbps = (k.nbytes + v.nbytes) / pair.median("b") / 1e9
        yield f"attention over {context}, {name}", gbps, "GB/s", "time of blas", pair.ratio, ""
