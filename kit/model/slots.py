"""Slots: the experts of a mixture that is larger than memory, in slots of fixed size that threads fill past the page cache.

A pass says which experts it will use (``expects``) before it uses them. The policy is asked at once and in the order of use,
so its hits are those of a replay; what is missing is read while the experts before it compute.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kit.cache import POLICIES
from kit.cache.policies.base import Policy, parse_capacity
from kit.cache.policies.partitioned import ByLayer
from kit.cache.replay import replay
from kit.cache.stats import Stats
from kit.cache.traces import Requests
from kit.errors import CacheError, GGUFError, known
from kit.gguf.names import blocks_of, layer_of
from kit.model.readers import Depth, Load, Readers, probed
from kit.model.slot_layout import SlotLayout
from kit.system import advise, reserve
from kit.system.rows import PAGE
from kit.units import format_bytes

AUTO, FIRST = "auto", 24  # decoded tokens under an LRU, whose replay then chooses among the policies
NAMES = (AUTO, *(name for name in POLICIES if name != "MIN"), "ByLayer")  # MIN needs to know the future


class Experts(Protocol):
    """What a pass asks of a way to hold experts. One thread may use it. ``route``: None, or a function: of a layer the experts
    (rising) that a recorded pass takes in place of its router's, to time another routing."""

    route: Callable[[int], Sequence[int]] | None = None

    def expects(self, names: list[str]) -> set[str]:
        """Told which matrices (``stack[3]``) are used next, expert by expert in order; those that are not in memory yet. What
        was expected before is over."""

    def blocks(self, name: str) -> np.ndarray:
        """The blocks (rows, bytes of a row) uint8 of one of these; it waits for them. They last until the next expert of a
        prompt is asked for, of a single token until the next call of ``expects``."""

    def address(self, name: str) -> int:
        """Where these blocks begin in memory; it waits for them."""

    def close(self) -> None:
        """Give back threads, files and memory."""


@dataclass(frozen=True)
class Slots:
    """``kit.Weights(file, experts=kit.Slots("6 GiB"))``: so many bytes of experts, by a ``policy`` of kit.cache by name, or
    "auto": LRU for the first tokens, then what their replay says. ``depth``: how the disk is read (None: as a probe says).
    ``direct``: past the page cache. CacheError for an unknown policy, and bytes that are too few when a file is given."""

    memory: int | str
    policy: str = "LRU"
    depth: Depth | None = None
    direct: bool = True

    def __post_init__(self):
        object.__setattr__(self, "memory", parse_capacity(self.memory))
        known("policy", self.policy, dict.fromkeys(NAMES), CacheError)

    def hold(self, file, trace) -> "ExpertSlots":
        """The slots for an open file."""
        return ExpertSlots(file, self, trace)


