"""A page cache that is too small: tokens straight from the blocks in a process of its own whose memory is really limited.

Run as a program: ``python -m kit.findings.n07_memory_frontier.pressed FILE TOKENS PINNED LIMIT`` prints one line of JSON.

With LIMIT the process moves into a control group with that much memory, page cache included (cgroup v1 or v2), so the
kernel itself evicts pages. Where no group may be made, and for PINNED, every page that is not pinned is dropped between two
tokens, and mincore(2) says what stayed: pages that the process maps and has touched cannot be dropped.
"""

import gc
import json
import mmap
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import kit
from kit.costs.order import Decode
from kit.costs.ways import BLOCKS, Measured
from kit.errors import KitError
from kit.gguf import pagecache

GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))  # v1, v2


@dataclass(frozen=True)
class Pressed:
    """``measured``, None with the ``reason`` where it cannot be had; ``limit``: what held the pages back; ``stayed``: share of
    the file's pages in memory when a token began, the largest."""

    measured: Measured | None
    reason: str = ""
    limit: str = ""
    stayed: float = 0.0


def measure(path: Path, tokens: int, pinned: int = 0, limit: int = 0) -> Pressed:
    """``tokens`` tokens with the first ``pinned`` bytes of the file held, in a group of ``limit`` bytes if it may be made."""
    gc.collect()  # models that are done with refer to themselves, and mapped pages cannot be dropped
    arguments = [sys.executable, "-m", __name__, str(path), str(tokens), str(pinned), str(limit)]
    child = subprocess.run(arguments, capture_output=True, text=True, timeout=600)
    if child.returncode:
        return Pressed(None, (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1])
    told = json.loads(child.stdout.splitlines()[-1])
    most = told["held"] + 0.02
    if told["limit"].startswith("/"):
        most = 0.98  # the group's pages change from moment to moment, but all of the file never fits into it
        with suppress(OSError):
            os.rmdir(told["limit"])
        told["limit"] = "a control group"
    if told["stayed"] > most:
        return Pressed(None, f"this system keeps {told['stayed']:.0%} of the file's pages, whatever it is asked")
    measured = Measured(BLOCKS, tuple(told["seconds"]), None, pinned, torch.tensor(told["logits"]))
    return Pressed(measured, "", told["limit"] or "pages dropped between tokens", told["stayed"])


def limited(nbytes: int) -> str:
    """Move this process into a new control group of so much memory; the group's folder, empty where that is not allowed."""
    own = {line.split(":")[1]: line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup", encoding="ascii")}
    for (root, name), controller in zip(GROUPS, ("memory", ""), strict=True):
        group = Path(f"{root}{own.get(controller, '')}") / f"kit-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(nbytes))
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return str(group)
        except OSError:
            group.rmdir()
    return ""


def _child(path: str, tokens: int, pinned: int, limit: int) -> dict:
    def token():
        with kit.open(path) as file:
            steps = Decode(kit.Weights(file), "fused")
            start = time.perf_counter()
            logits = steps.step()
            return time.perf_counter() - start, logits

    token()  # kernels are compiled before memory is short
    gc.collect()
    pagecache.drop(path)
    group = limited(limit) if limit else ""
    if group:
        token()  # a first pass fills what the group allows
    seconds, stayed = [], []
    first = np.memmap(path, np.uint8, "r", shape=pinned) if pinned else np.empty(0, np.uint8)
    first[::4096].sum()  # what is mapped and has been touched stays in memory
    for _ in range(tokens):
        gc.collect()
        if not group:
            pagecache.drop(path)
        stayed.append(pagecache.resident_fraction(path))
        took, logits = token()
        seconds.append(took)
    held = pinned / os.path.getsize(path)
    return {"seconds": seconds, "stayed": max(stayed), "held": held, "limit": group, "logits": logits.tolist()}


def direct_gbps(path, most: int = 512 << 20, step: int = 8 << 20) -> float | None:
    """GB/s of the disk itself: up to ``most`` bytes of a file past the page cache (O_DIRECT). None where that cannot be had,
    and for a file smaller than one ``step``."""
    done, start, count = 0, time.perf_counter(), step
    try:
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with os.fdopen(direct, "rb", buffering=0) as file, mmap.mmap(-1, step) as room:
            while done < most and count == step:
                count = file.readinto(room)
                done += count
    except (OSError, AttributeError):  # AttributeError: a system without O_DIRECT
        return None
    return done / (time.perf_counter() - start) / 1e9 if done >= step else None


if __name__ == "__main__":
    try:
        print(json.dumps(_child(sys.argv[1], *map(int, sys.argv[2:]))))
    except (KitError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
