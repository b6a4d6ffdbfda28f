"""Where a token's time goes: microseconds of each part of a decode of trained models (and GB/s of its weights).

The parts are the spans of kit.Trace, summed over the layers; each figure is the median of the tokens.
"""

from collections import Counter

import numpy as np
import pandas as pd

import kit
from kit.gguf.trained import TRAINED, fetch

HELD = 64  # positions before the token


def run(only: str = "", tokens: int = 40) -> pd.DataFrame:
    """One row a model, way and part: us a token, GB/s of its weights. ``only``: models whose name holds this."""
    rows = [row for name in TRAINED if only in name for way in ("fused", "fused-int8") for row in _rows(name, way, tokens)]
    return pd.DataFrame(rows).set_index(["model", "way", "part"])


def _rows(name, way, tokens):
    with kit.open(fetch(name)) as file:
        model = kit.Transformer(kit.Weights(file), linear=way, kv_dtype="float16")
        cache = model.new_cache(HELD + 1)
        model.step([5] * HELD, cache)
        each = []
        for _ in range(1 + tokens):  # the first one is recorded
            model.trace.clear()
            cache.truncate(HELD)
            model.step([7], cache)
            us, nbytes = Counter(), Counter()
            for span in model.trace.spans:
                part = span.tensor.removesuffix(".weight").rpartition(".")[2] if span.what == "linear" else span.what
                us[part] += (span.end - span.start) / 1e3
                nbytes[part] += span.nbytes * (span.what == "linear")
            each.append(us)
    median = {part: np.median([us[part] for us in each[1:]]) for part in us}
    for part, took in sorted(median.items(), key=lambda item: -item[1]):
        yield {"model": name, "way": way, "part": part, "us": took, "GB/s": nbytes[part] / took / 1e3 or None}
