"""What a decode with experts in slots waits for: a replay of its policy on an order of uses, and of MIN as the bound."""

from typing import NamedTuple

import numpy as np

from kit.cache import POLICIES
from kit.cache.replay import replay_hits
from kit.cache.traces import Requests
from kit.gguf.names import key_of, layer_of
from kit.lab.predicting.expert_caches import waited
from kit.model.slots import policy_named
from kit.system.rows import PAGE


class SlotWaits(NamedTuple):
    """Means of a token in the second half of an order. ``wait``: seconds. ``hits``: share of its uses of experts. ``missed``
    and ``least``: bytes that the policy and that MIN miss."""

    wait: float
    hits: float
    missed: float
    least: float


def slot_waits(tokens, blocks, memory: int, policy: str, gbps: float, per_byte: float) -> SlotWaits:
    """``tokens``: for each token the names that it uses in order; ``blocks(name)``: bytes; ``memory``: bytes of slots;
    ``gbps``: of the disk; ``per_byte``: seconds that an expert computes per byte, while the next ones are read."""
    size, padded, keys, sizes, numbers, most = {}, {}, [], [], [], 1
    for number, token in enumerate(tokens):
        used, layers = {}, {}
        for name in token:
            if name.endswith("]"):
                key = key_of(layer_of(name), int(name[name.rindex("[") + 1 : -1]))
                used.setdefault(key, []).append(name)
                layers.setdefault(layer_of(name), set()).add(key)
        for key, names in used.items():
            each = [blocks(name) for name in dict.fromkeys(names)]
            size[key], padded[key] = sum(each), sum((-(-nbytes // PAGE) + 1) * PAGE for nbytes in each)
        most = max([most, *map(len, layers.values())])
        ordered = sorted(used, key=lambda key: (layer_of(key), int(key[key.rindex("[") + 1 : -1])))
        keys += ordered
        sizes += [size[key] for key in ordered]
        numbers += [number] * len(ordered)
    future, half = Requests(keys, sizes, numbers), len(tokens) // 2
    slots = max(1, memory // max(padded.values()) - most)  # one layer's are in use or on the way
    counted = future.counted()
    hit = replay_hits(counted, policy_named(policy, slots, len({*map(layer_of, keys)})))[1]
    best = replay_hits(counted, POLICIES["MIN"](slots, future=counted))[1]
    missed, wait = waited(future, hit, gbps, per_byte)[:, half:].mean(axis=1)
    late = np.array(numbers) >= half
    return SlotWaits(wait, float(hit[late].mean()), missed, float(waited(future, best, gbps, 0.0)[0, half:].mean()))
