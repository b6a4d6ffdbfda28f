"""The measured cost of one use of a tensor: from the cache, after a load, or from the file's blocks.

Tensors of one kind cost the same, so only a few of each are measured. They are used one after another in the order of a
decode, so that threads, mapped pages, reused memory and CPU caches are in the same state as in a decode.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, product
from pathlib import Path

import numpy as np

import kit
from kit.cpu.threads import torch_alone
from kit.gguf import formats
from kit.lab.measuring import measurements
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.machine import machine_id
from kit.lab.measuring.measurements import Reading, Readings, digest_of
from kit.lab.predicting.order import DECODES, FUSED, Kind, Order, ProgramCost, kind_of, kinds_of, use_of
from kit.lab.predicting.sampling import fewer_rows

DTYPES = tuple(formats.DTYPES)
_SAMPLES = 3  # tensors of a kind, and walks over them
_ENOUGH = 0.6  # seconds after which no further walk begins, once one has been counted
_MOST = 1 << 26  # weights of the samples of a kind
_TOGETHER = 1 << 30  # bytes of dequantized weights held at once while measuring, give or take a tensor
_PIECE = 1 << 28  # bytes of a matrix that are timed; the time grows with its rows
_REST = Kind("rest", ())  # of a pass, in the store of a run: what is no use of a tensor


@dataclass(frozen=True)
class Cost:
    """Seconds of one use of a tensor for one token; a vector is only fetched. ``multiply``: dtype -> with the weight in the
    cache. ``load``: dtype -> further seconds of a miss, into the memory of the one before, which is in the CPU's caches.
    ``fused``: linear variant of FUSED -> from the blocks. ``cold``: dtype -> ``load`` into memory that was used long ago, as is
    that of what an LRU evicts; measured of the first dtype."""

    load: dict[str, float]
    multiply: dict[str, float]
    fused: dict[str, float]
    cold: dict[str, float] = field(default_factory=dict)


@once_a_run
def measure_costs(file, names, dtypes=DTYPES) -> dict[Kind, Cost]:
    """The cost of every kind among ``names``: medians over up to _SAMPLES tensors of the kind (fewer of large ones), in as many
    walks."""
    plain, by_kind = kit.Weights(file), defaultdict(list)
    for name in names:
        by_kind[kind_of(plain, name)].append(name)
    few = {kind: max(1, min(_SAMPLES, _MOST // math.prod(kind.shape))) for kind in by_kind}
    kinds = {name: kind for kind, members in by_kind.items() for name in members[: few[kind]]}
    chosen = {name: kinds[name] for name in names if name in kinds}
    ways = [(dtype, "dequantized", held) for dtype in dtypes for held in ("none", "all")]
    ways += [(dtypes[0], linear, "none") for linear in FUSED] + [(dtypes[0], "dequantized", "others")]
    seconds = {(dtype, *how): _walked(file, chosen, dtype, *how) for dtype, *how in ways}
    costs = {}
    for kind in by_kind:
        kept = {dtype: seconds[dtype, "dequantized", "all"][kind] for dtype in dtypes}
        load = {dtype: max(0.0, seconds[dtype, "dequantized", "none"][kind] - kept[dtype]) for dtype in dtypes}
        # memory that no cache holds is not faster to write: less, measured later, is another minute, and an LRU that hits
        # nothing would be predicted to beat no cache at all
        cold = {dtypes[0]: max(load[dtypes[0]], seconds[dtypes[0], "dequantized", "others"][kind] - kept[dtypes[0]])}
        costs[kind] = Cost(load, kept, {linear: seconds[dtypes[0], linear, "none"][kind] for linear in FUSED}, cold)
    return costs


def keep(folder: Path, file, before: dict[Kind, Cost], after: dict[Kind, Cost], by: str = "") -> dict[Kind, Cost]:
    """Keep what uses of an open file's tensors cost ``before`` something else in the store of a run, for the other pages
    (``of_run``): what predicts it must not be measured after it. ``after``: the same later, kept next to it, for the machine
    moves. ``by``: the page that measured. Returns ``before``."""
    add = _adding([measurements.of_run(folder)], file, by)
    for kind, cost in before.items():
        for term, uses in vars(cost).items():
            for how, seconds in uses.items():
                add(kind, term, how, seconds, after=vars(after[kind])[term][how])
    return before


def keep_pass(store: Readings, file, order: Order, by: str = "", quiet: bool = True) -> None:
    """Keep in a store, and in the shared one if the machine was ``quiet``, what the recorded passes of ``order`` cost, for
    ``of_pass``."""
    add = _adding({each.path: each for each in (store, measurements.shared() if quiet else store)}.values(), file, by)
    add(_REST, "pass", order.via, order.rest)
    for linear, program in order.programs.items():
        for kind, seconds in {_REST: program.rest, **program.products}.items():
            add(kind, "program", linear, seconds)


def _adding(stores: Iterable[Readings], file, by: str) -> Callable[..., None]:
    """A function that adds to stores what `_stored` finds there, ``row`` in words."""
    key = {"file": digest_of(file), "settings": measurements.settings(), "by": by}

    def add(kind: Kind, term: str, how: str, seconds: float, **row) -> None:
        for store in stores:
            store.add(Reading(_way(kind, term, how), samples=(seconds,), row=row, **key))

    return add


def of_run(folder: Path, file, names, dtypes=DTYPES) -> dict[Kind, Cost]:
    """``measure_costs``, where another page of the run has not kept it: a use of one tensor costs the same on every page. Only
    the ``dtypes`` that are missing are measured."""
    kept, plain = _kept(folder, file), kit.Weights(file)
    if {kind_of(plain, name) for name in names} - kept.keys():
        return measure_costs(file, names, dtypes)
    missing = tuple(dtype for dtype in dtypes if any(dtype not in cost.load for cost in kept.values()))
    if not missing:
        return kept
    more = measure_costs(file, names, missing)
    return {kind: Cost(more[kind].load | cost.load, more[kind].multiply | cost.multiply, cost.fused, cost.cold)
            for kind, cost in kept.items() if kind in more}  # fmt: skip


def of_pass(store: Readings, file, order: Order) -> Order:
    """``order`` with the costs of the passes that a store has, if they were recorded in the same way: a way then has one
    prediction in a run, and a token's parts are those of the token that stands above them."""
    passes, programs = {}, defaultdict(dict)
    for kind, term, how, seconds in _stored(store, file):
        if term == "pass":
            passes[how] = seconds
        elif term == "program":
            programs[how][kind] = seconds
    if order.reason or order.via not in passes:
        return order
    whole = {how: costs for how, costs in programs.items() if order.via == "kit" and _REST in costs}
    ran = {how: ProgramCost(costs.pop(_REST), costs) for how, costs in whole.items()}
    return replace(order, rest=passes[order.via], programs=ran)


