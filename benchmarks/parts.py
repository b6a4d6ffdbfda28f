"""Where a token's time goes: microseconds of each part of a pass (and GB/s of its weights, or GFLOP/s).

The parts are the spans of kit.Trace, summed over the layers, and the rest; together they are "token", the kit's own pass. Under
transformers come "transformers", its code before a pass, and "engine", the kit's around one. Each figure is the median of the
passes.
"""

import functools
import time
from collections import Counter

import numpy as np
import pandas as pd
import torch

import kit
import kit.hf
from benchmarks import decode
from kit.gguf.trained import TRAINED
from kit.lab.measuring import pages

MODELS = decode.MODELS
HELD, PROMPT = 64, 512  # positions before the token; tokens of a prompt
_HEAD = "token_embd.weight"  # the head of these models, which multiplies one token of a prompt
_AROUND = ("transformers", "engine")  # a pass
_WITHIN = ("access", "read", "dequantize")  # other parts


def run(only: str = "", tokens: int = 40, prompts: int = 5) -> pd.DataFrame:
    """One row a model of benchmarks/decode.py, way and part: us a pass, its share of the pass, MB and GB/s of its weights for a
    token, GFLOP/s for a prompt. What a plain map and a copy read in the same minute comes first ("read alone").
    Trained models run under transformers as well. ``only``: models whose name holds this."""
    rows = []
    for name in filter(lambda name: only in name, MODELS):
        path = decode.path_of(name)
        with kit.open(path) as file:
            found = pages.speed(file)
        for part, gbps in {"its map": found.gbps, "a copy": found.memory_gbps}.items() if found else ():
            rows.append({"model": name, "way": "read alone", "part": part, "GB/s": gbps})
        for way in ("fused", "fused-int8"):
            rows += _rows(name, path, way, 1, _alone(path, way, tokens))
        if name in TRAINED:
            rows += _rows(name, path, "kit.hf", 1, _under_transformers(path, HELD, 2 + tokens)[1:])
            prompt = _under_transformers(path, PROMPT, 1, 1 + prompts)
            rows += _rows(name, path, f"kit.hf, prompt of {PROMPT}", PROMPT, prompt)
    return pd.DataFrame(rows).set_index(["model", "way", "part"])


def _alone(path, way, tokens):
    """The spans of each pass of one token, the first of which is recorded."""
    with kit.open(path) as file:
        model = kit.Transformer(kit.Weights(file), linear=way, kv_dtype="float16")
        cache, passes = model.new_cache(HELD + 1), []
        model.step([5] * HELD, cache)
        mark = cache.mark()
        for _ in range(1 + tokens):
            model.trace.clear()
            cache.back_to(mark)
            model.step([7], cache)
            passes.append(model.trace.spans[:])
    return passes


def _under_transformers(path, prompt, tokens, times=1):
    """The spans of each pass of ``generate``, so many times."""
    model, _ = kit.hf.load(path, trace=kit.Trace())
    engine, trace, passes, ended = model.forward, model.forward._own.trace, [], 0

    @functools.wraps(engine)
    def forward(*args, **kwargs):
        nonlocal ended
        trace.clear()
        start = time.perf_counter_ns()
        output = engine(*args, **kwargs)
        trace.add("transformers", ended, start)
        ended = time.perf_counter_ns()
        own = next(span for span in trace.spans if span.what == "token")
        trace.add("engine", 0, (ended - start) - (own.end - own.start))
        passes.append(trace.spans[:])
        return output

    model.forward = forward
    for _ in range(times):
        ended = time.perf_counter_ns()
        model.generate(torch.full((1, prompt), 5), max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    return passes


def _rows(name, path, way, tokens, passes):
    each = []
    with kit.open(path) as file:
        elements = {tensor: info.elements * tokens for tensor, info in file.tensors.items()} | {_HEAD: 0}
    for spans in passes[1:]:
        us, nbytes, flop = Counter(), Counter(), Counter()
        for span in (span for span in spans if span.what not in _WITHIN):
            part = span.tensor.removesuffix(".weight").rpartition(".")[2] if span.what == "linear" else span.what
            us[part] += (span.end - span.start) / 1e3
            if span.what == "linear":
                nbytes[part] += span.nbytes
                flop[part] += 2 * elements[span.tensor]
        us["rest"] = 2 * us["token"] - sum(took for part, took in us.items() if part not in _AROUND)
        each.append(us)
    median = {part: np.median([us[part] for us in each]) for part in each[0]}
    for part, took in sorted(median.items(), key=lambda item: -item[1]):
        rates = (nbytes[part] / took / 1e3 or None, None) if tokens == 1 else (None, flop[part] / took / 1e3 or None)
        share, read = took / median["token"], nbytes[part] / 1e6 if tokens == 1 and nbytes[part] else None
        yield {"model": name, "way": way, "part": part, "us": took, "share": share, "MB": read, "GB/s": rates[0],
               "GFLOP/s": rates[1]}  # fmt: skip
