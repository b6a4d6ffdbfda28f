"""A mixture larger than memory, under a real limit: the kit's slots, the page cache alone, llama.cpp by its load modes.

Every side is a process under a control group's limit, on the same file and the same random tokens, from a dropped page cache.
The model's own router chooses; generated weights send most tokens to the same experts, which is the easiest case. So the kit's
sides run with drawn routes as well (kit.lab.routing, with the parameters of the Qwen3 capture), from the first decoded token
on. A token's seconds are the median of the second half. "least, s" is what no way can pass: its misses from the disk, or all
its bytes from memory, whichever takes longer. "kit, slots of" is slots of more and more bytes under one limit.
"""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import kit
from benchmarks._engines import IK, IkLlama, no_ik
from kit.cache.stats import Stats
from kit.errors import ReportError
from kit.gguf import pagecache
from kit.gguf.sources import largest_part
from kit.lab import child, routing, state
from kit.lab.costs.expert_caches import dense_bytes
from kit.lab.findings.offload import OFFLOADS, HeldBy
from kit.lab.group import Group, missing_rights
from kit.lab.llama_cpp import ENVIRONMENT, LOAD_MODES, Llama
from kit.lab.routes import Routes, geometry_of
from kit.lab.synthetic.write import cached_model
from kit.model import budget, readers
from kit.model.slot_layout import SlotLayout
from kit.system import counters, own_memory, peak_memory
from kit.system.paths import models_folder

MODEL, LAYERS = "qwen3-30b-a3b", {"whole": None, "8 layers": 8}  # 19 GB, 3 GB
SHARES = (1 / 8, 1 / 4, 1 / 2)  # of the file's bytes, beside what a process needs without a model
PROMPT, TOKENS, PATIENCE = 512, 48, 240.0  # seconds after which a side takes no further token
SLOTS, CACHE, DRAWN = "kit, slots", "kit, page cache", ", drawn routes"
PEERS = {f"llama.cpp, {mode}": mode for mode in LOAD_MODES}
IKS = {IK: {}, f"{IK}, prefetch-experts": {"prefetch_experts": True}}
TOO_LARGE = "kit, slots of "
BUDGETS = (1.0, 1.5, 2.0, 3.0, 5.0)  # of one token's experts; and up to the limit: what is left for dense weights below
LEFT = (1.0, 0.5, 0.0)


def run(only: str = "") -> pd.DataFrame:
    """One row for each model, limit and way; ``only``: of the names that hold this, such as "8 layers" or "0.25 of";
    "kit, slots;" is that name's end."""
    if lacks := missing_rights(swap=False):
        raise ReportError(f"a memory limit needs {', '.join(lacks)}")
    rows = []
    for depth, layers in LAYERS.items():
        cases = [(f"{depth}, {share:.3g} of the file, {way}", share, way) for share in SHARES for way in _ways()]
        cases += [(f"{depth}, 0.25 of the file, {TOO_LARGE}{drawn}", 0.25, TOO_LARGE + drawn) for drawn in ("", DRAWN)]
        wanted = [case for case in cases if only in f"{case[0]};"]
        if wanted:
            path = cached_model(MODEL, layers=layers, folder=models_folder())
            for name, share, way in wanted:
                rows += _measured(path, name, share, way)
    return pd.DataFrame(rows).set_index("what")


def _ways():
    return [SLOTS, SLOTS + DRAWN, CACHE, CACHE + DRAWN, *PEERS, *([] if no_ik() else IKS)]


def _measured(path: Path, name: str, share: float, way: str):
    """The rows of a case, one a budget of slots where the way has several."""
    own = child.call(_own)
    limit = own + int(share * path.stat().st_size) >> 20 << 20  # whole pages, as the system takes it
    with kit.open(path) as file:
        dense, layout = dense_bytes(file), SlotLayout(file)
    cycle = layout.used * layout.layers * layout.size
    sizes = [None]
    if way.startswith(TOO_LARGE):
        room = limit - own
        sizes = [int(times * cycle) for times in BUDGETS if times * cycle < room - dense]
        sizes += [max(cycle, int(room - left * dense)) for left in LEFT]
    for size in sizes:
        with TemporaryDirectory(dir=models_folder()) as folder, Group(Path(folder), 0) as group:
            how = {"run": lambda *a, **k: group.run(*a, limit=limit, **k), "timeout": 3 * PATIENCE}
            how |= {"env": _environment(way)}
            try:
                taken = child.call(_taken, str(path), way, limit, size, PROMPT, TOKENS, PATIENCE, **how)
            except ReportError as error:
                yield {"what": f"{name} {size or ''}", "limit, GiB": limit / 2**30, "told": str(error)}
                continue
        seconds, half = taken["seconds"], len(taken["seconds"]) // 2
        missed = np.mean(taken["missed"][half:]) if way.startswith(SLOTS) else np.nan
        floor = max(missed / (taken["disk"] * 1e9), (dense + cycle) / (state.probe_state().read_gbps * 1e9))
        token, held = float(np.median(seconds[half:])), f"{size / cycle:.2f} tokens' experts" if size else ""
        yield {
            "what": name.replace(TOO_LARGE, TOO_LARGE + held), "limit, GiB": limit / 2**30,
            "a token, s": token, "least, s": floor, "of the least": token / floor,
            "prompt, s": taken["prompt"], "MB read a token": np.mean(taken["read"][half:]) / 1e6, "hits": taken["hits"],
            "peak, GiB": taken["peak"] / 2**30, "disk, GB/s": taken["disk"], "tokens": len(seconds), "told": taken["told"],
        }  # fmt: skip


def _environment(way):
    return os.environ | (ENVIRONMENT if way in PEERS or way in IKS else {})


# ---- in the child


def _own() -> int:
    """Bytes of a process without a model: what the limit leaves beside the share of the file."""
    import torch

    torch.zeros(1)
    return max(budget.PROCESS, own_memory())


def _taken(path, way, limit, size, prompt, tokens, patience) -> dict:
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
        if number + 1 >= min(8, tokens) and sum(found["seconds"]) > patience:
            break
    told, last = end(), missed()[1]
    asked = last[1] - hits[1]
    disk = max(readers.random_gbps(largest_part(Path(path)), count, 1 << 20, 0.2, count) for count in (2, 4, 8))
    rate = (last[0] - hits[0]) / asked if asked else float("nan")
    return found | {"prompt": taken, "hits": rate, "peak": peak_memory(), "disk": disk, "told": told}


def _by_the_kit(path, way, limit, size, context):
    """(a pass over tokens, the bytes missed and (hits, uses) so far, the way in words at the end)."""
    file = kit.open(path, pages="small")
    held = way.removesuffix(DRAWN)
    if held == SLOTS:
        weights, found = budget.weights_within(file, limit, context=context)
        told = str(found)
    else:
        keeps = kit.Slots(size) if size else HeldBy(OFFLOADS["mapped"], 0, None) if way.endswith(DRAWN) else None
        weights, told = kit.Weights(file, experts=keeps), ""
    model = kit.Transformer(weights, linear="fused-int8", max_context=context, kv_dtype="float16")
    cache, slots, routes = model.new_cache(), weights.experts, None
    if way.endswith(DRAWN):
        like, fit = Routes("", *[np.zeros(0, np.int64)] * 3, 0, *geometry_of(file)), routing.FITTED["qwen"]
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