class ExpertSlots(Experts):
    """Experts in slots, by a policy that counts experts; ``waited``: seconds for reads. Adds to the trace a span "access" for
    each expert (hit, miss or bypass), "read" for each that comes from the disk, and "wait"."""

    def __init__(self, file, slots: Slots, trace, spare: int = 1):
        if file.byteorder == "big":
            raise GGUFError(f"{file.path}: direct reads need a little-endian file, but this one is big-endian: convert it")
        self._file, self._trace, self.layout = file, trace, SlotLayout(file)
        size, every = self.layout.size, self.layout.layers * self.layout.experts
        spare *= self.layout.used
        self.count = min(slots.memory // size, every + spare)
        self.capacity = self.count - spare  # experts that the policy keeps; the others are in use or on the way
        if self.capacity < (fewest := self.layout.layers if slots.policy == "ByLayer" else 1):
            raise CacheError(
                f"{file.path}: not enough memory: one token uses {self.layout.used} experts per layer, and "
                f"{format_bytes(slots.memory)} holds only {self.count} of {format_bytes(size)}; give experts at least "
                f"{format_bytes((self.layout.used + fewest) * size)}"
            )
        try:
            self._arena = reserve(self.count * size)
            self._bytes, memory = memoryview(self._arena), np.frombuffer(self._arena, np.uint8)
            advise(memory, "large")
            memory[::PAGE] = 0  # no slot is new to the system when it is first read into
        except (OSError, MemoryError) as error:
            wanted = format_bytes(self.count * size)
            raise CacheError(f"{file.path}: cannot allocate {wanted} for experts ({error}); give less memory") from None
        self._base, self._asked = memory.ctypes.data, slots.policy
        depth = slots.depth or (probed(max(file.paths, key=lambda path: path.stat().st_size), self.layout.matrix))
        self._readers = Readers(file.paths, depth, slots.direct)
        self._broken: Exception | None = None
        self._queue: deque[str] = deque()  # expected, not decided
        self.forget()

    @property
    def how(self) -> str:
        """In words."""
        depth, size = self._readers.depth, format_bytes(self.layout.size)
        read = f"{depth.readers} readers of {format_bytes(depth.piece) if depth.piece else 'whole matrices'}"
        policy = self.policy_name if self._asked != AUTO else f"{AUTO}: {self.policy_name}"
        return f"{self.count:,} slots of {size} by {policy}, {read} {self._readers.how}"

    @property
    def stats(self) -> Stats:
        """Counts of all accesses since the last ``forget``."""
        counts, held = self._counts, len(self.policy)
        loaded = counts["bytes_requested"] - counts["bytes_hit"]
        return Stats(**counts, bytes_loaded=loaded, entries=held, resident_bytes=held * self.layout.size)

    def forget(self) -> None:
        """Begin again: no slot is in use, nothing was asked."""
        for load in getattr(self, "_loads", {}).values():
            load.wait()
        self.policy_name = "LRU" if self._asked == AUTO else self._asked
        self.policy = self._named(self.policy_name)
        self._free, self._held, self._now = deque(range(self.count)), {}, {}
        self._loads: dict[int, Load] = {}  # slot -> what is read into it
        self._order: deque[str] = deque()  # decided and in use, in the order of use
        self._queue.clear()
        self.waited, self._history = 0.0, []
        self._counts = dict.fromkeys(("hits", "misses", "bypassed", "evictions", "bytes_requested", "bytes_hit"), 0)

    # ---- what a pass calls

    def expects(self, names: list[str]) -> set[str]:
        self._check()
        while self._order:
            self._retire(self._order.popleft())
        self._queue.clear()
        of = [self.layout.find(name)[0] for name in names]
        keys = dict.fromkeys(of)
        if self._asked == AUTO and self._history is not None:
            self._choose(keys)
        self._queue += keys
        self._decide()
        coming = {key for key in keys if key not in self._now or ((load := self._loads.get(self._now[key])) and load.coming)}
        return {name for name, key in zip(names, of, strict=True) if key in coming} if coming else set()

    def blocks(self, name: str) -> np.ndarray:
        if not name.endswith("]"):
            return blocks_of(self._file, name)  # a whole stack, which nothing but a check of weights asks for
        stack = self.layout.find(name)[1]
        start = self.address(name) - self._base
        return np.frombuffer(self._bytes[start : start + stack.each], np.uint8).reshape(stack.rows, -1)

    def address(self, name: str) -> int:
        self._check()
        key, stack, expert = self.layout.find(name)
        if self._queue:
            self._move_to(key)
        if key not in self._now:  # transformers' modules announce nothing
            self.expects([name])
        slot = self._now[key]
        if slot in self._loads:
            self._wait(key, slot)
        return self._base + slot * self.layout.size + stack.place + (stack.offset + expert * stack.each) % PAGE

    def close(self) -> None:
        if self._broken is None:
            self._broken = CacheError(f"{self._file.path}: its slots of experts are closed; make the weights again")
        self._readers.close()
        self._queue.clear()
        self._bytes = self._arena = None

    # ---- decisions, in the order of use

    def _check(self):
        if self._broken:
            raise self._broken

    def _move_to(self, key):
        """The experts before ``key`` have been used: their slots may take what comes after it."""
        while self._order and self._order[0] != key:
            self._retire(self._order.popleft())
        self._decide()

    def _decide(self):
        """Ask the policy for what is expected, for as long as there is a slot to read into."""
        self._broken = CacheError(f"{self._file.path}: a choice of experts was interrupted; make the weights again")
        while self._queue and self._free:
            key = self._queue.popleft()
            self._order.append(key)
            self._decide_one(key, layer_of(key))
        self._broken = None

    def _decide_one(self, key, layer):
        start, nbytes, counts = time.perf_counter_ns(), self.layout.bytes[layer], self._counts
        counts["bytes_requested"] += nbytes
        if self.policy.request(key, 1):
            counts["hits"] += 1
            counts["bytes_hit"] += nbytes
            self._now[key], outcome = self._held[key], "hit"
        else:
            counts["misses"] += 1
            self._now[key] = slot = self._start(key, layer, nbytes)
            evicted = self.policy.insert(key, 1)
            outcome = "bypass" if evicted is None else "miss"
            counts["bypassed"] += evicted is None
            for name in evicted or ():
                counts["evictions"] += 1
                old = self._held.pop(name)
                if name not in self._now:  # else when it has been used
                    self._free.append(old)
            if evicted is not None:
                self._held[key] = slot
        self._trace.add("access", start, time.perf_counter_ns(), key, layer, nbytes=nbytes, outcome=outcome)

    def _start(self, key, layer, nbytes, readers: Readers | None = None) -> int:
        """A free slot, into which the expert is read."""
        slot, token, size = self._free.popleft(), self._trace.token, self.layout.size
        if slot in self._loads:  # of an expert that nobody waited for, because a pass was interrupted
            self._loads.pop(slot).wait()
        view = self._bytes[slot * size : (slot + 1) * size]

        def done(load):
            how = self._readers.how.partition(" (")[0]
            self._trace.add("read", load.start, load.end, key, layer, token, nbytes, how)

        expert = int(key[key.index("[") + 1 : -1])
        self._loads[slot] = (readers or self._readers).start(self.layout.reads(layer, expert, view, key), done)
        return slot

    def _retire(self, key):
        slot = self._now.pop(key)
        if self._held.get(key) != slot:
            self._free.append(slot)

    def _wait(self, key, slot):
        start, load = time.perf_counter_ns(), self._loads[slot]
        waits = load.coming
        try:
            load.wait()
        except Exception as error:
            self._broken = error
            raise
        del self._loads[slot]
        if waits:
            end = time.perf_counter_ns()
            self.waited += (end - start) / 1e9
            self._trace.add("wait", start, end, key, layer_of(key))

    def _choose(self, keys):
        """After the first tokens the policy that would have hit most of them, which begins with what is held."""
        token = self._trace.token
        if token > FIRST and self._history:
            accesses = Requests([key for _, key in self._history], [1] * len(self._history), [now for now, _ in self._history])
            names = [name for name in ("LRU", *NAMES[1:]) if name != "ByLayer" or self.capacity >= self.layout.layers]
            hits = {name: replay(accesses, self._named(name)).hits for name in names}
            self.policy_name = max(hits, key=hits.get)
            held, self._history = list(self.policy), None
            if self.policy_name != "LRU":
                self.policy = self._named(self.policy_name)
                adopt(self.policy, held)
                for key in [key for key in self._held if key not in self.policy]:
                    self._free.append(self._held.pop(key))
            return
        self._history += [(token, key) for key in keys]

    def _named(self, name) -> Policy:
        return policy_named(name, self.capacity, self.layout.layers)


def adopt(policy: Policy, held: list[str]) -> None:
    """Each of ``held``, from the least recently used on, is asked for and offered once."""
    for key in held:
        if not policy.request(key, 1):
            policy.insert(key, 1)


def policy_named(name: str, experts: int, layers: int) -> Policy:
    """A new policy of NAMES that keeps so many experts; "ByLayer" has an equal part for each layer."""
    return ByLayer(experts, layers=layers) if name == "ByLayer" else POLICIES[name](experts)
