"""kit compared with llama.cpp on the same file, each in a process of its own, in turn: decode, prefill, first token.

llama.cpp is that of the wheel (AVX2). Beside it stand the build that LLAMA_CPP names, as llama.cpp's best for this CPU, and
the ik_llama.cpp that IK_LLAMA_CPP names. The cases "on" one of TIERS mask features of the CPU from both sides; they need a
build of llama.cpp. Of a trained model each row has its KL divergence from float32 beside its speed, from a record of the same
file and arithmetic where there is one. All sides read the file in one state of the page cache, which each row has.
"""

import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd

import kit
from benchmarks import _files, quality
from benchmarks._engines import IK, IkLlama, no_ik
from benchmarks._files import cached_model, fetch
from benchmarks._turns import LEAST, alternately, running, serve, times
from kit.errors import KitError, ModelError
from kit.gguf.trained import TRAINED
from kit.lab.engines.llama_cpp import ENVIRONMENT, Llama, available
from kit.lab.engines.table import OURS
from kit.model.linear import LINEAR
from kit.system.paths import models_folder

REAL = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")  # trained, of sizes that people run
FULL = ("smollm2-135m", "gemma-3-270m", *REAL)
MODELS = ("tinyllama-1.1b", "granite-3.3-2b", *FULL)
HYBRID = "qwen3.5-2b, 4 layers"  # three delta nets and one that attends, as in the whole model
MIXTURE = "qwen3-30b-a3b, 2 layers"  # of 128 experts each, of which a token uses eight
SHORT = "granite-3.3-2b, 4 layers"  # where a pass over the whole model takes seconds: the layers are all alike
GOALS = {"fused": (0.85, 1.0), "fused-int16": (0.95, 1.1), "fused-int8": (1.0, 1.25)}  # the exact way comes first
FAR = {"fused": (0.9, 1.1), "fused-int16": (0.9, 1.1), "fused-int8": (0.9, 1.1)}
PREFILL = {"fused": (0.9, 1.1), "fused-int16": (1.0, 1.3), "fused-int8": (1.2, 1.6)}
HYBRID_GOALS = {"fused": (1.0, 1.0), "fused-int8": (1.15, 1.25)}
BOTH = {"fused": (1 / 1.5, 1.0), "fused-int8": (1 / 1.5, 1.0)}
_READS, _MULTIPLIES, _STARTS = 2e10, 1.2e11, 5.0  # bytes per second of a token, of a prompt's weights by its tokens; seconds
_PATIENCE = 400.0  # seconds of a case, beyond which it has two samples
_ROUNDS = 4096  # passes of a model whose states cannot be cut, before it begins again
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
LESS = {"fused": (0.8, 1.0), "fused-int8": (0.8, 1.0)}
CASES = {  # what: (positions held, tokens of a pass, KV cache of both, goals a way: at least and hoped for, models)
    "decode": (64, 1, "float16", GOALS, MODELS),
    "decode of a mixture": (64, 1, "float16", GOALS, ("qwen3-30b-a3b, 8 layers",)),
    "decode of a hybrid": (64, 1, "float16", HYBRID_GOALS, (HYBRID,)),
    "decode at 4096": (4095, 1, "float16", FAR, (SHORT, *REAL)),
    "decode at 4096, q8_0 cache": (4095, 1, "q8_0", FAR, (SHORT,)),
    "decode at 8192": (8191, 1, "float16", FAR, FULL),
    "prefill of 128": (0, 128, "float16", PREFILL, REAL),
    "prefill of 512": (0, 512, "float16", PREFILL, (SHORT, *FULL)),
    "prefill of 4096": (0, 4096, "float16", PREFILL, FULL),
    "prefill of 512 of a mixture": (0, 512, "float16", PREFILL, (MIXTURE,)),
    "prefill of 512 of a hybrid": (0, 512, "float16", HYBRID_GOALS, (HYBRID,)),
    OPENS: (0, 1, "float16", BOTH, ("tinyllama-1.1b",)),
}
for tier in TIERS:
    CASES[f"decode on {tier}"] = (64, 1, "float16", LESS, ("tinyllama-1.1b, 4 layers", "gemma-3-270m"))
    CASES[f"prefill of 512 on {tier}"] = (0, 512, "float16", PREFILL, (SHORT, "gemma-3-270m", *REAL))


