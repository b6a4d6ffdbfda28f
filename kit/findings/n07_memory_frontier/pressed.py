"""A page cache that is too small: tokens straight from the blocks, in a process of limited memory, each from the disk.

Run as a program: ``python -m kit.findings.n07_memory_frontier.pressed FILE TOKENS BYTES`` prints one line of JSON.

What a page cache does with less room than the file needs no such room to show: a token reads all pages in one order, so
of an LRU of any smaller size none is left when its turn comes. Here every page is dropped between two tokens.
RLIMIT_DATA limits the memory of the process itself, in which no decoded copy of the model then fits.
"""

import gc
import json
import subprocess
import sys
from pathlib import Path

from kit.costs.ways import BLOCKS, Measured
from kit.errors import KitError


def measure(path: Path, tokens: int, memory: int) -> tuple[Measured | None, str]:
    """``tokens`` tokens in a process that may take ``memory`` more bytes; None and the reason where that cannot be had."""
    gc.collect()  # models that are done with refer to themselves, and mapped pages cannot be dropped
    arguments = [sys.executable, "-m", __name__, str(path), str(tokens), str(memory)]
    child = subprocess.run(arguments, capture_output=True, text=True, timeout=600)
    if child.returncode:
        return None, (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    told = json.loads(child.stdout.splitlines()[-1])
    if not told["dropped"]:
        return None, "this system keeps the file's pages, whatever it is asked"
    import torch

    return Measured(BLOCKS, tuple(told["seconds"]), None, told["resident"], torch.tensor(told["logits"])), ""


def _child(path: str, tokens: int, memory: int) -> dict:
    import resource
    import time

    import psutil

    import kit
    from kit.costs.order import Decode
    from kit.gguf import pagecache

    def token():
        with kit.open(path) as file:
            steps = Decode(kit.Weights(file), "fused")
            start = time.perf_counter()
            logits = steps.step()
            return time.perf_counter() - start, logits

    token()  # kernels are compiled before memory is short
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + memory, hard))
    seconds, dropped = [], True
    for _ in range(tokens):
        gc.collect()
        dropped &= pagecache.drop(path)
        took, logits = token()
        seconds.append(took)
    resident = psutil.Process().memory_info().data
    return {"seconds": seconds, "dropped": dropped, "resident": resident, "logits": logits.tolist()}


if __name__ == "__main__":
    try:
        print(json.dumps(_child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    except (KitError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
