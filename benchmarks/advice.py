"""Does the advice hold when it is followed: kit explain at several sizes of memory, and the command that it prints, run.

Each row runs two processes as a user would: ``kit explain MODEL --memory SIZE --json``, then the command of its first exact
way, as it is printed (``-n``, ``--ignore-end`` and ``--json`` are added). Told and followed should agree within 1.25, and
the peak should stay within the memory that was given. Where a control group may be made, the command runs once more in
one of so many bytes, pages of the file among them, from a dropped page cache: what needs more memory ends, or reads from
the disk at every token.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd

from benchmarks._files import fetch
from kit.errors import ReportError
from kit.gguf import pagecache
from kit.lab.measuring.group import Group, missing_rights
from kit.lab.measuring.process import process_bytes
from kit.model.footprint import COMPILING

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
            process = process_bytes() + COMPILING  # a group ends a process that has to compile its kernels and may not
            memory = process + int(share * path.stat().st_size) >> 20 << 20  # whole pages, as a group takes it
            told = _json(["explain", str(path), "--memory", f"{memory}B", "--json"])
            way = next(way for way in told["answer"]["reached"] if way["precision"] == "float32")
            command = [*shlex.split(way["command"])[1:], "-n", str(TOKENS), "--ignore-end", "--json"]
            limited = not missing_rights(swap=False)
            done = held = _json(command)
            if limited:
                with Group(Path(), 0) as group:
                    pagecache.drop(path)  # what is cached already counts for no group
                    held = _json(command, run=group.run, limit=memory)
            followed, peak = 1 / done["decode_tokens_per_second"], max(done["peak_memory_bytes"], held["peak_memory_bytes"])
            rows.append({
                "what": f"{model}, {share:.3g} of the file, {way['name']}", "told, s": way["seconds"], "followed, s": followed,
                "followed of told": followed / way["seconds"], "at most": GOAL, "memory, MiB": memory / 2**20,
                "peak, MiB": peak / 2**20, "peak of memory": peak / memory,
                "measured": way["low"] is not None, "in a group, s": 1 / held["decode_tokens_per_second"] if limited else None,
            })  # fmt: skip
    return pd.DataFrame(rows).set_index("what")


def _json(arguments: list[str], run=subprocess.run, **how) -> dict:
    done = run([sys.executable, "-m", "kit", *arguments], capture_output=True, text=True, **how)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise ReportError(f"kit {shlex.join(arguments)}: {said[-1]}")
    return json.loads(done.stdout)
