"""What a newcomer waits for, in a fresh clone with nothing compiled: seconds, and CPU seconds of all processes."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from kit.gguf.trained import TRAINED
from kit.lab.tables import markdown
from kit.system.paths import ROOT, models_folder

_HERE = f"make BIN={Path(sys.executable).parent} -o .venv/.installed -o .venv/.notebooks"  # the environment as it is
_MODELS = f"KIT_MODELS={models_folder()}"
_EXPLAIN = f"KIT_MODELS=models {Path(sys.executable).parent}/kit explain smollm2-135m"
# the file alone, or the quality that an earlier explain kept would be found
_LINKED = f"mkdir models && ln -s {models_folder()}/SmolLM2-135M-Instruct.Q4_1.gguf models"
LARGER = "qwen2.5-coder-1.5b"  # the model of README's first screen
_LARGER_LINKED = f"mkdir models && ln -s {models_folder()}/{TRAINED[LARGER].file} models"
_EDIT = r"sed -i 's/import kit\\n/import kit  # changed\\n/' notebooks/05_tile_decode.ipynb"
GROUPS = (  # each in a clone of its own: what -> seconds at most, what is done before, the command
    {"the first page, models there": (20, "true", f"{_MODELS} {_HERE} reproduce ARGS='--only 00'")},
    {"kit explain, the first time": (15, _LINKED, _EXPLAIN), "kit explain, again": (5, "true", _EXPLAIN)},
    {f"kit explain {LARGER}, the first time": (None, _LARGER_LINKED, _EXPLAIN.replace("smollm2-135m", LARGER))},
    {
        "installing": (120, "true", "make .venv/.notebooks"),  # with the next row: a clone to its index, 480 at most
        "the quick run, nothing compiled or generated": (360, "true", "make reproduce"),
        "the quick run again, nothing changed": (None, "true", "make reproduce"),
        "the quick run again, 05 changed": (None, _EDIT, "make reproduce"),
    },
    {"make test": (360, "true", f"{_HERE} test")},
)


def run(only: str = "") -> pd.DataFrame:
    """One sample a row: ``seconds`` and ``cpu`` seconds, ``wanted`` at most. Rows of a group follow each other in one clone of
    the last commit, with kernels of its own: of a group in which one holds ``only`` those up to that are run."""
    rows = []
    for group in GROUPS:
        last = max((place for place, what in enumerate(group) if only in what), default=-1)
        if last < 0:
            continue
        with tempfile.TemporaryDirectory(prefix="kit-waits-") as folder:
            clone = Path(folder) / "kit"
            subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
            for what, (wanted, before, command) in [*group.items()][: last + 1]:
                _shell(before, clone)
                rows.append({"what": what, "wanted": wanted} | _shell(command, clone))
    return pd.DataFrame(rows).set_index("what")


def _shell(command: str, clone: Path) -> dict[str, float]:
    """Run it in the clone; RuntimeError with its last lines if it fails."""
    environment = os.environ | {"PYTHONPATH": str(clone), "NUMBA_CACHE_DIR": str(clone / "build" / "kernels")}
    for own in ("KIT_MODELS", "KIT_RESULTS", "KIT_PATIENCE", "PYTHONDONTWRITEBYTECODE"):  # what a newcomer has not set
        environment.pop(own, None)
    used, started = _used(), time.perf_counter()
    done = subprocess.run(
        command, shell=True, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return {"seconds": time.perf_counter() - started, "cpu": _used() - used}


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _newest(runs: list[dict]) -> dict[str, pd.DataFrame]:
    """What -> its samples at the newest commit that has one, on one machine."""
    newest, samples = {}, {}
    for run in sorted(runs, key=lambda run: run["started"]):
        for row in run["rows"]:
            newest[row["what"]] = key = row["what"], run["machine_id"], run["system"]["commit"][:7]
            samples.setdefault(key, []).append(row | {"commit": key[2]})
    return {what: pd.DataFrame(samples[newest[what]]) for group in GROUPS for what in group if what in newest}


def medians(runs: list[dict]) -> dict[str, float]:
    """What -> the median of its seconds."""
    return {what: float(found["seconds"].median()) for what, found in _newest(runs).items()}


def summary(runs: list[dict]) -> str:
    """The table of benchmarks/README.md: of each row all samples at its newest commit, bold where their median misses."""
    lines = []
    for what, found in _newest(runs).items():
        wanted, seconds, cpu = (pd.to_numeric(found[name]) for name in ("wanted", "seconds", "cpu"))
        median = f"{seconds.median():.1f}"
        cells = f"{wanted.iloc[-1]:.0f}".replace("nan", ""), f"**{median}**" if seconds.median() > wanted.iloc[-1] else median
        cells += ", ".join(f"{sample:.1f}" for sample in seconds), f"{cpu.median():.0f}", found["commit"].iloc[-1]
        lines.append((what, *cells))
    return markdown(("in a fresh clone, nothing compiled", "wanted, s", "median, s", "samples, s", "CPU, s", "commit"), lines)
