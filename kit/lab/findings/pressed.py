"""A page cache that is too small: tokens computed from the blocks, in a process whose memory is limited by the system.

The process moves into a control group (cgroup v1 or v2) with that much memory, page cache included. So the kernel itself evicts
pages, and mincore(2) shows which stay. If no group can be made, and for pinned blocks, bytes that are not held are read with
direct reads.
"""

import gc
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import kit
from kit.gguf import pagecache
from kit.lab.measuring import child
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting.order import Decode
from kit.lab.predicting.ways import BLOCKS, Way
from kit.model.pinned import PinnedBlocks
from kit.system import counters, join_group

PRESSED = replace(BLOCKS, holds="pressed")


def pinned_blocks(nbytes: int) -> Way:
    """Blocks in so many bytes of memory (kit.model.pinned); the others are read from the disk for every token."""
    return replace(BLOCKS, policy="Pinned", capacity=nbytes, holds="pinned")


@once_a_run
def measure(path: Path, tokens: int, pinned: Sequence[int] = (), limit: int = 0) -> dict[Way, Reading | str]:
    """``tokens`` tokens with blocks in so many bytes of memory, for each number in ``pinned``, and with none held (PRESSED), in
    a group of ``limit`` bytes if one may be made, which may keep so many; a str says why a way cannot be had. No other process
    may have the file mapped.

    A row has ``stayed``: share of the file's pages in memory when a token began, the largest. Few of them are hits: a pass
    drops what it would ask for next. ``gbps``: bytes that a token read from the disk, over its seconds, at best. ``cold``: the
    same of a group's first passes, which are not among the samples: what the map brings (0: no group)."""
    gc.collect()  # models that are done with refer to themselves, and mapped pages cannot be dropped
    ways = [*map(pinned_blocks, pinned), PRESSED]
    try:
        told = child.call(_taken, str(path), tokens, limit, *pinned, timeout=600)
    except child.Ended as ended:
        return dict.fromkeys(ways, str(ended))
    if group := told[-1]["group"]:
        ways[-1] = replace(PRESSED, capacity=limit)
        with suppress(OSError):
            os.rmdir(group)
    return {way: _judged(way, one) for way, one in zip(ways, told, strict=True)}


def _judged(way: Way, told: dict) -> Reading | str:
    """A group's pages change from moment to moment, but all of the file never fits into it."""
    if told["group"] and told["stayed"] > 0.98:
        return f"this system keeps {told['stayed']:.0%} of the file's pages in memory, whatever the limit"
    first = 1 + bool(told["group"])  # passes that warm up
    logits = torch.tensor(told["logits"], dtype=torch.float32, device="cpu")
    rates = np.divide(told["read"], told["seconds"]) / 1e9
    row = {"resident": way.capacity or 0, "stayed": told["stayed"], "gbps": float(rates[first:].max())}
    row["cold"] = float(rates[:first].max()) if told["group"] else 0.0
    return Reading(way.label, "", tuple(told["seconds"][first:]), row=row, result=logits)


def how(found: Reading | str) -> str:
    """What held a way's pages back, or why it cannot be had."""
    return found if isinstance(found, str) else "a control group" if found.row["cold"] else "read past the page cache"


def _take(path: str, tokens: int, pinned: int) -> dict:
    """Blocks in ``pinned`` bytes, each token a first one, as where a group evicts."""
    with kit.open(path) as file:
        weights = PinnedBlocks(file, pinned)
        steps, seconds, read = Decode(weights, "fused"), [], []
        for _ in range(tokens + 1):
            steps.cache.truncate(0)
            logits = _timed(steps, seconds, read)
    stayed = sum(blocks.nbytes for blocks in weights.held.values()) / sum(map(os.path.getsize, file.paths))
    return {"seconds": seconds, "read": read, "stayed": stayed, "group": "", "logits": logits.tolist()}


def _take_mapped(path: str, tokens: int, group: str) -> dict:
    """Decode from the map, while a control group keeps as many pages of the file as fit. Two passes fill it."""
    seconds, read, stayed = [], [], []
    for _ in range(tokens + 2):
        gc.collect()  # a model that is done with refers to itself, and its map stays open
        stayed.append(pagecache.resident_fraction(path))
        with kit.open(path) as file:
            logits = _timed(Decode(kit.Weights(file), "fused"), seconds, read)
    return {"seconds": seconds, "read": read, "stayed": max(stayed[2:]), "group": group, "logits": logits.tolist()}


def _timed(steps: Decode, seconds: list[float], read: list[int]) -> torch.Tensor:
    """The logits of a step; its seconds and the bytes that it reads from disks are appended."""
    before, start = counters()[1], time.perf_counter()
    logits = steps.step()
    seconds.append(time.perf_counter() - start)
    read.append(counters()[1] - before)
    return logits


def _taken(path: str, tokens: int, limit: int, *pinned: int) -> list[dict]:
    runs = [_take(path, tokens, nbytes) for nbytes in pinned]  # and compiles, before memory is short
    gc.collect()
    pagecache.drop(path)
    group = join_group(limit) if limit else ""
    return [*runs, _take_mapped(path, tokens, group) if group else _take(path, tokens, 0)]
