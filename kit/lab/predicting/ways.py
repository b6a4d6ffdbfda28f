"""Ways of holding weights: time and memory of a token, predicted from costs and a replay."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

import kit
from kit.cache import POLICIES, UNLIMITED
from kit.cache.policies.base import Policy
from kit.cache.replay import replay_hits
from kit.cache.traces import Requests
from kit.gguf.formats import DTYPES
from kit.gguf.names import key_of, layer_of
from kit.gguf.uses import beyond, bytes_used
from kit.lab.engines.table import rounding
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting.expert_caches import waited
from kit.lab.predicting.measured import Cost
from kit.lab.predicting.order import FUSED, Kind, Order, ProgramCost, kind_of
from kit.lab.tables import in_tables
from kit.model.slots import policy_named
from kit.products import Multiplied, by_linear
from kit.system import last_level_cache
from kit.system.rows import PAGE
from kit.units import format_bytes, format_seconds

BYTES = DTYPES | {"int8": 1}  # of a weight in the cache
PRECISION_OF = {name: name for name in DTYPES} | {"int8": "INT8 tiles"}  # dtype -> row of PRECISIONS
HOLDS = {  # what of a file's blocks is in memory -> (label, the same where activations are rounded)
    "": ("blocks, exact products", "blocks, {rounding}"),
    "pinned": ("blocks, {size} pinned", "blocks, {size} pinned, {rounding}"),
    "slots": ("blocks, {size} of slots", "{size} of slots, {rounding}"),
    "pressed": ("blocks, page cache too small", "blocks, page cache too small, {rounding}"),
}


@dataclass(frozen=True)
class Way:
    """A policy of kit.cache by name, its capacity (bytes; None: unlimited), what multiplies and what is held.

    ``linear``: "dequantized" (to ``dtype``), or a row of kit.products, from the file's blocks. ``holds``: "" for all of these,
    or what stays of blocks that the disk brings: ``capacity`` bytes of all ("pinned"), or of experts ("slots"), or so many that
    the system may keep and is predicted to keep none of ("pressed")."""

    policy: str
    capacity: int | None = None
    dtype: str = "float32"
    linear: str = "dequantized"
    holds: str = ""

    @property
    def product(self) -> Multiplied | None:
        """How blocks are multiplied; None where weights are dequantized first."""
        return by_linear(self.linear)

    @property
    def label(self) -> str:
        """A short name for tables."""
        size = format_bytes(self.capacity or 0)
        if self.product:
            return HOLDS[self.holds][self.rounds].format(size=size, rounding=self.precision)
        named = {"NoCache": "dequantized each time", "HashMap": "all kept", "Unbounded": "all kept", "Pinned": f"{size} pinned"}
        return f"{named.get(self.policy, f'{self.policy} of {size}')}, {PRECISION_OF[self.dtype]}"

    @property
    def told(self) -> str:
        """The same in tables and sentences: one word (kit.products) in place of those that records have for it."""
        return in_tables(self.label)

    @property
    def quantity(self) -> str:
        """Its name in records, by which runs are compared: it keeps the words of the first ones."""
        return f"a token, {'blocks as they lie' if self == BLOCKS else self.label}"

    @property
    def precision(self) -> str:
        """Its row of kit.lab.predicting.quality.PRECISIONS."""
        return rounding(self.product) if self.product else PRECISION_OF[self.dtype]

    @property
    def rounds(self) -> bool:
        """Whether it rounds activations."""
        return bool(self.product and not self.product.exact)

    def cache(self) -> Policy:
        """A new policy."""
        return UNLIMITED[self.policy]() if self.capacity is None else POLICIES[self.policy](self.capacity)


LAZY = Way("NoCache")
BLOCK_WAYS = tuple(Way("NoCache", linear=linear) for linear in FUSED)  # the exact one first
BLOCKS = BLOCK_WAYS[0]
KEPT = Way("HashMap")  # all weights in float32
KEPT_RATE = "tokens a second, all float32 kept"  # KEPT in records of the pages of caches, in tok/s
BY_QUANTS = ", by kit quants"  # after a way's quantity in records: what the table of quantizations shows of it


@dataclass(frozen=True)
class Prediction:
    """A token in the steady state, without the first one.

    ``seconds``: predicted. ``bound``: least seconds for its bytes at this machine's bandwidth. ``hit_rate``: of the cache
    (None if matrices are not cached). ``held``: most bytes of dequantized weights at once, including the one in use.
    ``pages``: bytes of the file that a token reads; they stay in the page cache or are read again. ``from_disk``: least
    seconds for the bytes that cannot stay.
    """

    way: Way
    seconds: float
    bound: float
    hit_rate: float | None
    held: int
    pages: int
    from_disk: float = 0.0
    how = "predicted"  # a Reading is "measured"

    def __str__(self):
        return f"{format_seconds(self.seconds)} ({self.how})"

    @property
    def least(self) -> float:
        """Least seconds of a token: memory's or the disk's."""
        return max(self.bound, self.from_disk)

    @property
    def total(self) -> int:
        """Bytes of memory: dequantized weights and pages of the file."""
        return self.held + self.pages


class BackingStore(NamedTuple):
    """What a file that does not fit is read from: ``gbps``, past the page cache. ``room``: bytes of memory for weights and the
    page cache together, by default all that they need. ``most``: GB/s that bound a way, where more was seen than is predicted
    with (0: the same)."""

    gbps: float
    room: int = 1 << 62
    most: float = 0.0

    @property
    def limit(self) -> float:
        """Bytes per second that nothing exceeds."""
        return max(self.gbps, self.most) * 1e9


class UsedTensor(NamedTuple):
    """One tensor (or expert): its kind, bytes of its blocks."""

    kind: Kind
    blocks: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.kind.shape)


def used_tensors(file, order: Order) -> dict[str, UsedTensor]:
    """Name -> UsedTensor of the tensors that a decode of an open file uses."""
    weights = kit.Weights(file)
    return {name: UsedTensor(kind_of(weights, name), weights.blocks(name).nbytes) for name in order.names}


def from_blocks(linear: str, order: Order, costs: dict[Kind, Cost]) -> ProgramCost:
    """Cost of a token from blocks: that of the recorded program (whose rest includes norms), else from single uses."""
    return order.programs.get(linear) or ProgramCost(order.rest, {kind: cost.fused[linear] for kind, cost in costs.items()})


def predict(way: Way, tensors: dict[str, UsedTensor], order: Order, costs, machine, disk: BackingStore | None = None):
    """The Prediction of a way: the costs of all uses, plus a load for each miss in a replay of ``order`` with the way's policy,
    plus what comes from the ``disk`` (None: everything stays in the page cache)."""
    if way.holds in ("pressed", "pinned"):
        each = replace(order, programs={})  # each token is a first one
        warm = predict(Way("NoCache", linear=way.linear), tensors, each, costs, machine)
        used, room, speed = bytes_used(order.uses), way.capacity or 0, disk.gbps * 1e9
        in_use = max(tensor.blocks for tensor in tensors.values()) if room < used + warm.held else 0
        pinned = 0 if way.holds == "pressed" else min(max(0, room - warm.held - in_use), used)
        bound = machine.seconds_to_read(used)  # copies of the kit's own, not the map
        warm = replace(warm, held=warm.held + in_use, bound=bound)  # vectors, and one matrix of those that are read
        # an LRU keeps nothing of what a token uses in order, and the optimum all that fits
        least = max(0, used - room) / disk.limit
        return replace(warm, way=way, seconds=warm.seconds + (used - pinned) / speed, from_disk=least, pages=pinned)
    if way.holds == "slots":
        return _in_slots(way, tensors, order, costs, machine, disk)
    tokens = max(1, len(order.tokens) - 1)
    uses = [name for token in order.tokens[-tokens:] for name in token]
    if way.product:
        token = from_blocks(way.linear, order, costs)
        seconds = token.rest + sum(token.products.get(tensors[name].kind, 0.0) for name in uses) / tokens
        pages = sum(tensors[name].blocks for name in set(uses))
        bound = machine.seconds_to_read_map(bytes_used(order.uses))
        vectors = sum(4 * tensor.elements for tensor in tensors.values() if len(tensor.kind.shape) == 1)
        return _with_disk(Prediction(way, seconds, bound, None, vectors, pages), order, 1.0, 0, disk)
    nbytes = {name: tensor.elements * BYTES[way.dtype] for name, tensor in tensors.items()}
    stats, hits = replay_hits(order.requests(nbytes.__getitem__), way.cache())
    missed = [name for name, hit in zip(uses, hits[-len(uses) :], strict=True) if not hit]
    seconds = order.rest + sum(costs[tensors[name].kind].multiply[way.dtype] for name in uses) / tokens
    cold = share_cold(stats, way.capacity)
    seconds += sum(miss_seconds(costs[tensors[name].kind], way.dtype, cold) for name in missed) / tokens
    # a miss reads blocks; its weights pass through memory only where they are larger than the CPU's caches
    spilled = sum(max(0, nbytes[name] - last_level_cache()) for name in missed) / tokens
    instead = sum(nbytes[name] for name in missed) / tokens  # what misses is read as blocks of the file
    bound = machine.seconds_to_read(bytes_used(order.uses, BYTES[way.dtype]) - instead + spilled)
    bound += machine.seconds_to_read_map(sum(tensors[name].blocks for name in missed) / tokens)
    bound += machine.seconds_to_write(spilled)
    in_use = max((nbytes[name] for name in missed), default=0)
    pages = sum(tensors[name].blocks for name in set(missed))
    prediction = Prediction(way, seconds, bound, 1 - len(missed) / len(uses), stats.peak_bytes + in_use, pages)
    share = sum(tensors[name].blocks for name in missed) / max(1, sum(tensors[name].blocks for name in uses))
    kept = stats.peak_bytes * bytes_used(order.uses) / max(1, bytes_used(order.uses, BYTES[way.dtype]))
    return _with_disk(prediction, order, share, kept, disk)


def _in_slots(way, tensors, order, costs, machine, disk) -> Prediction:
    """The pass from blocks that are in memory, and its waits for experts that are not."""
    warm = predict(Way("NoCache", linear=way.linear), tensors, order, costs, machine)
    products = from_blocks(way.linear, order, costs).products
    experts = [tensor for name, tensor in tensors.items() if name.endswith("]")]
    per_byte = sum(products.get(tensor.kind, 0.0) for tensor in experts) / sum(tensor.blocks for tensor in experts)
    waits = slot_waits(order.tokens, lambda name: tensors[name].blocks, way.capacity, way.policy, disk.gbps, per_byte)
    dense = sum(tensor.blocks for name, tensor in tensors.items() if not name.endswith("]"))
    return Prediction(
        way, warm.seconds + waits.wait, machine.seconds_to_read(bytes_used(order.uses)), waits.hits, 0, dense + way.capacity,
        waits.least / disk.limit,
    )  # fmt: skip


def share_cold(stats, capacity: int | None) -> float:
    """The share of a policy's misses that go into the memory of what was evicted for them, and that no CPU cache holds."""
    evicting = stats.misses - stats.entries  # the first ones filled it
    beyond = (capacity or 0) > last_level_cache() / 2  # the other half is for blocks, vectors and results
    return min(1.0, stats.evictions / evicting) if evicting > 0 and beyond else 0.0