PEER = "llama.cpp"  # the ratios are of its speed
ENGINE_OF = {row.product.linear: name for name, row in OURS.items()} | {
    IK: IK
}  # of kit.lab.explaining.peers; other sides are llama.cpp


def run(only: str = "", samples: int = 6, pages: str = "large") -> pd.DataFrame:
    """All tables of ``parts`` as one."""
    return pd.concat(parts(only, samples, pages))


def parts(only: str = "", samples: int = 6, pages: str = "large") -> Iterator[pd.DataFrame]:
    """A table a case and model, a row a way or peer; ``only``: the cases whose name and model hold this; ``pages``: the state
    of the file, of benchmarks._files.STATES.

    Columns: tokens a second; the median ratio to llama.cpp's of samples taken in turn (above 1: faster than it) with its
    interval and goals, and to the fastest peer's; KL divergence from float32 in nats and the share of tokens with the same most
    probable one, of a trained model with the case's KV cache (generated weights have no quality to lose); the state of the
    file just before and just after.
    """
    for case, model in [(case, model) for case, row in CASES.items() for model in row[-1] if only in f"{case}, {model}"]:
        yield pd.DataFrame(_case(model, case, samples, pages)).set_index("what")


def path_of(model: str):
    """Where the file of a model of CASES lies; fetched or generated on first use."""
    if model in TRAINED:
        return fetch(model)
    name, _, layers = model.removesuffix(" layers").partition(", ")
    return cached_model(name, layers=int(layers) if layers else None, folder=models_folder())


def _case(model, case, samples, pages):
    _, tokens, _, goals, _ = CASES[case]
    try:
        whole, sides = path_of(model), _sides(case)
    except KitError as error:
        yield {"what": f"{case}, {model}", "missed": str(error)}
        return
    if _expected(whole, case, len(sides), samples) > _PATIENCE:
        samples = min(samples, 2)
    expected = _expected(whole, case, len(sides), samples)
    print(f"{case}, {model}: {samples} samples, about {expected:.0f} s on an idle machine", flush=True)
    with ExitStack() as stack:
        path = stack.enter_context(_files.lying(whole, pages))
        command = "-m", "benchmarks.decode"
        words = {side: (*command, json.dumps([side, str(path), case, pages])) for side in sides}
        processes = stack.enter_context(running({side: (words[side], sides[side]) for side in sides}))
        before = _files.state(path)
        seconds = alternately(processes, samples)
        after = _files.state(path)
    best = min((name for name in sides if name not in goals), key=lambda name: np.median(seconds[name]), default=None)
    for side, environment in sides.items():
        compared = times(seconds[PEER] if PEER in sides else np.full(samples, np.nan), seconds[side])
        least, hoped = goals.get(side, (None, None))
        yield {
            "what": f"{case}, {side}, {model}", "tok/s": tokens / np.median(seconds[side]), **compared,
            "least": least, "hoped": hoped,
            "of the fastest peer": np.median(seconds[best] / seconds[side]) if best else np.nan,
            "missed": "missed" if least and compared["ratio"] < least else "",
            **(_quality(whole, side, case, environment) if model in TRAINED and case != OPENS else {}),
            "pages": pages, **before, **{f"{what}, after": value for what, value in after.items()},
        }  # fmt: skip


def _expected(path, case, sides, samples) -> float:
    """Seconds of a case without its quality, roughly: a token reads the file, a prompt is bound by arithmetic."""
    held, tokens, *_ = CASES[case]
    size = path.stat().st_size
    one = tokens * size / (_READS if tokens == 1 else _MULTIPLIES)
    return sides * (_STARTS + held * size / _MULTIPLIES + 2 * one + samples * (one + LEAST * (one < LEAST)))


