"""A page cache that is too small: tokens straight from the blocks in a process of its own whose memory is really limited.

Run as a program: ``python -m kit.findings.pressed FILE TOKENS LIMIT PINNED...`` prints one line of JSON.

With LIMIT the process moves into a control group with that much memory, page cache included (cgroup v1 or v2), so the
kernel itself evicts pages. Where no group may be made, and for PINNED, every page that is not pinned is dropped between two
tokens, and mincore(2) says what stayed: pages that a process maps and has touched cannot be dropped.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import kit
from kit.costs.order import Decode
from kit.costs.ways import Measured, Way
from kit.errors import KitError
from kit.gguf import pagecache
from kit.lab.system import PAGE, join_group

PRESSED = Way("NoCache", linear="pressed")


def pinned_blocks(nbytes: int) -> Way:
    """Blocks used as they lie, ``nbytes`` of them held in memory and the others read from the disk at every token."""
    return Way("Pinned", nbytes, linear="pinned blocks")


@dataclass(frozen=True)
class Pressed:
    """``measured``, None with the ``reason`` where it cannot be had; ``limit``: what held the pages back; ``stayed``: share of
    the file's pages in memory when a token began, the largest."""

    measured: Measured | None
    reason: str = ""
    limit: str = ""
    stayed: float = 0.0


def measure(path: Path, tokens: int, pinned: Sequence[int] = (), limit: int = 0) -> dict[Way, Pressed]:
    """``tokens`` tokens with the first bytes of the file held, for each number of them in ``pinned``, and with none held
    (PRESSED), in a group of ``limit`` bytes if one may be made, which may keep so many. No other process may have the file
    mapped."""
    gc.collect()  # models that are done with refer to themselves, and mapped pages cannot be dropped
    ways = [*map(pinned_blocks, pinned), PRESSED]
    arguments = [sys.executable, "-m", __name__, *map(str, (path, tokens, limit, *pinned))]
    child = subprocess.run(arguments, capture_output=True, text=True, timeout=600)
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return {way: Pressed(None, reason) for way in ways}
    told = json.loads(child.stdout.splitlines()[-1])
    if group := told[-1]["group"]:
        ways[-1] = replace(PRESSED, capacity=limit)
        with suppress(OSError):
            os.rmdir(group)
    return {way: _judged(way, one, os.path.getsize(path)) for way, one in zip(ways, told, strict=True)}


def _judged(way: Way, told: dict, size: int) -> Pressed:
    """A group's pages change from moment to moment, but all of the file never fits into it; without one no page stays."""
    if told["stayed"] > (0.98 if told["group"] else (way.capacity or 0) / size + 0.02):
        return Pressed(None, f"this system keeps {told['stayed']:.0%} of the file's pages, whatever it is asked")
    measured = Measured(way, tuple(told["seconds"]), None, way.capacity or 0, torch.tensor(told["logits"]))
    return Pressed(measured, "", "a control group" if told["group"] else "pages dropped between tokens", told["stayed"])


def _token(path) -> tuple[float, torch.Tensor]:
    with kit.open(path) as file:
        steps = Decode(kit.Weights(file), "fused")
        start = time.perf_counter()
        logits = steps.step()
        return time.perf_counter() - start, logits


def _take(path: str, tokens: int, pinned: int, group: str) -> dict:
    if group:
        _token(path)  # a first pass fills what the group allows
    seconds, stayed = [], []
    first = np.memmap(path, np.uint8, "r", shape=pinned) if pinned else np.empty(0, np.uint8)
    first[::PAGE].sum()  # what is mapped and has been touched stays in memory
    for _ in range(tokens):
        gc.collect()
        if not group:
            pagecache.drop(path)
        stayed.append(pagecache.resident_fraction(path))
        took, logits = _token(path)
        seconds.append(took)
    return {"seconds": seconds, "stayed": max(stayed), "group": group, "logits": logits.tolist()}


def _child(path: str, tokens: int, limit: int, *pinned: int) -> list[dict]:
    _token(path)  # kernels are compiled before memory is short
    gc.collect()
    pagecache.drop(path)
    found = [_take(path, tokens, nbytes, "") for nbytes in pinned]
    gc.collect()
    pagecache.drop(path)
    return [*found, _take(path, tokens, 0, join_group(limit) if limit else "")]


if __name__ == "__main__":
    try:
        print(json.dumps(_child(sys.argv[1], *map(int, sys.argv[2:]))))
    except (KitError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
