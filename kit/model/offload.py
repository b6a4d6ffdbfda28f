"""Ways to hold the experts of a mixture that is larger than memory: mapped, or in slots that threads fill.

Blocks stay as they lie, never float32. A pass says which experts it will use (``expects``) before it uses them.
"""

import mmap
import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from kit.cache import POLICIES
from kit.cache.policies.offline import MIN
from kit.cache.policies.partitioned import ByLayer
from kit.cache.routes import key_of
from kit.cache.traces import Requests, hottest
from kit.errors import ReportError
from kit.gguf import pagecache
from kit.gguf.names import layer_of
from kit.model.weights import Weights
from kit.system import open_past
from kit.system.rows import PAGE


class Offload(NamedTuple):
    """``holds``: "mapped", "slots" or "llama.cpp", which maps the file and routes for itself. Mapped: ``advice`` for
    pagecache.advise, when ("once" or "routed"). Slots: ``policy``, reading past the page cache (``direct``) or through it, by
    so many ``readers``, and ``ahead``: the next layer's last experts are read beside. ``locked``: what mlock keeps: "dense",
    "hottest" or nothing. ``given_up``: the share of the dense weights' memory that slots take."""

    holds: str
    advice: str = ""
    when: str = ""
    policy: str = "LRU"
    direct: bool = True
    readers: int = 2
    ahead: bool = False
    locked: str = ""
    given_up: float = 0.0


ASKED, SLOTS = Offload("mapped", "willneed", "routed"), Offload("slots")
OFFLOADS = {
    "llama.cpp, mapped": Offload("llama.cpp", policy=""),
    "mapped": Offload("mapped"),
    "mapped, dense locked": Offload("mapped", locked="dense"),
    "mapped, no read-ahead": Offload("mapped", "random", "once"),
    "mapped, routed asked for": ASKED,
    "mapped, routed read and waited for": ASKED._replace(advice="populate"),
    "mapped, hottest locked": Offload("mapped", locked="hottest"),
    "slots through the page cache": SLOTS._replace(direct=False),
    "slots past it, 1 reader": SLOTS._replace(readers=1),
    "slots past it, 2 readers": SLOTS,
    "slots past it, 4 readers": SLOTS._replace(readers=4),
    "slots past it, dense locked": SLOTS._replace(locked="dense"),
    "slots past it, half the dense given up": SLOTS._replace(given_up=0.5),
    "slots past it, LFU": SLOTS._replace(policy="LFU"),
    "slots past it, S3FIFO": SLOTS._replace(policy="S3FIFO"),
    "slots past it, cap by layer": SLOTS._replace(policy="ByLayer"),
    "slots past it, MIN": SLOTS._replace(policy="MIN"),
    "slots past it, reading ahead": SLOTS._replace(ahead=True),
}


