"""Predictions of kit explain against measurements: three files, eight sizes of memory, an LRU and a pinned set."""

from collections import defaultdict

import numpy as np
import pandas as pd

import kit
from benchmarks._files import cached_model
from kit.gguf.trained import TRAINED
from kit.lab.explaining.measured_ways import measure
from kit.lab.measuring import machine
from kit.lab.predicting.measured import Cost, measure_costs
from kit.lab.predicting.order import order_of
from kit.lab.predicting.ways import BLOCKS, Way, predict, used_tensors
from kit.system.paths import models_folder

GENERATED = {"tinyllama-1.1b": 4, "granite-3.3-8b": 1}  # layers of each
SHARES = (0.02, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8, 1.0)  # of the weights in float32
DTYPE = "float32"
_TOKENS = 3
GOALS = {"median": 1.10, "worst": 1.25}  # factors between predicted and measured, either way


def run(only: str = "", samples: int = 3) -> pd.DataFrame:
    """One row a file, memory and policy: seconds a token predicted and measured, the median of their factors in as many rounds,
    in which costs are the mean of those before and after; then the median and the worst of the factors beside their goals.

    ``only``: the files whose name holds this.
    """
    paths = [cached_model(name, "Q4_K_M", n, folder=models_folder()) for name, n in GENERATED.items() if only in name]
    paths += [path for name in TRAINED if only in name and (path := models_folder() / TRAINED[name].file).exists()]
    rows = [row for path in paths for row in _rows(path, max(3, samples))]
    factors = np.array([row["factor"] for row in rows])
    off = np.maximum(factors, 1 / factors)  # 1 at least
    for word, factor in {"median": float(np.median(off)), "worst": float(off.max())}.items():
        what = f"{GOALS[word]:.2f} over the {word} factor of {len(off)} predictions"
        rows.append({"what": what, "factor": factor, "ratio": GOALS[word] / factor, "least": 1.0})
    return pd.DataFrame(rows).set_index("what")


def _rows(path, rounds):
    here, taken = machine.probe(), defaultdict(list)
    with kit.open(path) as file:
        order = order_of(file, _TOKENS + 1)
        parts = used_tensors(file, order)
        whole = sum(4 * part.elements for part in parts.values())
        groups = [[Way(policy, int(share * whole)) for policy in ("LRU", "Pinned")] for share in SHARES]
        for _ in range(rounds):  # memory is faster in one minute than in the next
            order = order_of(file, _TOKENS + 1)  # with the cost of a token from blocks
            before = measure_costs(file, order.names, dtypes=(DTYPE,))
            for group in ([BLOCKS], *groups):
                seconds = {way: measure(way, file, order, _TOKENS).seconds for way in group}
                after = measure_costs(file, order.names, dtypes=(DTYPE,))
                costs, before = _between(before, after), after
                for way, took in seconds.items():
                    taken[way].append((predict(way, parts, order, costs, here).seconds, took))
    for way, pairs in taken.items():
        predicted, seconds = np.transpose(pairs)
        yield {"what": f"{path.stem[:24]}, {way.label}", "predicted": np.median(predicted), "seconds": np.median(seconds),
               "factor": np.median(predicted / seconds), "factors": [*(predicted / seconds)]}  # fmt: skip


def _between(before: dict, after: dict) -> dict:
    """Kind -> the mean of what its uses cost before and after something else."""

    def mean(some, other):
        return {how: (seconds + other[how]) / 2 for how, seconds in some.items()}

    return {kind: Cost(*map(mean, vars(cost).values(), vars(after[kind]).values())) for kind, cost in before.items()}
