"""A mixture decodes under a memory limit, with the experts that a record names: several ways to hold them are timed.

The weights are those of a generated file with a real model's shapes. The routing is real: the router is computed, and its
choice is replaced by the record's. Blocks stay quantized, never float32. Every way must give the same logits, bit for bit.
llama.cpp is timed for comparison; its router is not replaced.
"""

import functools
import hashlib
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch

import kit
from kit import system
from kit.cpu.threads import torch_alone
from kit.errors import ReportError
from kit.gguf import pagecache
from kit.gguf.sources import model_bytes
from kit.lab.engines import llama_cpp
from kit.lab.findings.offload import OFFLOADS, HeldBy, named
from kit.lab.measuring import child, disk, drift
from kit.lab.measuring.group import Group, missing_rights
from kit.lab.measuring.kept import once_a_run
from kit.lab.predicting.expert_caches import dense_bytes, sorted_routes
from kit.lab.predicting.routes import request_bytes
from kit.lab.predicting.routing import routes_of
from kit.model.cpu_ops import CpuOps
from kit.system.note import doing
from kit.system.rows import PAGE
from kit.units import format_bytes, format_seconds

_SPARE = 64 << 20  # bytes in addition to weights and slots: what grows while a process runs
_SMALL = 64 << 20  # bytes: of a smaller file some pages always stay
_BUDGET = 0.5  # seconds for each token asked for: when all are spent, a way takes no further one
_LEAST = 8  # tokens that it takes in any case; llama.cpp half as many
_PROBE = 0.02  # seconds in which the disk is read after each token
_FAULTS = 0.08  # by page faults, whose read-ahead takes up to 10 ms a time
_PAST, _WARM = "slots past it, 2 readers", ("mapped", "slots through the page cache")
# the bound of a token
LEAST = "the experts that MIN misses, read at the disk's best speed; or all bytes of a token, read from memory"
_FEW = 4  # tokens, which are decoded three times for the time of a token that reads nothing: late are only warm ones


