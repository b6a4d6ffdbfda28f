"""The ways to hold the experts of a mixture that notebook 10 compares: mapped, or in slots as kit.model.slots fills them."""

import re
from typing import NamedTuple

import kit
from kit.cache.stats import Stats
from kit.cache.traces import Requests, hottest
from kit.gguf import pagecache
from kit.gguf.names import blocks_of, layer_of
from kit.lab.predicting.expert_caches import policy_of
from kit.model.readers import Depth, Readers
from kit.model.slots import Experts, ExpertSlots


class Offload(NamedTuple):
    """``holds``: "mapped", "slots" or "llama.cpp", which maps the file and routes for itself. Mapped: ``advice`` for
    pagecache.advise, when ("once" or "routed"). Slots: ``policy``, reading past the page cache (``direct``) or through it, by
    so many ``readers``, and ``ahead``: the next layer's last experts are read meanwhile. ``locked``: what mlock keeps: "dense",
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
OF_RECORD = {f"a token, {way}": way for way in OFFLOADS}  # by the quantity of a record


def named(way: str) -> str:
    """A way in a sentence: nobody has said yet what it is past."""
    return way.replace("past it", "filled past the page cache")


class HeldBy(NamedTuple):
    """A way with ``keep`` bytes for experts and the accesses that will come, for ``kit.Weights(file, experts=HeldBy(...))``."""

    way: Offload
    keep: int
    future: Requests

    def hold(self, file, trace):
        """The object that holds the experts."""
        return Mapped(file, self) if self.way.holds == "mapped" else Routed(file, self, trace)


class Mapped(Experts):
    """Every expert in the mapped file, with advice to the system or locked."""

    waited, stats = 0.0, Stats()

    def __init__(self, file, held: HeldBy):
        way, stacks = held.way, [name for name in file.tensors if "_exps." in name]
        self._file, self._asked_for = file, way.advice if way.when == "routed" else ""
        self._given = {}  # the blocks whose address somebody has, by name
        if way.when == "once":
            for name in stacks:
                pagecache.advise(file.blocks(name), way.advice)
        lock_dense(file, way)
        if way.locked == "hottest":
            for key in hottest(held.future, held.keep * 4 // 5):  # in hindsight; the rest of the map needs a little too
                layer, expert = map(int, re.findall(r"\d+", key))
                for name in (name for name in stacks if name.startswith(f"blk.{layer}.")):
                    pagecache.advise(file.blocks(name)[expert], "lock")

    def expects(self, names) -> set[str]:
        """Told what the router chose, matrix by matrix, before it is used."""
        for name in names if self._asked_for else ():
            pagecache.advise(self.blocks(name), self._asked_for)
        return set()

    def blocks(self, name):
        """In the map."""
        return blocks_of(self._file, name)

    def address(self, name):
        """In the map."""
        return self._given.setdefault(name, self.blocks(name)).ctypes.data

    def close(self) -> None:
        """Nothing to free."""


class Routed(ExpertSlots):
    """kit.Slots as a way asks for them. ``ahead``: while a layer computes, a thread of its own reads the experts that the next
    layer used for the last token."""

    def __init__(self, file, held: HeldBy, trace):
        self._held_by, self._ahead = held, None
        self._guesses, self._last = {}, {}  # key -> slot; layer -> its experts for the last token
        direct, depth = held.way.direct, Depth(held.way.readers)
        super().__init__(file, kit.Slots(held.keep, depth=depth, direct=direct), trace, spare=3 if held.way.ahead else 1)
        lock_dense(file, held.way)
        if held.way.ahead:
            self._ahead = Readers(file.paths, Depth(1), direct)

    def _named(self, name):
        return policy_of(self._held_by.way.policy, self.capacity, self._held_by.future)

    def expects(self, names):
        self._free += self._guesses.values()  # wrong guesses
        coming = super().expects(names)
        if self._ahead:
            layer, self._guesses = layer_of(names[0]), {}
            self._last[layer] = dict.fromkeys(self.layout.find(name)[0] for name in names)
            following = layer + 1 if layer + 1 in self.layout.bytes else min(self.layout.bytes)
            for key in self._last.get(following, ()):
                if key not in self.policy and self._free:
                    self._guesses[key] = super()._start(key, following, self.layout.bytes[following], self._ahead)
        return coming

    def _start(self, key, layer, nbytes):
        slot = self._guesses.pop(key, None)
        if slot in self._free:  # else another expert has taken it meanwhile
            self._free.remove(slot)
            return slot
        return super()._start(key, layer, nbytes)

    def close(self):
        if self._ahead:
            self._ahead.close()
        super().close()


def lock_dense(file, way: Offload) -> None:
    """Lock the weights that every token uses, if the way does this."""
    if way.locked == "dense":
        for name in file.tensors:
            if "_exps." not in name:
                pagecache.advise(file.blocks(name), "lock")
