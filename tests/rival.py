"""kit explain and llama-roofline on the same faults, binary and file: their answers one below the other, with seconds.

    python tests/rival.py MODEL --roofline .../bin/llama-roofline --bench .../bin/llama-bench [--server './llama-server -t 2']
                                [--only idle,quota,limit,neighbour] [--out FILE.md]

llama-roofline is installed in an environment of its own. Control groups need root. Each fault takes one to two minutes with a
model of 100 MB; a model below the caches' size says little. The table is Markdown, for docs/peers.md after a person has judged.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import served

from kit.lab.engines.started import WHEEL, Started

MINUTES = 2.0  # for each answer
_HALF = {"v1": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}, "v2": {"cpu.max": "50000 100000"}}


@contextlib.contextmanager
def nothing(size):
    """An idle machine."""
    yield subprocess.Popen


@contextlib.contextmanager
def quota(size):
    """Half a core for whatever computes."""
    with served.group("cpu", **_HALF) as group:
        yield served.inside(group)


@contextlib.contextmanager
def limit(size):
    """Memory for four fifths of the file."""
    text = str(int(0.8 * size))
    with served.group("memory", v1={"memory.limit_in_bytes": text}, v2={"memory.max": text, "memory.swap.max": "0"}) as group:
        yield served.inside(group)


@contextlib.contextmanager
def neighbour(size):
    """A process that computes, for each core."""
    with served.neighbors(os.cpu_count() or 1):
        yield subprocess.Popen


STATES = {"idle": nothing, "quota": quota, "limit": limit, "neighbour": neighbour}


def answered(command: list[str], run=subprocess.Popen) -> tuple[float, str]:
    """(seconds, what a command printed); it is ended after MINUTES."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = run([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            process.wait(60 * MINUTES)
            ended = "" if process.returncode == 0 else f"\n(ended with {process.returncode})"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"\n(no answer within {MINUTES:g} minutes)"
        seconds = time.perf_counter() - began
        out.seek(0)
        return seconds, out.read().strip() + ended


def compared(state: str, model: Path, roofline: str, bench: str, spec: str) -> str:
    """Both answers in one state, as Markdown."""
    with STATES[state](model.stat().st_size) as run, tempfile.TemporaryDirectory() as out:
        theirs = answered([roofline, "diagnose", model, "--llama-bench", bench, "--quick", "--out", out], run)
        with Started(spec, model, run=run) as server:
            ours = answered([sys.executable, "-m", "kit", "explain", server.url])
    told = {"llama-roofline": theirs, "kit explain URL": ours}
    parts = [f"### {name}: {seconds:.0f} s\n\n```\n{text}\n```" for name, (seconds, text) in told.items()]
    return "\n\n".join([f"## {STATES[state].__doc__.rstrip('.')} ({state})", *parts])


def main() -> None:
    """The program."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=Path)
    options.add_argument("--roofline", required=True)
    options.add_argument("--bench", required=True)
    options.add_argument("--server", default=f"{WHEEL} -t 2 -c 1024")
    options.add_argument("--only", default=",".join(STATES))
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    for state in given.only.split(","):
        try:
            text = compared(state, given.model, given.roofline, given.bench, given.server)
        except BaseException as error:
            if type(error).__name__ != "Skipped":  # pytest's: no rights to make a group
                raise
            text = f"## {state}\n\n{error}"
        print(text + "\n", flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as out:
                out.write(text + "\n\n")


if __name__ == "__main__":
    main()