def miss_seconds(cost: Cost, dtype: str, cold: float) -> float:
    """Further seconds of a miss, this share of which load into ``cold`` memory."""
    return (1 - cold) * cost.load[dtype] + cold * cost.cold.get(dtype, cost.load[dtype])


def _with_disk(prediction: Prediction, order: Order, share: float, kept: float, disk: BackingStore | None) -> Prediction:
    """``prediction`` with the reads of a file whose pages do not all stay. ``share``: of a token's bytes, those that miss the
    cache, which holds what are ``kept`` bytes of blocks.

    At the least, the pieces that are used most often stay. Predicted: the page cache forgets like an LRU, so that nothing stays
    when a token alone is more than its room, and of a mixture the share of the least else.
    """
    whole = sum(use.nbytes for use in order.uses if not use.is_rows)
    if disk is None or (room := max(0, disk.room - prediction.held)) >= share * whole:
        return prediction
    token = bytes_used(order.uses)
    least = min(share * token, beyond(order.uses, room + kept))
    missing = share * (token if token > room else beyond(order.uses, room))
    seconds = prediction.seconds + max(least, missing) / (disk.gbps * 1e9)
    return replace(prediction, seconds=seconds, from_disk=least / disk.limit)


def faster_than_probed(predictions: list[Prediction], measured: dict[Way, Reading] | None = None) -> float:
    """The factor, 1 at least, by which memory was faster than in its probe: what a way predicts or measures shows that."""
    bounds = {each.way: each.bound for each in predictions}
    pairs = [(each.bound, each.seconds) for each in predictions]
    pairs += [(bounds[way], each.seconds) for way, each in (measured or {}).items() if way in bounds]
    return max([1.0, *(bound / seconds for bound, seconds in pairs if seconds)])


def roofed(predictions: list[Prediction], measured=None, factor: float = 1.0) -> list[Prediction]:
    """The predictions with bounds that nothing exceeds: at the best bandwidth that was shown, ``factor`` times the probe's or
    what these ways need."""
    factor = max(factor, faster_than_probed(predictions, measured))
    return [replace(each, bound=each.bound / factor) for each in predictions]


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
