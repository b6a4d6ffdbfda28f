"""fused beside llama.cpp on the same file: decode, prefill and first token, and the GB/s of one product a format."""

import numpy as np
import pandas as pd
import torch

import kit
from kit.cpu.linear import linear
from kit.gguf.formats import FORMATS
from kit.lab import machine, measure
from kit.lab.llama_cpp import Llama, available
from kit.lab.paths import models_folder
from kit.quants.exactness import random_blocks
from kit.synthetic.write import cached_model

MODELS = ("tinyllama-1.1b", "granite-3.3-2b")
WAYS = ("fused", "fused-int8")
FORMATS_TIMED = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "F16", "BF16", "F32")
HELD, PREFILL = 64, 128  # positions before the decoded token; tokens of the prompt
GOALS = {  # what: (against, at least, hoped for)
    "decode": (0.8, 1.2),
    "prefill": (0.5, 1.0),
    "first token": (1 / 1.5, 1.0),
    "read": (0.85, 0.92),
}


def run(models=MODELS, samples: int = 7) -> pd.DataFrame:
    """One row a measurement: value, unit, GB/s of weights with their share of the read bandwidth, the peer's value, the
    ratio of samples taken in turn (above 1: the kit is faster), and the goals for that ratio (at least, hoped for)."""
    read = max(machine.probe().samples["read_gbps"])
    rows = [row for model in models for row in _model(model, read, samples)]
    rows += [_cached(MODELS[0], read, samples)]
    rows += [_product(format, way, read, samples) for format in FORMATS_TIMED for way in WAYS]
    return pd.DataFrame(rows).set_index("what")


def _row(what, unit, value, seconds=None, nbytes=None, read=None, peer=None, ratio=None, goal=(None, None)) -> dict:
    gbps = nbytes / seconds / 1e9 if nbytes else None
    row = {"what": what, "value": value, "unit": unit, "gbps": gbps, "of_read": gbps / read if gbps else None}
    missed = ratio is not None and goal[0] is not None and ratio < goal[0]
    return row | {"llama_cpp": peer, "ratio": ratio, "least": goal[0], "hoped": goal[1], "missed": "missed" if missed else ""}


def _model(name, read, samples):
    path = cached_model(name, folder=models_folder())
    peer = Llama(path) if available() else None
    for way in WAYS:
        with kit.open(path) as file:
            model = kit.Transformer(kit.Weights(file, kit.HashMap()), linear=way)
            nbytes = sum(info.nbytes for info in file.tensors.values() if info.name != _embedding(model))
            cache = model.new_cache(HELD + 1)
            model.step([5] * HELD, cache)

            def decode(model=model, cache=cache):
                model.trace.clear()
                cache.truncate(HELD)
                model.step([7], cache)

            def prefill(model=model):
                model.trace.clear()
                model.step([5] * PREFILL, model.new_cache(PREFILL))

            for what, ours, tokens, theirs in (
                ("decode", decode, 1, lambda: peer.logits([7], HELD, 1)),
                ("prefill", prefill, PREFILL, lambda: peer.logits([5] * PREFILL, wanted=1)),
            ):
                if peer:
                    peer.logits([5] * HELD, wanted=1)
                pair = measure.compare(ours, theirs if peer else ours, samples, min_sample=0.05)
                seconds = pair.a.median
                yield _row(
                    f"{what}, {way}, {name}", "tok/s", tokens / seconds, seconds, nbytes if tokens == 1 else None, read,
                    tokens / pair.b.median if peer else None, pair.ratio if peer else None, GOALS[what],
                )  # fmt: skip
    if peer:
        peer.close()
    for way in WAYS:
        yield _first_token(name, path, way, samples)


def _embedding(model) -> str:
    """The tensor of which a step reads a row only: none where the output projection is tied to it."""
    return "" if model.config.tied else "token_embd.weight"


def _first_token(name, path, way, samples):
    """Open the file, make the model, one token, close: the file in the page cache, the kernels compiled."""

    def ours():
        with kit.open(path) as file:
            kit.Transformer(kit.Weights(file, kit.HashMap()), linear=way).logits([5])

    def theirs():
        peer = Llama(path)
        peer.logits([5])
        peer.close()

    pair = measure.compare(ours, theirs if available() else ours, min(samples, 5), min_sample=0)
    peer, ratio = (pair.b.median * 1e3, pair.ratio) if available() else (None, None)
    return _row(f"first token, {way}, {name}", "ms", pair.a.median * 1e3, peer=peer, ratio=ratio, goal=GOALS["first token"])


def _cached(name, read, samples):
    """Decoding with every weight in memory as f32, no kernel of the kit: the ratio is to the read bandwidth."""
    with kit.open(cached_model(name, folder=models_folder())) as file:
        weights = kit.Weights(file, kit.HashMap())
        weights.preload()
        model = kit.Transformer(weights)
        cache = model.new_cache(HELD + 1)
        model.step([5] * HELD, cache)

        def decode():
            model.trace.clear()
            cache.truncate(HELD)
            model.step([7], cache)

        seconds = measure.time(decode, samples, min_sample=0.05).median
        nbytes = weights.working_set - weights.nbytes("token_embd.weight") * (not model.config.tied)
    share = nbytes / seconds / 1e9 / read
    return _row(f"decode, f32 cached, {name}", "tok/s", 1 / seconds, seconds, nbytes, read, ratio=share, goal=GOALS["read"])


def _product(format, way, read, samples, rows=4096, columns=4096):
    """One token times matrices that no cache holds."""
    count = max(2, (256 << 20) // FORMATS[format].nbytes(rows * columns))
    pool = random_blocks(format, 4096)
    blocks = np.resize(pool, (rows * columns // FORMATS[format].block_elements, pool.shape[1])).reshape(rows, -1)
    matrices = [blocks.copy() for _ in range(count)]
    x, accuracy = torch.randn(1, columns), "int8" if way == "fused-int8" else "float32"

    def products():
        for matrix in matrices:
            linear(matrix, format, x, accuracy)

    seconds = measure.time(products, samples).median
    gbps = count * blocks.nbytes / seconds / 1e9
    return _row(f"one product, {way}, {format}", "GB/s", gbps, seconds, count * blocks.nbytes, read)