@dataclass
class TimedDecode:
    """One way of holding experts, timed. Lists have one entry per token:

    - ``seconds``: of the token; ``in_kernel``: of all threads, in the system
    - ``read``: bytes from the disk; ``faults``: major and minor page faults
    - ``waited``: seconds of waiting for slots; ``hits`` of ``asked``: uses of experts (slots only)
    - ``disk``: GB/s of such reads, measured right after the token, because a machine's speed changes from second to second
    - ``beyond``: GB/s of other reads (dense weights that left memory: large reads, as fast as direct ones)
    - ``output``: seconds of the output matrix's product
    - ``resident``: bytes of the process at the end; ``digest``: of the first logits ("" for llama.cpp)
    - ``returned``: of the experts that the router itself would choose, the share that it would have chosen for the token before
    """

    way: str
    seconds: list[float]
    in_kernel: list[float]
    read: list[int]
    faults: list[int]
    minor: list[int]
    waited: list[float]
    hits: list[int]
    asked: list[int]
    disk: list[float]
    beyond: list[float]
    output: list[float]
    resident: int
    digest: str = ""
    returned: float = float("nan")

    def late(self, column: str) -> np.ndarray:
        """The second half of the column, when the caches are warm."""
        values = getattr(self, column)
        return np.array(values[len(values) // 2 :])

    def mean(self, column: str) -> float:
        """Mean of the second half of the column."""
        return float(self.late(column).mean())

    def median(self, column: str) -> float:
        """Median of the known values in the second half of the column; nan if there are none."""
        values = self.late(column)
        return float(np.median(known)) if len(known := values[~np.isnan(values)]) else math.nan

    @property
    def hit_rate(self) -> float:
        """Hits of the experts asked for in the second half; nan without slots."""
        return self.mean("hits") / self.mean("asked") if any(self.asked) else float("nan")

    @property
    def beside(self) -> dict[str, float]:
        """What is reported with a token's seconds: means of the second half."""
        named = {"waited, s": "waited", "in the kernel, s": "in_kernel", "major faults": "faults"}
        named |= {"disk meanwhile, GB/s": "disk", "beyond, GB/s": "beyond", "output meanwhile, s": "output"}
        means = {name: self.mean(column) for name, column in named.items()}
        return {"slowest, s": self.late("seconds").max()} | means | {"resident MiB": self.resident / 2**20}


def ways_of(profile: str) -> list[str]:
    """Names of OFFLOADS: in quick runs those that the claims need, in full runs all."""
    few = ["mapped", "mapped, routed asked for", "slots through the page cache", _PAST, "slots past it, LFU"]
    few += ["slots past it, cap by layer", "slots past it, half the dense given up", "llama.cpp, mapped"]
    return {"smoke": [_PAST], "quick": few}.get(profile, list(OFFLOADS))


class _Routed(CpuOps):
    """A pass whose router is computed, and then replaced by the record's choice."""

    def route(self, name, x):
        layer = int(name.split(".")[1])
        self.weights.own.setdefault(layer, []).append(set(super().route(name, x)[1][0].tolist()))
        chosen = torch.tensor([self.weights.chosen[layer]], dtype=torch.int64, device="cpu")
        return torch.full(chosen.shape, 1 / chosen.shape[1], dtype=torch.float32, device="cpu"), chosen


# --- in the child, under the limit -----------------------------------------------------------------------------------------


_COUNTERS = ("in_kernel", "read", "faults", "minor", "waited", "hits", "asked")  # columns of TimedDecode that only grow
_BESIDE = ("disk", "beyond", "output")  # those that are measured after each token


def _counters(weights) -> tuple:
    held = weights and weights.experts
    return *system.counters(), *((held.waited, held.stats.hits, held.stats.gets) if held else (0.0, 0, 0))


def decode_offloaded(path, capture, name: str, tokens: int, keep: int, warm: bool = False, passes: int = 1) -> TimedDecode:
    """Decode with one of OFFLOADS, from an empty or a ``warm`` page cache; ``passes``: how often the tokens are decoded."""
    if not warm and not pagecache.drop(path) and model_bytes(Path(path)) > _SMALL:
        raise ReportError(f"{path}: cannot drop its pages from memory: end other processes that use the file")
    way = OFFLOADS[name]
    if way.holds == "llama.cpp":
        with llama_cpp.Llama(path, context=64 + tokens, repack=False) as peer:
            run = lambda number, _: peer.logits([1 + number % 3], number, 1)  # noqa: E731
            return _timed(name, None, range(tokens), run, lambda _: (math.nan,) * 3)
    with kit.open(path, pages="small") as file:
        steps, future = sorted_routes(routes_of(file, capture), tokens)
        keep += int(way.given_up * dense_bytes(file))
        weights = kit.Weights(file, experts=HeldBy(way, keep, future))
        weights.own = {}  # layer -> what its router would have chosen, token by token
        model, digest = kit.Transformer(weights, linear="fused-int8"), hashlib.sha256()
        model.ops, model.unplanned, context = _Routed, "a record chooses the experts", model.new_cache(passes * tokens)

        def step(number, chosen):
            weights.chosen = chosen
            logits = model.step([1 + number % 3], context)
            if number < _LEAST:
                digest.update(logits.numpy().tobytes())
            weights.trace.clear()

        output = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
        x, each = torch.ones(1, model.config.hidden_size, dtype=torch.float32, device="cpu"), request_bytes(file)
        at_once = max(len(ids) for step in steps for ids in step.values()) if way.when == "routed" else 0

        def beside(number):
            read, took = system.counters()[1], []
            with torch_alone():
                for _ in range(3):
                    start = time.perf_counter()
                    model.linear.apply(weights, output, x)
                    took.append(time.perf_counter() - start)
            took = median(took) if system.counters()[1] == read else math.nan  # its pages had left memory: not arithmetic
            if way.holds == "mapped":
                return (by_map(file, number, way.advice, at_once),) * 2 + (took,)
            probe = functools.partial(disk.random_gbps, file.largest, way.readers, each, _PROBE, number)
            return (gbps := probe(way.direct)), gbps if way.direct else probe(True), took

        run = _timed(name, weights, passes * steps, step, beside)
        weights.close()
        pairs = [(old, new) for sets in weights.own.values() for old, new in pairwise(sets)]
        shares = [len(old & new) / len(new) for old, new in pairs]
        return replace(run, digest=digest.hexdigest(), returned=float(np.mean(shares)) if shares else float("nan"))


def _timed(name, weights, steps, step, beside) -> TimedDecode:
    columns, began = {column: [] for column in ("seconds", *_COUNTERS, *_BESIDE)}, time.perf_counter()
    for number, chosen in enumerate(steps):
        before, start = _counters(weights), time.perf_counter()
        step(number, chosen)
        columns["seconds"].append(time.perf_counter() - start)
        for column, old, new in zip(_COUNTERS, before, _counters(weights), strict=True):
            columns[column].append(new - old)
        for column, value in zip(_BESIDE, beside(number), strict=True):
            columns[column].append(value)
        fewest = _LEAST if weights else _LEAST // 2
        if number + 1 >= fewest and time.perf_counter() - began > _BUDGET * len(steps):
            break
    return TimedDecode(name, **columns, resident=psutil.Process().memory_info().rss)


def by_map(file, seed: int, advice: str = "", at_once: int = 0) -> float:
    """GB/s at which a layer's experts come from the disk through the map of an open file, what is read with them counted: all
    threads touch their shares of one after the other, or one thread those ``at_once`` in a layer, after ``advice`` for all."""
    stacks = (name for name in file.tensors if "_exps." in name)
    layers = [[*names] for _, names in groupby(stacks, key=lambda name: name.split(".")[1])]
    workers, start, before = 1 if at_once else system.usable_cores(), time.perf_counter(), system.counters()[1]

    def touch(number):
        draw = np.random.default_rng(seed)  # the same of all threads, each of which touches its share of every matrix
        while time.perf_counter() - start < _FAULTS:
            stacks = [file.blocks(name) for name in layers[draw.integers(len(layers))]]
            chosen = np.sort(draw.choice(len(stacks[0]), at_once or 8, replace=False))
            parts = [stack[expert].reshape(-1) for expert in chosen for stack in stacks]
            for part in parts if at_once else ():
                pagecache.advise(part, advice)
            for part in parts:
                share = -(-len(part) // workers)
                part[number * share : (number + 1) * share : PAGE].max(initial=0)
                if not at_once and time.perf_counter() - start >= _FAULTS:
                    break

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(touch, range(workers)))
    read = (system.counters()[1] - before) / (time.perf_counter() - start) / 1e9
    return read or disk.random_gbps(file.largest, workers, request_bytes(file), _PROBE, seed, False)  # all were in memory


# --- in the parent ---------------------------------------------------------------------------------------------------------


@once_a_run
@doing("decoding a mixture under a memory limit")
def measured(path, capture: str, folder: Path, share: float = 0.21, tokens: int = 32, ways=tuple(OFFLOADS)):
    """(facts, runs): each way in a child of its own, under the limit of base + dense weights + ``share`` of the experts.

    facts: bytes ``keep`` (for experts; a page cache has up to ``most``), ``limit`` (None without rights: then mapped ways are
    left out), ``dense``; ``compute``: of a token whose weights are in memory, mapped or in slots, seconds over those of the
    output's product (none when it had no room); ``disk``, ``output``: medians over the ways; ``fastest``: the best GB/s;
    ``routes``: of the layers that the file has; ``under``: the limit in words; ``told``: and why a way has no run (the system
    ended it for memory, say). ReportError when the logits of two ways differ.
    """
    with kit.open(path) as file:
        routes = routes_of(file, capture)
        experts = int(routes.experts * routes.expert_bytes.sum())
        dense = dense_bytes(file)
    keep, lacks = int(share * experts), missing_rights(swap=False)
    room = int((_FEW + 1) * routes.cycle)  # for all experts of the few tokens
    fits = min(experts, room) + room + dense < system.memory_available() // 2
    warm = _child(None, None, path, capture, fits * [*_WARM], min(_FEW, tokens), room, warm=True)
    limit = None if lacks else warm["own"] + dense + keep + _SPARE
    chosen, runs = [name for name in ways if limit or OFFLOADS[name].holds == "slots"], []
    told = under = f"under a limit of {format_bytes(limit)}" if limit else f"without a limit ({', '.join(lacks)} missing)"
    with nullcontext() if lacks else Group(folder, 0) as group:
        for name in chosen:
            try:
                runs += _child(group, limit, path, capture, [name], tokens, keep)["runs"]
            except ReportError as error:
                told += f" ({name}: {error})"
    digests = {run.digest for run in runs if run.digest}
    if len(digests) > 1 or not runs:
        wrong = f"the ways give other logits: {', '.join(run.way for run in runs)}; the disk or the kit is broken"
        raise ReportError(f"{path}: {wrong if runs else f'no way ran {told}'}")
    compute = {OFFLOADS[run.way].holds: run.median("seconds") / run.median("output") for run in warm["runs"]}
    fastest = max(np.nanmax([run.disk, np.divide(run.read, run.seconds) / 1e9]) for run in runs)  # also with read-ahead
    facts = {"keep": keep, "most": keep + (_SPARE if limit else 0), "limit": limit, "dense": dense, "compute": compute}
    facts |= {name: float(np.nanmedian([run.median(name) for run in runs])) for name in ("disk", "output")}
    return facts | {"fastest": fastest, "routes": routes, "under": under, "told": told}, runs


def fastest(by: dict[str, float]) -> str:
    """The fastest of the ways by their seconds per token, in words, with those that one run cannot tell apart from it: times of
    one machine differ by so much from run to run (kit.lab.measuring.drift)."""
    first, *others = sorted(by, key=by.get)
    near = [f'"{named(way)}"' for way in others if by[way] <= drift.factor("s") * by[first]]
    undecided = f"; {' and '.join(near)} {'is' if len(near) == 1 else 'are'} not clearly slower" if near else ""
    return f'"{named(first)}" is the fastest, {format_seconds(by[first])} per token{undecided}'


def gained(times: float) -> str:
    """``"12.3 times as fast"``; ``"1.1 times (uncertain)"`` within what times of one machine differ by from run to run: each
    way has minutes of its own."""
    return f"{times:.1f} times {'as fast' if times > drift.factor('s') else '(uncertain)'}"


def record_tokens(lab, runs, table, mixture: str, limit: str) -> None:
    """Each way's tokens as a record of the run, whose reason is its row of ``table``; its parameters name the file of the
    ``mixture`` and the ``limit`` of memory, in words."""
    for run in runs:
        row = table.loc[run.way].dropna().items()
        told = ", ".join(f"{h[:-3]} {format_seconds(v)}" if h.endswith(", s") else f"{h} {v:.3g}" for h, v in row)
        given = {"quantity": f"a token, {run.way}", "unit": "s", "samples": run.late("seconds").tolist(), "reason": told}
        if (least := table.loc[run.way, "least, s"]) == least:
            given |= {"lower": least, "lower_source": LEAST}
        lab.record(**given, parameters={"mixture": mixture, "limit": limit})


def _child(group, limit, path, capture, names, tokens, keep, warm=False) -> dict:
    how = {"run": functools.partial(group.run, limit=limit)} if group else {}
    peers = any(OFFLOADS[name].holds == "llama.cpp" for name in names)
    how |= {"env": os.environ | (llama_cpp.ENVIRONMENT if peers else {}), "timeout": 900}
    told = child.call(_taken, str(path), capture, names, tokens, keep, warm, **how)
    return told | {"runs": [TimedDecode(**run) for run in told["runs"]]}


def _taken(path, capture, names, tokens, keep, warm) -> dict:
    if warm:  # kernels are compiled, and every page comes into memory and is mapped before it is timed
        with kit.open(path) as file:
            kit.Transformer(kit.Weights(file), linear="fused-int8").step([1], kit.Transformer(kit.Weights(file)).new_cache(8))
        own = system.own_memory()
        runs = [decode_offloaded(path, capture, name, tokens, keep, warm=True, passes=3) for name in names]
    else:
        own, runs = 0, [decode_offloaded(path, capture, name, tokens, keep) for name in names]
    return {"own": own, "runs": [asdict(run) for run in runs]}