def is_kept(folder: Path, file) -> bool:
    """Whether another page of the run has kept costs of the file."""
    return bool(_kept(folder, file))


def _kept(folder: Path, file) -> dict[Kind, Cost]:
    costs = {}
    for kind, term, how, seconds in _stored(measurements.of_run(folder), file):
        if term in _TERMS:
            vars(costs.setdefault(kind, _no_cost()))[term][how] = seconds
    return costs


def _stored(store: Readings, file) -> Iterator[tuple[Kind, str, str, float]]:
    """(kind, term, how, seconds) of what was kept of an open file, on this machine with these settings."""
    key = digest_of(file), machine_id(), measurements.settings()
    found = {row.way: row.median for row in store if (row.file, row.machine, row.settings) == key}
    for kind, (term, hows) in product([_REST, *kinds_of(file)], _HOWS.items()):
        for how in hows:
            if (way := _way(kind, term, how)) in found:
                yield kind, term, how, found[way]


def _way(kind: Kind, term: str, how: str) -> str:
    """In the store of a run: a use of a kind, by a field of Cost (or of a pass) and its key."""
    return f"{measurements.USE}{kind.qtype} {'x'.join(map(str, kind.shape))} {term} {how}"


def _no_cost() -> Cost:
    return Cost({}, {}, {}, {})


_TERMS = vars(_no_cost()).keys()  # in the store of a run, beside those of passes
_HOWS = dict.fromkeys(_TERMS, DTYPES) | {"fused": FUSED, "program": FUSED, "pass": tuple(DECODES)}


_HELD = {  # what a use finds in the cache -> the policy, for tensors of so many bytes that are used in turn
    "none": lambda nbytes: None,
    "all": lambda nbytes: kit.HashMap(),
    "others": lambda nbytes: kit.LRU(max(1, nbytes - 1)),  # it has just let go the one that is asked for
}


def _walked(file, kinds: dict[str, Kind], dtype, linear, held: str) -> dict[Kind, float]:
    """Median seconds of a use by kind, over up to _SAMPLES walks after a warm-up. ``kinds``: of names; ``held``: in _HELD."""
    plain, taken, part = kit.Weights(file), defaultdict(list), fewer_rows(file, _PIECE // formats.DTYPES[dtype])
    ends = accumulate(map(plain.nbytes, kinds))
    for _, batch in groupby(zip(kinds, ends, strict=True), lambda pair: pair[1] // _TOGETHER):
        names = [name for name, _ in batch]
        weights = kit.Weights(part, _HELD[held](sum(map(kit.Weights(part, dtype=dtype).nbytes, names))), dtype=dtype)
        uses = [(kinds[name], kinds[name].shape[0] / kind_of(weights, name).shape[0], use_of(weights, linear, name))
                for name in names]  # fmt: skip
        began = time.perf_counter()
        for walk in range(_SAMPLES + 1):
            if walk > 1 and time.perf_counter() - began > _ENOUGH:
                break
            weights.trace.clear()
            with torch_alone():
                for kind, more, use in uses:
                    start = time.perf_counter()
                    use()
                    taken[kind] += [more * (time.perf_counter() - start)] * (walk > 0)
    return {kind: float(np.median(seconds)) for kind, seconds in taken.items()}
