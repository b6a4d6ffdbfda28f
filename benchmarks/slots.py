"""A mixture larger than memory, under a real limit: the kit's slots, the page cache alone, llama.cpp by its load modes.

Every side is a process under a control group's limit, on the same file and the same random tokens, from a dropped page cache.
The model's own router chooses; generated weights send most tokens to the same experts, which is the easiest case. So the kit's
sides run with drawn routes as well (predicting.routing, with the parameters of the Qwen3 capture), from the first decoded token
on. A token's seconds are the median of the second half. "least, s" is what no way can pass: its misses from the disk, at
its probe's speed or that of the fastest token, or all its bytes from memory, whichever takes longer. "kit, slots of" is slots
of more and more bytes under one limit.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd

import kit
from benchmarks._engines import IK, IkLlama, no_ik
from benchmarks._files import cached_model
from kit.cache.stats import Stats
from kit.errors import ReportError
from kit.gguf import pagecache
from kit.gguf.sources import largest_part
from kit.lab.engines.llama_cpp import ENVIRONMENT, LOAD_MODES, Llama
from kit.lab.findings.offload import OFFLOADS, HeldBy
from kit.lab.measuring import child, state
from kit.lab.measuring.group import Group, missing_rights
from kit.lab.predicting import routing
from kit.lab.predicting.expert_caches import dense_bytes
from kit.model import budget, readers
from kit.model.footprint import LIBRARIES, RUNNING
from kit.model.slot_layout import SlotLayout
from kit.system import counters, own_memory, peak_memory
from kit.system.paths import models_folder

MODEL, LAYERS = "qwen3-30b-a3b", {"whole": None, "8 layers": 8}  # 19 GB, 3 GB
SHARES = (1 / 8, 1 / 4, 1 / 2)  # of the file's bytes, beside what a process needs without a model
PROMPT, TOKENS = 512, 48
WITHIN, START = 120.0, 15.0  # seconds of a side; and of its first imports and last words
SLOTS, CACHE, DRAWN = "kit, slots", "kit, page cache", ", drawn routes"
PEERS = {f"llama.cpp, {mode}": mode for mode in LOAD_MODES}
IKS = {IK: {}, f"{IK}, prefetch-experts": {"prefetch_experts": True}}
BUDGETS = {f"{times:g} tokens' experts": (times, 0.0) for times in (1.0, 1.5, 2.0, 3.0, 5.0)} | {
    f"all but {left:g} of the dense weights": (0.0, left) for left in (1.0, 0.5, 0.0)
}  # of the memory under the limit (tokens' experts, or the share of the dense weights that they leave)


class Case(NamedTuple):
    """``size``: of BUDGETS, "": as ``kit generate --memory`` divides the limit."""

    depth: str
    share: float
    way: str
    size: str = ""

    def __str__(self):
        way = f"{SLOTS} of {self.size}{DRAWN}" if self.size else self.way
        return f"{self.depth}, {self.share:.3g} of the file, {way}"


def parts(only: str = "", within: float = WITHIN) -> Iterator[pd.DataFrame]:
    """One row for each model, limit and way, as soon as it is measured; ``only``: of the names that hold this, such as
    "8 layers" or "0.25 of"; "kit, slots;" is that name's end."""
    if lacks := missing_rights(swap=False):
        raise ReportError(f"a memory limit needs {', '.join(lacks)}")
    ways = [SLOTS, SLOTS + DRAWN, CACHE, CACHE + DRAWN, *PEERS, *([] if no_ik() else IKS)]
    cases = [Case(depth, share, way) for depth in LAYERS for share in SHARES for way in ways]
    cases += [Case(depth, 0.25, SLOTS + DRAWN, size) for depth in LAYERS for size in BUDGETS]
    cases = [case for case in cases if only in f"{case};"]
    print(f"{len(cases)} sides: about {sum(_expected(case, within) for case in cases) / 60:.0f} min", end="", flush=True)
    print(f", at most {len(cases) * (within + START) / 60:.0f}{f'; {no_ik()}' if no_ik() else ''}", flush=True)
    for case in cases:
        path = cached_model(MODEL, layers=LAYERS[case.depth], folder=models_folder())
        if row := _measured(path, case, within):
            yield pd.DataFrame([{"what": str(case), **row}]).set_index("what")


def run(only: str = "", within: float = WITHIN) -> pd.DataFrame:
    """All of ``parts``."""
    return pd.concat([*parts(only, within)])


def _expected(case, within) -> float:
    """Seconds: others than slots take as long as they may, unless the limit ends them at once."""
    if case.way.startswith(SLOTS):
        return min(within, START + TOKENS * (0.3 if LAYERS[case.depth] is None else 0.1))
    return START if case.way in PEERS and PEERS[case.way] != "mmap" else within


