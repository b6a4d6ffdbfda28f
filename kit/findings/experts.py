"""A mixture decodes with the experts that a record names, under a memory limit, from the disk: ways to hold experts, timed.

The weights are a file's (generated, true geometry), the routing is real: the router is computed and its choice replaced by the
record's. Blocks stay as they lie, never float32. Every way must give the same logits, bit by bit.
"""

import hashlib
import json
import mmap
import os
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import kit
from kit.cache.policies.offline import MIN
from kit.cache.policies.partitioned import ByLayer
from kit.cache.routes import Routes, geometry_of, key_of, read
from kit.cache.traces import Requests
from kit.costs.experts import dense_bytes
from kit.errors import ReportError
from kit.findings.pressure import Group, missing_rights
from kit.gguf import pagecache
from kit.lab import disk
from kit.lab.note import doing
from kit.model.cpu_ops import CpuOps

_SPARE = 64 << 20  # bytes beside weights and slots: what grows while a process runs
_SMALL = 64 << 20  # bytes: of a smaller file some pages always stay
_BUDGET = 6.0  # seconds after which a way takes no further token
_LEAST = 8  # tokens that it takes in any case


class Way(NamedTuple):
    """``holds``: "mapped" or "slots". Mapped: ``advice`` for pagecache.advise, when ("once" or "routed"). Slots: ``policy``,
    reading past the page cache (``direct``) or through it, by so many ``readers``, and ``ahead``: the next layer's last experts
    are read beside. ``locked``: what stays in memory by mlock: "dense", "hottest", both or neither."""

    holds: str
    advice: str = ""
    when: str = ""
    policy: str = "LRU"
    direct: bool = True
    readers: int = 2
    ahead: bool = False
    locked: str = ""


ASKED, SLOTS = Way("mapped", "willneed", "routed"), Way("slots")
WAYS = {
    "mapped": Way("mapped"),
    "mapped, dense locked": Way("mapped", locked="dense"),
    "mapped, no read-ahead": Way("mapped", "random", "once"),
    "mapped, routed asked for": ASKED,
    "mapped, routed read and waited for": ASKED._replace(advice="populate"),
    "mapped, hottest locked": Way("mapped", locked="hottest"),
    "slots through the page cache": SLOTS._replace(direct=False),
    "slots past it, 1 reader": SLOTS._replace(readers=1),
    "slots past it, 2 readers": SLOTS,
    "slots past it, 4 readers": SLOTS._replace(readers=4),
    "slots past it, dense locked": SLOTS._replace(locked="dense"),
    "slots past it, LFU": SLOTS._replace(policy="LFU"),
    "slots past it, S3FIFO": SLOTS._replace(policy="S3FIFO"),
    "slots past it, cap by layer": SLOTS._replace(policy="ByLayer"),
    "slots past it, MIN": SLOTS._replace(policy="MIN"),
    "slots past it, reading ahead": SLOTS._replace(ahead=True),
}


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


