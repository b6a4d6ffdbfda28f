"""kit.nn.Linear of 1 to 64 tokens compared with torch's own float32 layer and its int8 and int4 weight-only products."""

import sys

import numpy as np
import pandas as pd
import torch

import kit
from benchmarks._files import cached_model
from benchmarks._turns import alternately, running, serve, times
from kit.lab.engines.llama_cpp import ENVIRONMENT
from kit.system.paths import models_folder

TOKENS = (1, 4, 16, 64)
PEER = "torch float32"
GROUP = 128  # weights that share a scale in torch's int4 product
MATRICES = ("ffn_gate.weight", "ffn_up.weight")  # of each of the four layers: more than a cache holds


def run(only: str = "", samples: int = 5) -> pd.DataFrame:
    """One row a number of tokens and way: milliseconds of all matrices, the median ratio to torch's float32 layer of samples in
    turn (above 1: faster than it) with its interval, and the error beside that layer, rms over rms; 1 is asked of the kit's
    ratios. ``only``: the rows whose name holds this."""
    path, rows = str(cached_model("granite-3.3-8b", layers=4, folder=models_folder())), []
    exact, *others = (_products(path, way, MATRICES[:1])[0](_input(path, 16)) for way in (PEER, *WAYS))
    errors = {way: float((y - exact).norm() / exact.norm()) for way, y in zip(WAYS, others, strict=True)}
    for tokens in (count for count in TOKENS if any(only in f"batch of {count}, {way}" for way in WAYS)):
        command = "-m", "benchmarks.batches", path
        each = {way: ((*command, way, str(tokens)), ENVIRONMENT if theirs else {}) for way, theirs in WAYS.items()}
        with running(each) as sides:
            seconds = alternately(sides, samples)
        for way, taken in seconds.items():
            row = {"what": f"batch of {tokens}, {way}", "ms": 1e3 * np.median(taken), **times(seconds[PEER], taken)}
            row["error"] = errors[way]
            rows.append(row | ({"least": 1.0, "hoped": 1.0} if way.startswith("blocks") else {}))
    return pd.DataFrame(rows).set_index("what")


def _int8(weight):
    """bfloat16 activations, a scale a row."""
    scale = weight.abs().amax(1) / 127
    codes, scale = (weight / scale[:, None]).round().to(torch.int8), scale.bfloat16()
    return lambda x: torch._weight_int8pack_mm(x.bfloat16(), codes, scale)


def _int4(weight):
    """bfloat16 activations, a scale and a zero for GROUP weights."""
    groups = weight.unflatten(1, (-1, GROUP))
    least, scale = groups.amin(-1), (groups.amax(-1) - groups.amin(-1)) / 15
    codes = ((groups - least[..., None]) / scale[..., None]).round().clamp(0, 15).int().flatten(1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    affine = torch.stack([scale, least + 8 * scale], -1).transpose(0, 1).contiguous().bfloat16()  # codes count from -8
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x.bfloat16(), packed, GROUP, affine)


def _float32(weight):
    return lambda x: torch.nn.functional.linear(x, weight)


WAYS = {"blocks": None, "blocks-int8": None, PEER: _float32, "torch int8": _int8, "torch int4": _int4}


def _products(path, way, ends=MATRICES):
    """x -> x W^T of each matrix whose name has one of these ends."""
    file = kit.open(path)
    names = [name for name in file.tensors if name.endswith(ends)]
    if WAYS[way] is None:
        return [kit.nn.Linear(file, name, way) for name in names]
    return [WAYS[way](kit.dequantize(file.blocks(name), file.tensors[name].qtype)) for name in names]


def _input(path, tokens):
    with kit.open(path) as file:
        columns = next(info.shape[1] for name, info in file.tensors.items() if name.endswith(MATRICES))
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(0))


def side(path, way, tokens):
    """What a process of this benchmark runs: so many tokens times each matrix, in turn."""
    products, x = _products(path, way), _input(path, int(tokens))

    @torch.inference_mode()
    def one():
        for product in products:
            product(x)

    return one


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