class Mapped(Weights):
    """Every weight where it lies in the mapped file."""

    waited, hits, asked = 0.0, 0, 0

    def __init__(self, file, way: Offload, keep: int, future: Requests):
        super().__init__(file)
        self.chosen: dict[int, list[int]] = {}
        self.own: dict[int, list[set[int]]] = {}  # layer -> what its router would have chosen, token by token
        stacks = [name for name in file.tensors if "_exps." in name]
        self._asked_for = way.advice if way.when == "routed" else ""
        if way.when == "once":
            for name in stacks:
                pagecache.advise(file.blocks(name), way.advice)
        if way.locked == "dense":
            for name in file.tensors.keys() - set(stacks):
                pagecache.advise(file.blocks(name), "lock")
        if way.locked == "hottest":
            for key in hottest(future, keep * 4 // 5):  # in hindsight; the rest of the map needs a little too
                layer, expert = map(int, re.findall(r"\d+", key))
                for name in (name for name in stacks if name.startswith(f"blk.{layer}.")):
                    pagecache.advise(file.blocks(name)[expert], "lock")

    def expects(self, names) -> None:
        """Told what the router chose, matrix by matrix, before it is used."""
        if self._asked_for:
            for name in names:
                pagecache.advise(self.blocks(name), self._asked_for)

    def close(self) -> None:
        """Nothing is held."""


class Slots(Mapped):
    """Experts in ``keep`` bytes of slots, read by threads when the router has chosen; all else where it lies in the map.

    The policy is asked in the order of use, before anything is read, so its hits are those of a replay.
    """

    def __init__(self, file, way: Offload, keep: int, future: Requests):
        super().__init__(file, way, 0, future)
        self._parts: dict[str, list[tuple[int, int, int, int]]] = {}  # expert -> (file, page, bytes, place in slot) a matrix
        self._lies: dict[str, tuple[str, int, int, int]] = {}  # matrix -> (expert, place in the slot, bytes, rows)
        for name, info in file.tensors.items():
            if "_exps." in name:
                each, layer = info.nbytes // info.shape[0], int(name.split(".")[1])
                for expert in range(info.shape[0]):
                    start = info.offset + expert * each
                    first, last = start // PAGE * PAGE, -(-(start + each) // PAGE) * PAGE
                    parts = self._parts.setdefault(key := key_of(layer, expert), [])
                    place = sum(parts[-1][2:]) if parts else 0
                    parts.append((info.part, first, last - first, place))
                    self._lies[f"{name}[{expert}]"] = key, place + start - first, each, info.shape[1]
        self._size = max(sum(parts[-1][2:]) for parts in self._parts.values())
        at_once = max(Counter((token, layer_of(key)) for token, key in zip(future.tokens, future.keys, strict=True)).values())
        spare = at_once * (3 if way.ahead else 1)  # in use or on the way, and not kept
        count = keep // self._size
        if count <= spare:
            raise ReportError(f"{file.path}: {keep:,} bytes hold {count} experts, and {spare} are in use at once")
        self._arena = mmap.mmap(-1, count * self._size)
        np.frombuffer(self._arena, np.uint8)[::PAGE] = 0  # no slot is new to the system when it is first read into
        self._bytes = memoryview(self._arena)
        self.policy = policy_of(way.policy, count - spare, future)
        self._free, self._slot, self._loads = list(range(count)), {}, {}
        self._retired: list[int] = []  # slots that the layer in work may still use
        self._guesses, self._stray, self._last = {}, [], {}
        self._files = [(open_past if way.direct else os.open)(path, os.O_RDONLY) for path in file.paths]
        self._pool, self._ahead = ThreadPoolExecutor(way.readers), ThreadPoolExecutor(1) if way.ahead else None

    def expects(self, names):
        self._free += self._retired
        self._retired = []
        self._now, self._loads = {}, {}
        keys = list(dict.fromkeys(self._lies[name][0] for name in names))
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
        for part, first, nbytes, place in self._parts[key]:
            at = slot * self._size + place
            os.preadv(self._files[part], [self._bytes[at : at + nbytes]], first)  # short at the end of the file alone

    def blocks(self, name):
        if name not in self._lies:
            return super().blocks(name)
        key, place, nbytes, rows = self._lies[name]
        if key in self._loads:
            start = time.perf_counter()
            self._loads.pop(key).result()
            self.waited += time.perf_counter() - start
        at = self._now[key] * self._size + place
        return np.frombuffer(self._bytes[at : at + nbytes], np.uint8).reshape(rows, -1)

    def close(self):
        for pool in filter(None, (self._pool, self._ahead)):
            pool.shutdown()
        for descriptor in self._files:
            os.close(descriptor)
        self._bytes = self._arena = None


def policy_of(name: str, slots: int, future: Requests):
    """The policy of a way, over ``slots`` experts; MIN knows ``future``."""
    if name == "MIN":
        return MIN(slots, future=future.counted())
    if name == "ByLayer":
        return ByLayer(slots, layers=len({*map(layer_of, future.keys)}))
    return POLICIES[name](slots)
