"""The first dequantize of a process: imports, and compiling without and with the cache on disk."""

import json
import os
import subprocess
import sys
import tempfile

import pandas as pd

NAMES = ("Q4_K", "Q6_K", "F32", "IQ3_S")

_CHILD = """
import json, sys, time
started = time.perf_counter()
import kit, numpy
from kit.gguf.formats import FORMATS
kit.dequantize
import kit.cpu.dequantize
times = {"import": time.perf_counter() - started}
for name in sys.argv[1:]:
    blocks = numpy.zeros(FORMATS[name].block_bytes * 256, numpy.uint8)
    for turn in ("first", "second"):
        started = time.perf_counter()
        kit.dequantize(blocks, name)
        times[f"{name} {turn}"] = time.perf_counter() - started
print(json.dumps(times))
"""


def run(names=NAMES) -> pd.DataFrame:
    """One row a step, milliseconds: with an empty cache, in the next process, and the second call. The first format pays
    for the self-test of the tier too."""
    with tempfile.TemporaryDirectory() as folder:
        cold, cached = (_child(names, folder) for _ in range(2))
    rows = [{"step": "import", "empty_cache_ms": cold["import"], "cached_ms": cached["import"]}]
    for name in names:
        row = {"step": name, "empty_cache_ms": cold[f"{name} first"], "cached_ms": cached[f"{name} first"]}
        rows.append(row | {"second_call_ms": cached[f"{name} second"]})
    return pd.DataFrame(rows).set_index("step") * 1e3


def _child(names, cache: str) -> dict:
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", _CHILD, *names], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
