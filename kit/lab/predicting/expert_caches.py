"""A cache for experts: hits, bytes and predicted seconds per token for each policy, from routes, memory and the disk's speed.

Below that, per layer: what a measured decode (kit.lab.findings.expert_ways) misses according to a replay, and waits for.
"""

import math
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pandas as pd

import kit
from kit.cache.policies.partitioned import ByLayer
from kit.cache.replay import replay_hits
from kit.cache.traces import Requests, hottest
from kit.errors import CacheError
from kit.gguf.names import key_of, layer_of
from kit.gguf.uses import uses_of
from kit.lab import tables
from kit.lab.measuring.process import process_bytes
from kit.lab.predicting.bounds import stack_distances
from kit.lab.predicting.routes import Routes
from kit.model.slots import policy_named
from kit.units import format_bytes

ONLINE = ("LRU", "LFU", "S3FIFO", "LIRS", "TinyLFU", "ARC", "CLOCK", "SIEVE")  # policies that know the past alone
CAPPED, LEARNED, HINDSIGHT = "LRU, a cap for each layer", "hottest of the first half, fixed", "hottest in hindsight, fixed"
NOBODY = ("MIN", HINDSIGHT)  # rows that know the future: what nobody can build


def dense_bytes(file) -> int:
    """Bytes that every token uses: all tensors except experts and an embedding from which a token takes one row."""
    return sum(use.nbytes for use in uses_of(file) if not use.is_rows and "_exps." not in use.name)