class Mapped(kit.Weights):
    """Every weight where it lies in the mapped file."""

    waited, hits, asked = 0.0, 0, 0

    def __init__(self, file, way: Way, keep: int, future: Requests):
        super().__init__(file)
        self.chosen: dict[int, list[int]] = {}
        stacks = [name for name in file.tensors if "_exps." in name]
        self._asked_for = way.advice if way.when == "routed" else ""
        if way.when == "once":
            for name in stacks:
                pagecache.advise(file.blocks(name), way.advice)
        if way.locked == "dense":
            for name in file.tensors.keys() - set(stacks):
                pagecache.advise(file.blocks(name), "lock")
        if way.locked == "hottest":
            for layer, expert in _hottest(future, keep * 4 // 5):  # the rest of the map needs a little too
                for name in (name for name in stacks if name.startswith(f"blk.{layer}.")):
                    pagecache.advise(file.blocks(name)[expert], "lock")

    def expects(self, names) -> None:
        """Told what the router chose, matrix by matrix, before it is used."""
        if self._asked_for:
            for name in names:
                pagecache.advise(self.blocks(name), self._asked_for)

    def close(self) -> None:
        """Nothing is held."""


def _hottest(future: Requests, keep: int):
    """The most used experts that fit in ``keep`` bytes, in hindsight: (layer, expert) each."""
    counts = {}
    for key in future.keys:
        counts[key] = counts.get(key, 0) + 1
    for key in sorted(counts, key=counts.__getitem__, reverse=True)[: keep // max(future.sizes)]:
        yield tuple(map(int, re.findall(r"\d+", key)))


class Slots(Mapped):
    """Experts in ``keep`` bytes of slots, read by threads when the router has chosen; all else where it lies in the map.

    The policy is asked in the order of use, before anything is read, so its hits are those of a replay.
    """

    def __init__(self, file, way: Way, keep: int, future: Requests):
        super().__init__(file, way, 0, future)
        self.parts: dict[str, list[tuple[str, int, int, int]]] = {}  # expert -> (matrix, first page, bytes, place in the slot)
        self._size = 0
        for name, info in file.tensors.items():
            if "_exps." in name:
                each, layer = info.nbytes // info.shape[0], int(name.split(".")[1])
                for expert in range(info.shape[0]):
                    start = info.offset + expert * each
                    first, last = start // disk.PAGE * disk.PAGE, -(-(start + each) // disk.PAGE) * disk.PAGE
                    parts = self.parts.setdefault(key_of(layer, expert), [])
                    place = parts[-1][3] + parts[-1][2] if parts else 0
                    parts.append((f"{name}[{expert}]", first, last - first, place))
        self._size = max(parts[-1][3] + parts[-1][2] for parts in self.parts.values())
        self._expert_of = {name: key for key, parts in self.parts.items() for name, *_ in parts}
        spare = max(map(len, _by_layer(future).values())) * (3 if way.ahead else 1)  # in use or on the way, and not kept
        count = keep // self._size
        if count <= spare:
            raise ReportError(f"{file.path}: {keep:,} bytes hold {count} experts, and {spare} are in use at once")
        self._arena = mmap.mmap(-1, count * self._size)
        self._bytes = memoryview(self._arena)
        self.policy = policy_of(way.policy, count - spare, future)
        self._free, self._slot, self._loads = list(range(count)), {}, {}
        self._retired: list[int] = []  # slots that the layer in work may still use
        self._guesses, self._stray, self._last = {}, [], {}
        self._file = os.open(file.path, os.O_RDONLY | (os.O_DIRECT if way.direct else 0))
        self._pool, self._ahead = ThreadPoolExecutor(way.readers), ThreadPoolExecutor(1) if way.ahead else None

    def expects(self, names):
        self._free += self._retired
        self._retired = []
        self._now, self._loads = {}, {}
        keys = list(dict.fromkeys(self._expert_of[name] for name in names))
        for key in keys:
            self.asked += 1
            if self.policy.request(key, 1):
                self.hits += 1
                self._now[key] = self._slot[key]
                continue
            slot, load = self._guesses.pop(key, None) or self._start(self._pool, key)
            self._now[key], self._loads[key] = slot, load
            evicted = self.policy.insert(key, 1)
            self._retired += [slot] if evicted is None else [self._slot.pop(name) for name in evicted]
            if evicted is not None:
                self._slot[key] = slot
        if self._ahead:
            self._guess(int(names[0].split(".")[1]), keys)

    def _guess(self, layer, keys):
        """Read the experts that the next layer used for the last token, after what this layer needs."""
        self._stray += self._guesses.values()  # wrong guesses
        self._guesses = {}
        running = [(slot, load) for slot, load in self._stray if not (load.cancel() or load.done())]
        self._free += [slot for slot, load in self._stray if load.done()]
        self._stray, self._last[layer] = running, keys
        for key in self._last.get(layer + 1, self._last.get(0, []) if layer + 1 not in self._last else []):
            if key not in self.policy and self._free:
                self._guesses[key] = self._start(self._ahead, key)

    def _start(self, pool, key):
        slot = self._free.pop()
        return slot, pool.submit(self._read, key, slot)

    def _read(self, key, slot):
        for _, first, nbytes, place in self.parts[key]:
            at = slot * self._size + place
            os.preadv(self._file, [self._bytes[at : at + nbytes]], first)  # short at the end of the file alone

    def blocks(self, name):
        key = self._expert_of.get(name)
        if key is None:
            return super().blocks(name)
        if key in self._loads:
            start = time.perf_counter()
            self._loads.pop(key).result()
            self.waited += time.perf_counter() - start
        stack, expert = name.partition("[")[0], int(name.partition("[")[2][:-1])
        info = self.file.tensors[stack]
        each = info.nbytes // info.shape[0]
        _, first, _, place = next(part for part in self.parts[key] if part[0] == name)
        at = self._now[key] * self._size + place + (info.offset + expert * each - first)
        return np.frombuffer(self._bytes[at : at + each], np.uint8).reshape(info.shape[1], -1)

    def close(self):
        for pool in filter(None, (self._pool, self._ahead)):
            pool.shutdown()
        os.close(self._file)
        self._bytes = self._arena = None


def _by_layer(future: Requests) -> dict:
    uses: dict[tuple[int, str], list[str]] = {}
    for key, token in zip(future.keys, future.tokens, strict=True):
        uses.setdefault((token, key.partition("[")[0]), []).append(key)
    return uses


def policy_of(name: str, slots: int, future: Requests):
    """The policy of a way, over ``slots`` experts; MIN knows ``future``."""
    if name == "MIN":
        return MIN(slots, future=future.counted())
    if name == "ByLayer":
        return ByLayer(slots, layers=len({key.partition("[")[0] for key in future.keys}))
    return kit.cache.POLICIES[name](slots)


def routes_of(file, capture: str) -> Routes:
    """The record's routes of the layers that the file has, at the file's sizes."""
    return read(capture).first(len(geometry_of(file)[1])).sized(file)


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
