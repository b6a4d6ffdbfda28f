"""Decode a model through a cache and record what happens, for both cache notebooks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import torch

import kit
from kit.cache.policies.base import Policy
from kit.cache.prefetch import Prefetcher
from kit.cache.stats import Stats
from kit.cache.traces import Requests, requests
from kit.lab import tables
from kit.lab.claims.gates import NOISE
from kit.lab.measuring import measurements
from kit.lab.measuring.kept import once_a_run
from kit.lab.predicting.ways import KEPT, KEPT_RATE
from kit.system import last_level_cache


@dataclass(frozen=True)
class Live:
    """One decode: seconds of each pass (the first is the prompt's), counts, every access, the last logits. ``held_bytes``:
    bytes in the store, which the statistics of a broken store may not show."""

    label: str
    policy: Policy
    seconds: tuple[float, ...]
    stats: Stats
    accesses: pd.DataFrame
    logits: torch.Tensor
    held_bytes: int

    @property
    def tokens_per_second(self) -> float:
        """Median over the passes after the first."""
        return 1 / float(np.median(self.seconds[1:]))

    @property
    def warm_byte_hit_rate(self) -> float:
        """Bytes hit / bytes requested, after the first pass."""
        return float(np.average(self._warm["outcome"] == "hit", weights=self._warm["nbytes"]))

    @property
    def _warm(self) -> pd.DataFrame:
        return self.accesses[(self.accesses["token"] > 0) & self.accesses["outcome"].notna()]


@once_a_run
def decode(
    file, cache: Policy, label: str = "", passes: int = 4, backend: str = "cpu", linear: str = "dequantized",
    attention: str = "blas", fault: Callable | None = None, prepare: Callable | None = None, prompt: int = 1,
    source: Callable = kit.Weights, device: str = "cpu", ahead: bool = False,
) -> Live:  # fmt: skip
    """Decode ``passes`` tokens one by one from an empty context, with fixed inputs, through ``cache``.

    On the ``device`` "cuda" the cache holds blocks and its capacity counts bytes of device memory; all blocks are also in
    pinned host memory. ``ahead``: the next tensor is copied on a second stream meanwhile, into two tensors' worth of memory of
    its own. No CUDA graph: those need every block to stay.

    ``prompt``: tokens a pass: 1 decodes, more make each pass the inference of a prompt.
    ``fault(policy, trace)`` puts a broken store (kit.lab.findings.faults) in place of the real one; ``prepare(weights)`` runs
    before the first pass and may return a context manager to decode inside (a prefetcher). ``source``: kit.Weights or one
    that loads otherwise.
    """
    trace = kit.Trace()
    if device == "cpu":
        weights = source(file, cache=cache, backend=backend, trace=trace)
        if fault:
            weights.store = fault(cache, trace)
        model = kit.Transformer(weights, linear=linear, attention=attention)
        inside = prepare(weights) if prepare else None
        trace.clear()
    else:
        from kit.lab.on_device.on_gpu import DeviceTransformer, DeviceWeights  # they need Triton

        largest = max(tensor.nbytes for tensor in file.tensors.values())
        weights = DeviceWeights(file, cache, host=kit.HashMap(), ahead=2 * largest if ahead else 0, trace=trace)
        model = DeviceTransformer(weights, max_context=passes, graphs=False)
        inside = None  # the accesses of the vectors, before the first token, are among those of the trace
    context = model.new_cache(passes * prompt)
    with inside or nullcontext():
        for number in range(passes):
            logits = model.step([1 + number % 3] * prompt, context)
    frame, stats = trace.frame(), weights.store.stats
    seconds = tuple(frame.loc[frame["what"] == "token", "seconds"])
    held = getattr(weights.store, "held_bytes", stats.resident_bytes)
    accesses = frame[frame["what"] == "access"]
    return Live(label or repr(cache), cache, seconds, stats, accesses, logits, held)


def all_kept(lab, file, measure: Callable[[], Sequence[float]]) -> list[float]:
    """Tokens per second of an open file with all float32 kept, of which a run has one value: from the store of the page that
    came first, else ``measure()``, seconds of each token, noted for the others."""
    store, digest = measurements.of_run(lab.out), measurements.digest_of(file)
    new = lambda: measurements.Reading(KEPT.label, digest, tuple(measure()), others=lab.others)  # noqa: E731
    reading = measurements.once(store, KEPT.label, digest, new, lab.notebook, busy=True)
    return lab.once(KEPT_RATE, "tok/s", lambda: [1 / seconds for seconds in reading.samples])


def one_pass(file) -> Requests:
    """The accesses of one decode step of this file, in order, from a step without a cache."""
    return requests(decode(file, kit.NoCache(), passes=1).accesses)


def prefetching(order: Requests, arguments: dict | None) -> Callable:
    """A ``prepare`` for ``decode``: a Prefetcher with these arguments, in the order of ``one_pass``; None: no prefetch."""

    def prepare(weights):
        if arguments is None:
            return None
        plan = [(name, weights.nbytes(name), partial(weights.load, name)) for name in order.objects]
        return Prefetcher(weights.store, plan, **arguments)

    return prepare


def differences(measured: Mapping, exact: Mapping, allowed: Mapping[str, float]) -> pd.DataFrame:
    """Ways by how far their logits are from ``exact`` ones (way -> logits) and from those of the first way of their precision;
    "as it should be": at most 1e-4 from the latter, and from exact what is ``allowed`` of their precision (absent: anything).
    """
    rows, of_precision = [], {}
    for way, measurement in measured.items():
        same = exact[way] if way.precision == "float32" else of_precision.setdefault(way.precision, measurement.result)
        off, within = (relative_rms(measurement.result, right) for right in (exact[way], same))
        most = allowed.get(way.precision, np.nan)
        rows.append((way.label, off, most, within, within <= 1e-4 and not off > most))
    return tables.frame(rows, "way", "from float32, of its spread", "allowed", "from its own precision", "as it should be")


def relative_rms(ours: torch.Tensor, right: torch.Tensor) -> float:
    """RMS difference of two tensors divided by the standard deviation of ``right``: the measure of equality when sums are
    rounded."""
    ours, right = ours.double(), right.double()
    return float((ours - right).pow(2).mean().sqrt() / right.std())


def same_logits(runs: list[Live]) -> bool:
    """Whether all runs end with the same logits, bit for bit: what is cached must not change the answer."""
    return all(torch.equal(run.logits, runs[0].logits) for run in runs)


def replay_agrees(runs: list[Live]) -> pd.DataFrame:
    """Compare live counts with those of a replay of the same accesses in a new cache of the same policy: they must be equal. A
    prefetched tensor counts as prefetched live and as a miss in the replay; a prefetch may load tensors that are not used
    any more."""
    rows = []
    for run in runs:
        live, replayed = run.stats, kit.replay(run.accesses, run.policy)
        loaded = replayed.bytes_loaded if live.prefetched else live.bytes_loaded
        agree = replace(live, misses=live.misses + live.prefetched, prefetched=0, bytes_loaded=loaded) == replayed
        rows.append((run.label, live.hits, replayed.hits, live.prefetched, live.evictions, replayed.evictions, agree))
    return tables.frame(rows, "policy", "hits", "replayed", "prefetched", "evictions", "evictions replayed", "all counts agree")


RATES = dict.fromkeys(["of the limit", "byte hit rate"], "{:.1%}")  # how a page writes columns of ``table``


def table(runs: list[Live], file, machine) -> pd.DataFrame:
    """One row per run: speed after the first pass, the upper bound for what it missed and the share of it, GB/s read, hits,
    memory."""
    rows = []
    for run in runs:
        warm, speed = run._warm, run.tokens_per_second
        per_token = warm["nbytes"].sum() / warm["token"].nunique()
        most = fastest(machine, file, warm)
        rows.append((run.label, speed, most, speed / most, speed * per_token / 1e9))
        rows[-1] += run.warm_byte_hit_rate, run.stats.resident_bytes / 2**20
    names = "tok/s", "at most", "of the limit", "weights, GB/s", "byte hit rate", "resident MiB"
    return tables.frame(rows, "run", *names)


def bounded(table: pd.DataFrame) -> tuple[bool, str]:
    """Arguments of Session.gate: whether every run of a ``table`` is below its bound, and which is not."""
    most = table["of the limit"]
    return bool(
        (most <= NOISE).all()
    ), f"{most.idxmax()} is {most.max():.3g} times as fast as its limit allows, so the limit is wrong"


def fastest(machine, file, accesses: pd.DataFrame) -> float:
    """An upper bound in tokens per second. A weight that hits is read as float32. One that misses is read as blocks; of its
    float32, what the CPU's caches do not hold is written to memory and read again (as in kit.lab.predicting.ways)."""
    hit = accesses["outcome"] == "hit"
    blocks = {name: tensor.nbytes / (4 * tensor.elements) for name, tensor in file.tensors.items()}
    missed = accesses[~hit]
    spilled = (missed["nbytes"] - last_level_cache()).clip(lower=0).sum()
    read = accesses.loc[hit, "nbytes"].sum() + spilled
    read += sum(n * blocks[name.partition("[")[0]] for name, n in zip(missed["tensor"], missed["nbytes"], strict=True))
    seconds = machine.seconds_to_read(read) + machine.seconds_to_write(spilled)
    return float(accesses["token"].nunique() / seconds)
