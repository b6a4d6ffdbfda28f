"""A mixture decodes with the experts that a record names, under a memory limit, from the disk: ways to hold them, timed.

The weights are a file's (generated, true geometry), the routing is real: the router is computed and its choice replaced by the
record's. Blocks stay as they lie, never float32. Every way must give the same logits, bit by bit.
"""

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import kit
from kit.cache import routing
from kit.cache.routes import Routes, geometry_of, key_of, read, write
from kit.cache.traces import Requests
from kit.costs.experts import dense_bytes
from kit.errors import ReportError
from kit.findings.pressure import Group, missing_rights
from kit.gguf import pagecache
from kit.lab import disk
from kit.lab.note import doing
from kit.model.cpu_ops import CpuOps
from kit.model.experts import WAYS, Mapped, Slots

_SPARE = 64 << 20  # bytes beside weights and slots: what grows while a process runs
_SMALL = 64 << 20  # bytes: of a smaller file some pages always stay
_BUDGET = 6.0  # seconds after which a way takes no further token
_LEAST = 8  # tokens that it takes in any case


@dataclass
class Run:
    """One way: for each token ``seconds``, those ``in_kernel`` (of all threads), bytes ``read`` from the disk, major and minor
    ``faults``, seconds ``waited`` for slots; ``hits`` of ``asked`` (slots alone); ``resident``: bytes of the process at the
    end; ``digest`` of the first logits."""

    way: str
    seconds: list[float]
    in_kernel: list[float]
    read: list[int]
    faults: list[int]
    minor: list[int]
    waited: list[float]
    hits: list[int]
    asked: list[int]
    resident: int
    digest: str

    def late(self, column: str) -> np.ndarray:
        """The column's second half, when the caches are warm."""
        values = getattr(self, column)
        return np.array(values[len(values) // 2 :])


class _Routed(CpuOps):
    """A pass whose router is computed, and whose choice is the record's."""

    def route(self, name, x):
        super().route(name, x)
        chosen = torch.tensor([self.weights.chosen[int(name.split(".")[1])]])
        return torch.full(chosen.shape, 1 / chosen.shape[1]), chosen

    def expects(self, names):
        self.weights.expects(names)


def routes_of(file, capture: str) -> Routes:
    """The record's routes of the layers that the file has, at the file's sizes."""
    return read(capture).first(len(geometry_of(file)[1])).sized(file)


def record_for(path, capture: str, routes: Routes, tokens: int, folder: Path, seed: int = 0) -> str:
    """``capture`` (of ``routes``), or for a mixture with fewer experts than it names a record of its own that is drawn and
    written to ``folder``."""
    with kit.open(path) as file:
        shape = Routes("drawn", *[np.zeros(0, np.int64)] * 3, 0, *geometry_of(file))
    if shape.experts >= routes.experts:
        return capture
    folder.mkdir(exist_ok=True)
    return str(write(routing.draw(shape, 1.3, 0.2, 2, tokens, seed), folder / "drawn.jsonl"))


def sorted_routes(routes: Routes, tokens: int) -> tuple[list[dict[int, list[int]]], Requests]:
    """(for each token its experts by layer, the same as accesses), in the order in which a pass uses them: experts rising."""
    steps = [{layer: sorted(ids) for layer, ids in step} for step in routes.decoded[:tokens]]
    rows = [(layer, expert, token) for token, step in enumerate(steps) for layer, ids in step.items() for expert in ids]
    keys = [key_of(layer, expert) for layer, expert, _ in rows]
    return steps, Requests(keys, [int(routes.expert_bytes[layer]) for layer, _, _ in rows], [token for _, _, token in rows])


# --- in the child, under the limit -----------------------------------------------------------------------------------------


_COUNTERS = ("in_kernel", "read", "faults", "minor", "waited", "hits", "asked")  # columns of Run that only grow


def _counters(weights) -> tuple:
    used, io = resource.getrusage(resource.RUSAGE_SELF), Path("/proc/self/io").read_text()
    read_bytes = int(re.search(r"^read_bytes: (\d+)", io, re.M)[1])
    return used.ru_stime, read_bytes, used.ru_majflt, used.ru_minflt, weights.waited, weights.hits, weights.asked


def _status(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def decode(path, capture, name: str, tokens: int, keep: int, warm: bool = False) -> Run:
    """Decode with one of WAYS, from a dropped page cache, or from a ``warm`` one (then nothing is read)."""
    if not warm and not pagecache.drop(Path(path)) and os.path.getsize(path) > _SMALL:
        raise ReportError(f"{path}: its pages cannot be dropped from memory; is another process using it?")
    with kit.open(path) as file:
        steps, future = sorted_routes(routes_of(file, capture), tokens)
        way = WAYS[name]
        weights = (Mapped if way.holds == "mapped" else Slots)(file, way, keep, future)
        model = kit.Transformer(weights, linear="fused-int8")
        model.ops = _Routed
        context, digest = model.new_cache(tokens), hashlib.sha256()
        columns = {column: [] for column in ("seconds", *_COUNTERS)}
        began = time.perf_counter()
        for number, weights.chosen in enumerate(steps):
            before, start = _counters(weights), time.perf_counter()
            logits = model.step([1 + number % 3], context)
            took, after = time.perf_counter() - start, _counters(weights)
            columns["seconds"].append(took)
            for column, old, new in zip(_COUNTERS, before, after, strict=True):
                columns[column].append(new - old)
            if number < _LEAST:
                digest.update(logits.numpy().tobytes())
            weights.trace.clear()
            if number >= _LEAST and time.perf_counter() - began > _BUDGET:
                break
        weights.close()
        return Run(name, **columns, resident=_status("VmRSS"), digest=digest.hexdigest())


# --- in the parent ---------------------------------------------------------------------------------------------------------


@doing("decoding a mixture under a memory limit")
def measured(path, capture: str, folder: Path, share: float = 0.21, tokens: int = 32, ways=tuple(WAYS)):
    """(facts, runs): each way in a child of its own, under the limit of base + dense weights + ``share`` of the experts.

    facts: bytes ``keep`` (for experts), ``limit`` (None without rights: then mapped ways are left out), ``base`` of the
    process, ``dense``; ``compute``: seconds a token with everything in memory; ``disk``: readers -> GB/s; ``failed``: way ->
    why it has no run (the system ended it for memory, say). ReportError when the logits of two ways differ.
    """
    with kit.open(path) as file:
        routes = routes_of(file, capture)
        experts = int(routes.experts * routes.expert_bytes.sum())
        dense = dense_bytes(file)
    keep, lacks = int(share * experts), missing_rights()
    expert = int(routes.expert_bytes.max())
    first = ["mapped"] if experts + dense < kit.lab.machine.memory_available() // 2 else []
    warm = _child(None, None, path, capture, first, tokens, keep, warm=True)
    limit = None if lacks else warm["own"] + dense + keep + _SPARE
    chosen = [name for name in ways if limit or WAYS[name].holds == "slots"]
    runs, failed = [], {}
    with nullcontext() if lacks else Group(folder, 0) as group:
        for name in chosen:
            try:
                runs += [Run(**run) for run in _child(group, limit, path, capture, [name], tokens, keep)["runs"]]
            except ReportError as error:
                failed[name] = str(error)
    digests = {run.digest for run in runs}
    if len(digests) > 1:
        raise ReportError(
            f"{path}: the ways give other logits: {', '.join(run.way for run in runs)}; the disk or the kit is broken"
        )
    compute = float(np.median(warm["runs"][0]["seconds"][1:])) if first else None
    speeds = {readers: disk.random_gbps(path, readers, expert) for readers in (1, 2, 4)}
    facts = {"keep": keep, "limit": limit, "lacks": lacks, "base": warm["own"], "dense": dense, "experts": experts}
    return facts | {"compute": compute, "disk": speeds, "failed": failed}, runs


def _child(group, limit, path, capture, names, tokens, keep, warm=False) -> dict:
    job = json.dumps([str(path), capture, list(names), tokens, keep, warm])
    command = [sys.executable, "-m", "kit.findings.experts", job]
    if group:
        done = group.run(command, limit, timeout=900)
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise ReportError(f"the child ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _main(job):
    path, capture, names, tokens, keep, warm = json.loads(job)
    if warm:  # kernels are compiled, and for a file that fits every page comes into memory before it is timed
        with kit.open(path) as file:
            kit.Transformer(kit.Weights(file), linear="fused-int8").step([1], kit.Transformer(kit.Weights(file)).new_cache(8))
        own = _status("RssAnon")
        runs = [decode(path, capture, name, tokens, keep, warm=True) for name in names for _ in range(2)][1:]
    else:
        own, runs = 0, [decode(path, capture, name, tokens, keep) for name in names]
    print(json.dumps({"own": own, "runs": [asdict(run) for run in runs]}))


if __name__ == "__main__":
    _main(sys.argv[1])
