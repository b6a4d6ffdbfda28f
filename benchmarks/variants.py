"""This kit compared with an older checkout (KIT_OLD=folder) and with lower SIMD tiers, in alternating processes."""

import json
import os
import sys
from itertools import product

import numpy as np

CASES = [(what, name, 1) for what in ("float32", "int8") for name in ("Q4_K", "Q6_K", "Q8_0")]
CASES += [("fused", "prefill", 128), ("fused-int8", "prefill", 128)]
CASES += [(f"to {dtype}", name, 0) for dtype in ("bfloat16", "float16") for name in ("Q4_K", "Q8_0")]
MODEL = "granite-3.3-2b"  # its first four layers
LEAST = 0.95


def run(only: str = "", samples: int = 5):
    """One row a case and variant: milliseconds of both, and the median ratio (above 1: this one is faster), its interval, and
    what it is to be at least where the other is older. ``only``: the rows whose name holds this."""
    import pandas as pd

    from benchmarks._files import cached_model
    from benchmarks._turns import alternately, running, times
    from kit.cpu.simd import available
    from kit.system.paths import ROOT, models_folder

    path, rows = str(cached_model(MODEL, layers=4, folder=models_folder())), []
    others = {f"the {tier} tier": {"PYTHONPATH": str(ROOT), "KIT_SIMD": tier} for tier in available()[1:]}
    if "KIT_OLD" in os.environ:
        others["the old"] = {"PYTHONPATH": os.environ["KIT_OLD"]}
    for case, (other, environment) in product(CASES, others.items()):
        what = f"{case[1]}, {case[0]}, times {other}"
        if only not in what:
            continue
        command = __file__, json.dumps([*case, path])
        with running({"ms": (command, {"PYTHONPATH": str(ROOT)}), "other's ms": (command, environment)}) as sides:
            seconds = alternately(sides, samples)
        row = {"what": what, **times(seconds["other's ms"], seconds["ms"])}
        row |= {name: 1e3 * np.median(taken) for name, taken in seconds.items()}
        rows.append(row | ({"least": LEAST, "hoped": 1.0} if other == "the old" else {}))
    return pd.DataFrame(rows).set_index("what")


def side(case):
    """What a process of this benchmark runs: the case once, with the kit that this process imports."""
    import torch

    import kit

    way, what, tokens, path = json.loads(case)
    if what == "prefill":
        model = kit.Transformer(kit.Weights(kit.open(path), kit.HashMap()), linear=way)
        return lambda: model.step([5] * tokens, model.new_cache(tokens))
    if not tokens:
        blocks, dtype = np.zeros((12288, 4096 // 256 * {"Q4_K": 144, "Q8_0": 272}[what]), np.uint8), way.removeprefix("to ")
        out = torch.ones(12288, 4096).to(getattr(torch, dtype))
        return lambda: kit.dequantize(blocks, what, dtype, out=out)
    from kit.cpu.linear import linear

    sizes = {"Q4_K": (144, 256), "Q6_K": (210, 256), "Q8_0": (34, 32)}[what]
    rows, columns, random = 4096, 4096, np.random.default_rng(0)
    blocks = random.integers(0, 60, (rows, columns // sizes[1] * sizes[0]), np.uint8)
    matrices, x = [blocks.copy() for _ in range(1 + (256 << 20) // blocks.nbytes)], torch.randn(1, columns)
    return lambda: [linear(matrix, what, x, way) for matrix in matrices]


if __name__ == "__main__":
    from _turns import serve

    serve(side(*sys.argv[1:]))