@dataclass(frozen=True)
class ExpertBudget:
    """Routes on a machine. ``memory``: bytes for everything; ``dense``: bytes of the weights that every token uses; ``disk``,
    ``read``: GB/s of direct reads and of memory; ``process``: bytes of the process (measuring.process). Hits are counted in the
    second half of the decoded tokens; everything before it warms up."""

    routes: Routes
    memory: int
    dense: int
    disk: float | None = None
    read: float | None = None
    process: int = field(default_factory=process_bytes)

    def __post_init__(self):
        if self.room <= self.routes.expert_bytes.max():
            least = format_bytes(self.dense + self.process + self.routes.expert_bytes.max())
            had = format_bytes(self.memory)
            raise CacheError(f"--memory {had} has no room for experts after the dense weights; give more than {least}")

    @property
    def room(self) -> int:
        """Bytes for experts, after the dense weights, because every token uses those."""
        return self.memory - self.dense - self.process

    def split(self):
        """(all accesses, index of the first that is counted, number of counted tokens)."""
        accesses = self.routes.requests()
        last = accesses.tokens[-1] if len(accesses) else 0
        half = last - max(1, last // 2)  # of one token alone, that one
        return accesses, int(np.searchsorted(accesses.tokens, half + 1)), max(1, last - half)

    def seconds(self, missed: float) -> float | None:
        """Seconds per token that reads ``missed`` bytes from the disk, and then each byte that it uses once from memory."""
        if not self.disk or not self.read:
            return None
        return missed / (self.disk * 1e9) + (self.dense + self.routes.cycle) / (self.read * 1e9)

    def table(self, policies=ONLINE) -> pd.DataFrame:
        """One row per policy: slots per layer, hits, bytes read per token, seconds per token. MIN's row is the lower bound."""
        accesses, first, judged = self.split()
        sizes = np.array(accesses.sizes[first:])
        ways = {name: kit.cache.POLICIES[name](self.room) for name in policies}
        layers = np.count_nonzero(self.routes.expert_bytes)
        ways[CAPPED] = ByLayer(self.room, layers=self.routes.layers)
        ways[LEARNED] = kit.Pinned(self.room, names=hottest(accesses[:first], self.room))
        ways[HINDSIGHT] = kit.Pinned(self.room, names=hottest(accesses[first:], self.room))
        ways["MIN"] = kit.MIN(self.room)
        slots = self.room / np.mean(self.routes.expert_bytes[self.routes.expert_bytes > 0]) / layers
        rows = []
        for name, policy in ways.items():
            hit = replay_hits(accesses, policy)[1][first:]
            missed = float(sizes[~hit].sum()) / judged
            rows.append((name, min(slots, self.routes.experts), float(hit.mean()), missed, self.seconds(missed)))
        table = tables.frame(rows, "policy", "slots a layer", "hits", "read, B", "a token, s")
        return table.assign(**{"tok/s": 1 / table["a token, s"].astype(float)})

    def least_memory(self, speed: float) -> int | None:
        """The least memory in bytes with which LRU is predicted to reach ``speed`` tokens per second; None if no memory
        suffices."""
        accesses, first, judged = self.split()
        allowed = (1 / speed - self.seconds(0)) * self.disk * 1e9 * judged  # bytes that may be missed
        distances, sizes = stack_distances(accesses)[first:], np.array(accesses.sizes[first:])
        if allowed < 0:
            return None
        order = np.argsort(np.where(distances < 0, np.iinfo(np.int64).max, distances), kind="stable")
        left = sizes.sum() - np.cumsum(sizes[order])  # missed when all up to here are held
        enough = np.flatnonzero((left <= allowed) & (distances[order] >= 0))
        if sizes.sum() <= allowed:
            return self.dense + self.process + int(self.routes.expert_bytes.max())
        return self.dense + self.process + int(distances[order][enough[0]]) if len(enough) else None

    def advice(self, table: pd.DataFrame) -> str:
        """What to do, in one line, from the table."""
        hits, online = table["hits"], [name for name in table.index if name not in NOBODY]
        best, (accesses, _, _) = hits[online].idxmax(), self.split()
        place, touched = f"{format_bytes(self.memory)} ({format_bytes(self.room)} for experts)", sum(accesses.objects.values())
        if self.room >= touched:
            return f"{place}: all {format_bytes(touched)} of experts that were used fit: every policy keeps them."
        if self.room < self.routes.cycle:
            least = f"less than one token's {format_bytes(self.routes.cycle)}"
            lead = f"{least}: LRU hits {hits['LRU']:.0%}, {best} {hits[best]:.0%}"
        else:
            behind = f"{100 * (hits[best] - hits['LRU']):.1f} points below {best}, the best that does not know the future"
            lead = f"LRU hits {hits['LRU']:.0%}, {behind if best != 'LRU' else 'the most without knowledge of the future'}"
        text = f"{place}: {lead}; MIN, which knows the future, {hits['MIN']:.0%}"
        if not (self.disk and self.read):
            return f"{text}."
        faster = table["a token, s"]["LRU"] / table["a token, s"][best] - 1
        waits = table["read, B"]["LRU"] / (self.disk * 1e9) / table["a token, s"]["LRU"]
        how = f"with LRU {waits:.0%} of the time per token is spent waiting for the disk"
        return f"{text}; {how}" + f"; {best} would make a token {faster:.0%} faster" * bool(faster >= 0.005) + "."


def sorted_routes(routes: Routes, tokens: int) -> tuple[list[dict[int, list[int]]], Requests]:
    """(for each token its experts by layer, the same as accesses), in the order in which a pass uses them: experts rising."""
    steps = [{layer: sorted(ids) for layer, ids in step} for step in routes.decoded[:tokens]]
    rows = [(layer, expert, token) for token, step in enumerate(steps) for layer, ids in step.items() for expert in ids]
    keys = [key_of(layer, expert) for layer, expert, _ in rows]
    return steps, Requests(keys, [int(routes.expert_bytes[layer]) for layer, _, _ in rows], [token for _, _, token in rows])


def waited(future: Requests, hit: np.ndarray, gbps: float, per_byte: float) -> np.ndarray:
    """(2, tokens): the bytes that each token misses, and the seconds that its layers wait for them.

    A layer's experts are read in the order of use, at ``gbps`` however few they are: readers share an expert's matrices.
    Meanwhile those that are in memory are multiplied, which takes ``per_byte`` seconds per byte. So a layer waits for the read
    that ends longest after the arithmetic before it.
    """
    waits, sizes = np.zeros((2, future.tokens[-1] + 1)), np.array(future.sizes)
    place = [(token, layer_of(key)) for token, key in zip(future.tokens, future.keys, strict=True)]
    for (token, _), uses in groupby(range(len(place)), key=place.__getitem__):
        size, missed = sizes[uses := [*uses]], ~hit[uses]
        ends = np.cumsum(size[missed]) / gbps / 1e9
        late = ends - per_byte * (np.cumsum(size) - size)[missed]
        waits[:, token] += size[missed].sum(), late.max(initial=0)
    return waits


def replayed(live: Routes, run, way, slots: float, gbps: float, per_byte: float) -> np.ndarray:
    """``waited`` of each token in a run's second half, for the misses of the policy of a way (kit.lab.findings.offload) over so
    many ``slots``."""
    _, future = sorted_routes(live, len(run.seconds))
    hit = replay_hits(future.counted(), policy_of(way.policy or "LRU", int(slots), future))[1]
    beside = way.holds == "slots" or way.advice == "willneed"  # others ask when they need it; llama.cpp routes for itself
    waits = waited(future, hit, gbps, per_byte if beside else 0.0)
    return waits[:, len(run.seconds) // 2 :] * (1.0 if way.policy else math.nan)


def policy_of(name: str, slots: int, future: Requests):
    """The policy of a way, over ``slots`` experts; MIN knows ``future``."""
    if name == "MIN":
        return kit.MIN(slots, future=future.counted())
    return policy_named(name, slots, len({*map(layer_of, future.keys)}))
