"""Does the advice hold when it is followed: kit explain at several sizes of memory, and the command that it prints, run.

Each row runs two processes as a user would: ``kit explain MODEL --memory SIZE --json``, then the command of its first way. Told
and followed should agree within 1.25, and the peak should stay within the memory that was given.
"""

import json
import shlex
import subprocess
import sys

import pandas as pd

from benchmarks._files import fetch
from kit.errors import ReportError
from kit.model.budget import PROCESS

MODELS, SHARES, TOKENS = ("qwen2.5-coder-1.5b", "smollm2-135m"), (0.6, 1.0, 2.0), 24
GOAL = 1.25


def run(only: str = "") -> pd.DataFrame:
    """One row per model and size of memory: a share of the file's bytes beside what the process needs without a model. "told":
    seconds per token of the command that was printed; "followed": seconds of that command's tokens. ``only``: of the models
    whose name holds this."""
    rows = []
    for model in filter(lambda name: only in name, MODELS):
        for share in SHARES:
            path = fetch(model)
            memory = PROCESS + (64 << 20) + int(share * path.stat().st_size)
            told = _json(["explain", str(path), "--memory", f"{memory}B", "--json"])
            way = next(way for way in told["answer"]["reached"] if way["precision"] == "f32")
            done = _json([*shlex.split(way["command"])[1:], "-n", str(TOKENS), "--ignore-end", "--json"])
            followed = 1 / done["decode_tokens_per_second"]
            rows.append({
                "what": f"{model}, {share:.3g} of the file, {way['name']}", "told, s": way["seconds"], "followed, s": followed,
                "followed of told": followed / way["seconds"], "at most": GOAL, "memory, MiB": memory / 2**20,
                "peak, MiB": done["peak_memory_bytes"] / 2**20, "peak of memory": done["peak_memory_bytes"] / memory,
                "measured": way["low"] is not None,
            })  # fmt: skip
    return pd.DataFrame(rows).set_index("what")


def _json(arguments: list[str]) -> dict:
    done = subprocess.run([sys.executable, "-m", "kit", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ReportError(f"kit {shlex.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)
