"""Replays for the claims about experts' caches, and a live text with its own routes, on which the policies are judged."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

import kit
from kit.cache.replay import replay_hits
from kit.cache.stats import Stats
from kit.lab import tables
from kit.lab.measuring.kept import once_a_run
from kit.lab.predicting import routing
from kit.lab.predicting.routes import Routes, of_spans
from kit.model.generate import Generation
from kit.model.slot_layout import SlotLayout
from kit.model.slots import policy_named

ONLINE = ("LFU", "S3FIFO", "LIRS", "TinyLFU", "ARC", "CLOCK", "SIEVE")  # beside LRU
_HALF, _LONG = 0.492, 1300  # what LRU hits, and tokens of a record, where two claims look


class LiveText(NamedTuple):
    """``text``: what a model answered from slots with LRU; ``routes``: what its router chose; ``stats``: of the slots;
    ``hits``: % of uses that each policy hits in a replay of these routes with as many slots, for all tokens and for decoded
    ones."""

    text: Generation
    routes: Routes
    stats: Stats
    hits: object


@once_a_run
def answered(path, prompt, tokens: int, share: float = 0.25, policies=("LRU", *ONLINE)) -> LiveText:
    """Let a mixture answer with its own router; slots hold ``share`` of its experts, and at least those of one token."""
    with kit.open(path, pages="small") as file:
        layout = SlotLayout(file)
        weights = kit.Weights(
            file, experts=kit.Slots(max(layout.least, int(share * layout.layers * layout.experts * layout.size)))
        )
        try:
            model = kit.Transformer(weights, linear="fused-int8")
            text = kit.generate(model, prompt, tokens, stop_at_end=False)
            routes, held = of_spans(weights.trace.spans, file), weights.experts
        finally:
            weights.close()
    uses, rows = routes.requests().counted(), {}
    decoded = np.array(uses.tokens) > 0
    ways = {name: policy_named(name, held.capacity, layout.layers) for name in policies}
    for name, policy in (ways | {"MIN": kit.MIN(held.capacity)}).items():
        hit = 100 * replay_hits(uses, policy)[1]
        rows[name] = hit.mean(), hit[decoded].mean() if decoded.any() else np.nan
    return LiveText(text, routes, held.stats, tables.frame(rows, "policy", "hits of all, %", "of decoded tokens, %"))


def counted(every: Mapping[str, Routes], hit: Callable, apart: Mapping[str, np.ndarray], seed: int = 0):
    """(hits in % of each record by policy at 3000 MiB and by LRU at the claims' sizes, (claim, part) -> what was counted).

    ``hit(name, policy, bytes)``: in % of a decode; ``apart``: the stack distances of each record's decode."""
    points, values = {}, {}
    for name, record in every.items():
        layer = record.expert_bytes.sum()  # of one expert in each layer
        sizes = {"below": 0.9 * record.cycle, "40 %": 0.4 * record.experts * layer, "24": 24 * layer, "40": 40 * layer}
        points[name] = {policy: hit(name, policy, 3000 << 20) for policy in ("LRU", *ONLINE, "MIN")}
        points[name] |= {what: hit(name, "LRU", size) for what, size in sizes.items()}
    at, full = points.values(), every["qwen"]
    values["cliff", 0], values["forty", 0] = [p["below"] for p in at], [points["qwen"]["40 %"]]
    values["optimum", 0], values["slots", 0] = [p["MIN"] - p["LRU"] for p in at], [p["40"] - p["24"] for p in at]
    values["return", 0] = [100 * routing.returned(full, 1)]
    even, held = routing.draw(full, 0.0, 0.0, 6, 128, seed).requests(), int(full.experts * full.expert_bytes.sum()) // 4
    values["even-share", 0] = [max(100 * replay_hits(even, make(held))[1][18000:].mean() - 25 for make in (kit.LRU, kit.LFU))]
    for part, share in enumerate((1, 2)):
        rooms = {name: share * record.cycle for name, record in every.items()}
        values["one-cycle", part] = [hit(name, "LFU", room) - hit(name, "LRU", room) for name, room in rooms.items()]
    rooms = {name: np.sort(np.where(each < 0, np.inf, each))[int(_HALF * len(each))] for name, each in apart.items()}
    values["gap", 0] = [hit(name, "MIN", room) - hit(name, "LRU", room) for name, room in rooms.items() if room < np.inf]
    prompts = [used(record, record.token < record.prompt) for record in every.values() if record.prompt]
    values["prompt", 0] = [share for share in prompts if share]
    values["no-hot-set", 0] = [used(record, record.token >= 0) for record in every.values() if len(record.decoded) >= _LONG]
    return points, values


def used(routes: Routes, where: np.ndarray) -> float:
    """The share in % of a model's experts that some of a record's rows use."""
    pairs = {*zip(routes.layer[where].tolist(), routes.expert[where].tolist(), strict=True)}
    return 100 * len(pairs) / routes.experts / np.count_nonzero(np.bincount(routes.layer))
