"""The first dequantize of a process: imports, and compiling without and with the cache on disk."""

import json
import os
import subprocess
import sys
import tempfile

import pandas as pd

from benchmarks._files import cached_model
from kit.system.paths import models_folder

GOAL = 0.6  # seconds from nothing to the first numbers of a file, compiled kernels present, at most
NAMES = ("Q4_K", "Q6_K", "F32", "IQ3_S")

_CHILD = """
import json, sys, time
times, started = {}, time.perf_counter()
def took(what):
    global started
    times[what], started = time.perf_counter() - started, time.perf_counter()
import numpy; took("import numpy")
import kit; kit.open(sys.argv[1]); took("import kit, open a file")
from kit.gguf.formats import FORMATS; import kit.quants; kit.quants.dequantize; took("import what dequantizes")
for name in sys.argv[2:]:
    blocks = numpy.zeros(FORMATS[name].block_bytes * 256, numpy.uint8)
    for turn in ("first", "second"):
        started = time.perf_counter()
        kit.dequantize(blocks, name, numpy.float32)
        took(f"{name} {turn}")
kit.dequantize(blocks, name); took("the first tensor: import torch")
print(json.dumps(times))
"""


def run(names=NAMES) -> pd.DataFrame:
    """One row for each step, milliseconds: with an empty cache, in the next process, and of the second call.

    The first format includes starting threads and the tier's self-test. The last row is the sum of all steps up to the
    first array, beside its goal.
    """
    path = str(cached_model("tinyllama-1.1b", layers=4, folder=models_folder()))
    with tempfile.TemporaryDirectory() as folder:
        cold, cached = (_child(path, names, folder) for _ in range(2))
    second = {f"{name} first": cached.pop(f"{name} second") * 1e3 for name in names}
    rows = [
        {"what": step, "empty_cache_ms": cold[step] * 1e3, "cached_ms": took * 1e3, "second_call_ms": second.get(step)}
        for step, took in cached.items()
    ]
    steps = list(cached)[: list(cached).index(f"{names[0]} first") + 1]
    total = sum(map(cached.get, steps))
    row = {"what": f"import, open, first array, of {GOAL} s", "empty_cache_ms": 1e3 * sum(map(cold.get, steps))}
    rows.append(row | {"cached_ms": 1e3 * total, "ratio": GOAL / total, "least": 1, "hoped": 2})
    return pd.DataFrame(rows).set_index("what")


def _child(path, names, cache: str) -> dict:
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", _CHILD, path, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
