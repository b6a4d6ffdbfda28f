"""kit beside llama.cpp on the same file, each in a process of its own, in turn: decode, prefill, first token.

The cases "on" one of TIERS mask features of the CPU from both sides; they need a build of llama.cpp (see kit.lab.llama_cpp).
"""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import kit
from benchmarks._turns import Side, serve
from kit.errors import KitError, ModelError
from kit.gguf.trained import TRAINED, fetch
from kit.lab import measure
from kit.lab.llama_cpp import Llama, available
from kit.lab.paths import models_folder
from kit.synthetic.write import cached_model

MODELS = ("tinyllama-1.1b", "granite-3.3-2b", "gemma-3-270m")
SHORT = "granite-3.3-2b, 4 layers"  # where a pass over the whole model takes seconds: the layers are all alike
GOALS = {"fused-int8": (1.0, 1.25), "fused": (0.85, 1.0)}
FAR, PREFILL = {"fused-int8": (0.9, 1.1), "fused": (0.9, 1.1)}, {"fused-int8": (1.2, 1.6), "fused": (0.9, 1.1)}
BOTH = {"fused-int8": (1 / 1.5, 1.0), "fused": (1 / 1.5, 1.0)}
OPENS = "open and first token"
V3 = "+sse4.1,+ssse3,+avx,+avx2,+f16c,+fma,+bmi,+bmi2"
V4 = V3 + ",+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd"
TIERS = {  # a CPU without some of this one's features: (its name and features for Numba, ATen's kernels, llama.cpp's backend)
    "AVX-512 with VNNI": (
        "x86-64-v4", f"{V4},+avx512vnni,+avx512vbmi,+avx512vbmi2", "avx512", "icelake",
    ),
    "AVX-512 without VNNI": ("x86-64-v4", V4, "avx512", "skylakex"),
    "AVX2 with VNNI": ("x86-64-v3", f"{V3},+avxvnni", "avx2", "alderlake"),
    "AVX2": ("x86-64-v3", V3, "avx2", "haswell"),
}  # fmt: skip
LESS = {"fused-int8": (0.8, 1.0), "fused": (0.8, 1.0)}
CASES = {  # what: (positions held, tokens of a pass, KV cache of both, goals a way: at least and hoped for, models)
    "decode": (64, 1, "float16", GOALS, MODELS),
    "decode at 4096": (4095, 1, "float16", FAR, (SHORT,)),
    "decode at 4096, q8_0 cache": (4095, 1, "q8_0", FAR, (SHORT,)),
    "prefill of 512": (0, 512, "float16", PREFILL, (SHORT, "gemma-3-270m")),
    OPENS: (0, 1, "float16", BOTH, ("tinyllama-1.1b",)),
}
for tier in TIERS:
    CASES[f"decode on {tier}"] = (64, 1, "float16", LESS, ("tinyllama-1.1b, 4 layers", "gemma-3-270m"))
    CASES[f"prefill of 512 on {tier}"] = (0, 512, "float16", LESS, (SHORT, "gemma-3-270m"))


def run(only: str = "", samples: int = 6) -> pd.DataFrame:
    """One row a case, way and model: tokens a second of the kit and of llama.cpp, the median ratio of samples taken in turn
    (above 1: the kit is faster) with its interval and goals, and GB/s that memory gave to reads just before and just after.
    ``only``: the cases whose name and model hold this; each takes up to 100 s."""
    wanted = [(case, model) for case, row in CASES.items() for model in row[-1] if only in f"{case}, {model}"]
    return pd.DataFrame([row for case, model in wanted for row in _case(model, case, samples)]).set_index("what")


def _path(model):
    if model in TRAINED:
        return fetch(model)
    name, _, layers = model.removesuffix(" layers").partition(", ")
    return cached_model(name, layers=int(layers) if layers else None, folder=models_folder())


def _case(model, case, samples):
    _, tokens, _, goals, _ = CASES[case]
    try:
        path, environment = _path(model), _environment(case)
    except KitError as error:
        yield {"what": f"{case}, {model}", "missed": str(error)}
        return
    build = Path(os.environ.get("LLAMA_CPP", "")).stem
    beside = f", beside {build}" if build and not environment else ""
    sides = [*goals, "llama.cpp"] if available() else list(goals)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Side("-m", "benchmarks.decode", json.dumps([side, str(path), case]), **environment))
            for side in sides
        ]
        before = _read_gbps()
        rounds = []
        for number in range(samples):  # every other one backwards: who comes first after another engine is slower
            order = range(len(processes)) if number % 2 == 0 else reversed(range(len(processes)))
            taken = {place: processes[place].sample() for place in order}
            rounds.append([taken[place] for place in range(len(processes))])
        seconds = np.array(rounds)
        after = _read_gbps()
    for column, (way, (least, hoped)) in enumerate(goals.items()):
        ratios = seconds[:, -1] / seconds[:, column] if available() else np.full(samples, np.nan)
        low, high = measure.bootstrap_median(ratios)
        yield {
            "what": f"{case}, {way}, {model}{beside}",
            "tok/s": tokens / np.median(seconds[:, column]),
            "llama.cpp": tokens / np.median(seconds[:, -1]) if available() else np.nan,
            "ratio": np.median(ratios), "low": low, "high": high, "least": least, "hoped": hoped,
            "missed": "missed" if np.median(ratios) < least else "",
            "read GB/s before": before, "after": after,
        }  # fmt: skip


def _environment(case) -> dict[str, str]:
    """The variables that keep both sides from what a CPU of this tier lacks; ModelError without a llama.cpp for it."""
    tier = case.partition(" on ")[2]
    if not tier:
        return {}
    name, features, aten, backend = TIERS[tier]
    build = Path(os.environ.get("LLAMA_CPP", "libggml-cpu")).with_name(f"libggml-cpu-{backend}.so")
    if not build.exists():
        raise ModelError(f"no {build}: set LLAMA_CPP to a backend of a llama.cpp built with -DGGML_CPU_ALL_VARIANTS=ON")
    products = {"ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": aten.upper()}
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "LLAMA_CPP": str(build)} | products


def _read_gbps() -> float:
    numbers = torch.ones(2**27)
    return numbers.nbytes / measure.time(numbers.sum, samples=3).median / 1e9


def side(arguments):
    """What a process of this benchmark runs: a pass of a case, by the kit or by llama.cpp."""
    return _passes(*json.loads(arguments))


def _passes(side, path, case):
    held, tokens, kv, *_ = CASES[case]
    if case == OPENS:
        return (lambda: _theirs(path)) if side == "llama.cpp" else (lambda: _ours(path, side))
    file = kit.open(path)
    held = min(held, kit.Transformer(kit.Weights(file)).max_context - tokens)
    if side == "llama.cpp":
        peer = Llama(path, context=held + tokens, kv=kv)
        if held:
            peer.logits([5] * held, wanted=1)
        return lambda: peer.logits([7] * tokens, held, 1)
    model = kit.Transformer(kit.Weights(file), linear=side, kv_dtype=kv)
    cache = model.new_cache(held + tokens)
    if held:
        model.step([5] * held, cache)

    def one():
        model.trace.clear()
        cache.truncate(held)
        model.step([7] * tokens, cache)

    return one


def _ours(path, side):
    with kit.open(path) as file:
        kit.Transformer(kit.Weights(file), linear=side).logits([5])


def _theirs(path):
    peer = Llama(path)
    peer.logits([5])
    peer.close()


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