def _measured(path: Path, case: Case, within: float) -> dict:
    """Nothing where the memory has no room for ``case.size``."""
    own = child.call(_own)
    limit = own + int(case.share * path.stat().st_size) >> 20 << 20  # whole pages, as the system takes it
    with kit.open(path) as file:
        dense, layout = dense_bytes(file), SlotLayout(file)
    cycle, room, size = layout.used * layout.layers * layout.size, limit - own, None
    if case.size:
        times, left = BUDGETS[case.size]
        size = int(times * cycle) if times else max(cycle, int(room - left * dense))
        if times and size > room - dense:
            return {}
    with TemporaryDirectory(dir=models_folder()) as folder, Group(Path(folder), 0) as group:
        how = {"run": lambda *a, **k: group.run(*a, limit=limit, **k), "timeout": within + START}
        began = time.time()
        try:
            arguments = str(path), case.way, limit, size, PROMPT, TOKENS, began + within
            taken = child.call(_taken, *arguments, **how, env=_environment(case.way))
        except ReportError as error:
            told = f"not within {within:.0f} s" if time.time() > began + within else str(error)
            return {"limit, GiB": limit / 2**30, "told": told}
    seconds, half = taken["seconds"], len(taken["seconds"]) // 2
    token = float(np.median(seconds[half:]))
    missed = taken["missed"][half:] if case.way.startswith(SLOTS) else None
    floor = least(seconds[half:], taken["read"][half:], missed, taken["disk"], dense + cycle, state.probe_state().read_gbps)
    return {
        "limit, GiB": limit / 2**30, "slots, GiB": size and size / 2**30,
        "a token, s": token, "least, s": floor, "of the least": token / floor,
        "prompt, s": taken["prompt"], "MB read a token": np.mean(taken["read"][half:]) / 1e6, "hits": taken["hits"],
        "peak, GiB": taken["peak"] / 2**30, "disk, GB/s": taken["disk"], "tokens": len(seconds), "told": taken["told"],
    }  # fmt: skip


def least(seconds, read, missed, disk: float, used: int, memory: float) -> float:
    """The least seconds of a token in the middle of some: its ``used`` bytes from ``memory``, GB/s, or what it ``missed`` and
    ``read`` from the ``disk``, GB/s; each at the best speed that a token shows. None missed: NaN, a way without slots.

    Token by token: the median token misses less than the mean of them, by which it once took 0.69 of its least."""
    if missed is None:
        return np.nan
    fastest = max(disk * 1e9, *(np.asarray(read) / seconds))
    return max(float(np.median(np.minimum(missed, read))) / fastest, used / max(memory * 1e9, used / min(seconds)))


def _environment(way):
    return os.environ | (ENVIRONMENT if way in PEERS or way in IKS else {})


# ---- in the child


def _own() -> int:
    """Bytes of a process without a model: what the limit leaves beside the share of the file."""
    import torch

    torch.zeros(1)
    return own_memory() + LIBRARIES + RUNNING


def _taken(path, way, limit, size, prompt, tokens, ends) -> dict:
    pagecache.drop(Path(path))
    random = np.random.default_rng(0)
    batch, later = (random.integers(3, 500, count).tolist() for count in (prompt, tokens))
    step, missed, end = (_by_peer if way in PEERS or way in IKS else _by_the_kit)(path, way, limit, size, prompt + tokens)
    found = {"seconds": [], "read": [], "missed": []}
    start = time.perf_counter()
    step(batch, 0)
    taken = time.perf_counter() - start
    hits = missed()[1]
    for number, token in enumerate(later):
        read, before, start = counters()[1], missed()[0], time.perf_counter()
        step([token], prompt + number)
        found["seconds"].append(time.perf_counter() - start)
        found["read"].append(counters()[1] - read)
        found["missed"].append(missed()[0] - before)
        if time.time() + found["seconds"][-1] > ends:
            break
    told, last = end(), missed()[1]
    asked = last[1] - hits[1]
    disk = max(readers.random_gbps(largest_part(Path(path)), count, 1 << 20, 0.2, count) for count in (2, 4, 8, 16))
    rate = (last[0] - hits[0]) / asked if asked else float("nan")
    return found | {"prompt": taken, "hits": rate, "peak": peak_memory(), "disk": disk, "told": told}


def _by_the_kit(path, way, limit, size, context):
    """(a pass over tokens, the bytes missed and (hits, uses) so far, the way in words at the end)."""
    file = kit.open(path, pages="small")
    held = way.removesuffix(DRAWN)
    if held == SLOTS and not size:
        weights, found = budget.weights_within(file, limit, context=context)
        told = str(found)
    else:
        keeps = kit.Slots(size) if size else HeldBy(OFFLOADS["mapped"], 0, None) if way.endswith(DRAWN) else None
        weights, told = kit.Weights(file, experts=keeps), ""
    model = kit.Transformer(weights, linear="fused-int8", max_context=context, kv_dtype="float16")
    cache, slots, routes = model.new_cache(), weights.experts, None
    if way.endswith(DRAWN):
        like, fit = routing.unrecorded(file), routing.FITTED["qwen"]
        drawn = routing.draw(like, fit.skew, fit.back, model.config.experts_used, TOKENS)
        routes = iter([{layer: sorted(ids) for layer, ids in token} for token in drawn.decoded])

    def missed():
        stats = slots.stats if slots else Stats()
        return stats.bytes_loaded, (stats.hits, stats.gets)

    def step(tokens, held):
        if held and routes and slots:  # without slots all fits
            slots.route = next(routes).__getitem__
        model.step(tokens, cache)
        weights.trace.clear()

    return step, missed, lambda: f"{told} {getattr(slots, 'how', '')}".strip()


def _by_peer(path, way, limit, size, context):
    engine = IkLlama(path, context, **IKS[way]) if way in IKS else Llama(path, context, repack=False, load=PEERS[way])
    return (lambda tokens, held: engine.logits(tokens, held, 1)), (lambda: (0, (0, 0))), str