def _sides(case) -> dict[str, dict[str, str]]:
    """The ways of the kit and the peers of a case, the exact way first, with the variables of their processes."""
    ways, environment, build = CASES[case][3], _environment(case), os.environ.get("LLAMA_CPP", "")
    if environment:
        return dict.fromkeys(ways, environment) | {PEER: environment | ENVIRONMENT}
    sides, peers = {way: {} for way in ways}, {}
    if build and importlib.util.find_spec("xllamacpp") is not None:
        peers = {PEER: {"LLAMA_CPP": ""}, f"{PEER} {Path(build).stem.removeprefix('libggml-cpu-')}": {}}
    elif available():
        peers = {PEER: {}}
    peers |= {} if no_ik() else {IK: {}}
    return sides | {peer: environment | ENVIRONMENT for peer, environment in peers.items()}


def _quality(path, side, case, environment) -> dict[str, float]:
    """KL divergence with its error and the share of equal tokens, in the pass and with the KV cache that are timed."""
    _, tokens, kv, *_ = CASES[case]
    engine, name = ENGINE_OF.get(side, "llama.cpp, mmap"), "prompt" if tokens > 1 else "token by token"
    return quality.told(path, engine, name, tuple(environment.items()), kv=kv)


def _environment(case) -> dict[str, str]:
    """The variables that keep both sides from what a CPU of this tier lacks; ModelError without a llama.cpp for it."""
    tier = case.partition(" on ")[2]
    if not tier:
        return {}
    build = Path(os.environ.get("LLAMA_CPP", "libggml-cpu")).with_name(f"libggml-cpu-{TIERS[tier][-1]}.so")
    if not build.exists():
        raise ModelError(f"no {build}: set LLAMA_CPP to a backend of a llama.cpp built with -DGGML_CPU_ALL_VARIANTS=ON")
    return masked(tier) | {"LLAMA_CPP": str(build)}


def masked(tier: str) -> dict[str, str]:
    """The variables that keep the kit and torch from what a CPU of this tier lacks."""
    name, features, aten, _ = TIERS[tier]
    products = {"ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": aten.upper()}
    products |= {"ONEDNN_MAX_CPU_ISA": "AVX2"} if aten == "avx2" else {}
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features} | products


def side(arguments):
    """What a process of this benchmark runs: a pass of a case, by the kit or by llama.cpp."""
    return _passes(*json.loads(arguments))


def _passes(side, path, case, pages="large"):
    held, tokens, kv, *_ = CASES[case]
    if case == OPENS:
        return (lambda: _ours(path, side)) if side in LINEAR else (lambda: _theirs(path, side))
    model = kit.Transformer(kit.Weights(kit.open(path, pages)), **({"linear": side, "kv_dtype": kv} if side in LINEAR else {}))
    held = min(held, model.max_context - tokens)
    cut = not held or model.new_cache(1).can_be_cut
    room = held + tokens * (1 if cut else _ROUNDS)
    evaluate = _kits(model, room) if side in LINEAR else _peers(IkLlama if side == IK else Llama, path, room, kv)

    def places():
        while True:
            if held:
                evaluate([5] * held, 0)
            yield from itertools.repeat(held) if cut else range(held, room, tokens)  # a state goes on from pass to pass

    place = places()
    ids = list(range(7, 7 + tokens))  # a mixture sends each to experts of its own
    return lambda: evaluate(ids, next(place))


def _kits(model, room):
    cache = model.new_cache(room)

    def evaluate(ids, held):
        model.trace.clear()
        cache.truncate(held)
        model.step(ids, cache)

    return evaluate


def _peers(make, path, room, kv):
    peer = make(path, room, kv)
    return lambda ids, held: peer.logits(ids, held, 1)


def _ours(path, side):
    with kit.open(path) as file:
        kit.Transformer(kit.Weights(file), linear=side).logits([5])


def _theirs(path, side):
    peer = (IkLlama if side == IK else Llama)(path)
    peer.logits([5])
    peer.close()


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
