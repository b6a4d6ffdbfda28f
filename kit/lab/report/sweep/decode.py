"""What the notebook `decode` measures: one model, one way of holding its weights."""

from kit.cache import POLICIES, UNLIMITED
from kit.errors import CacheError, ModelError, known
from kit.gguf.formats import DTYPES
from kit.lab.explaining import measured_ways
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting import ways
from kit.lab.predicting.order import order_of
from kit.units import parse_bytes

LIVE = {name: policy for name, policy in POLICIES.items() if name != "MIN"}  # MIN needs the future


def way_of(policy: str, capacity: str, dtype: str, total: int) -> ways.Way:
    """The Way for a policy of kit.cache by name; ``capacity`` is bytes, ``"4 GiB"``, or a share of ``total``: ``"25%"``.

    CacheError lists the policies, and says when a capacity is missing or is none.
    """
    if policy not in LIVE and policy not in UNLIMITED:
        raise CacheError(f"policy: there is no {policy!r}; choose one of {', '.join([*UNLIMITED, *LIVE])}")
    if policy in UNLIMITED:
        return ways.Way(policy, None, dtype)
    try:
        share = float(capacity[:-1]) / 100 if capacity.endswith("%") else None
        limit = parse_bytes(capacity) if share is None else int(share * total)
    except ValueError:
        raise CacheError(f"capacity: {capacity!r} is neither a size such as 512MiB nor a share such as 25%") from None
    if limit < 1:
        raise CacheError(f"capacity: {capacity!r} is too small: give at least one byte, or use the policy NoCache")
    return ways.Way(policy, limit, dtype)


def check(policy: str, capacity: str, dtype: str) -> None:
    """CacheError or ModelError for what no model can be held by."""
    known("dtype", dtype, DTYPES, ModelError)
    way_of(policy, capacity, dtype, 1 << 50)


def records(way: ways.Way, measured: Reading, total: int, machine) -> list[dict]:
    """Three records (keyword arguments of Session.record): seconds a token with its bound, hit rate, bytes held."""
    missed = (1 - measured.row["hit_rate"]) * total
    bound = machine.seconds_to_read(total) + machine.seconds_to_write(missed)
    return [
        {"quantity": "seconds a token", "unit": "s", "samples": list(measured.samples), "lower": bound,
         "lower_source": "every weight read once, the missed ones written before, at this machine's measured bandwidths"},
        {"quantity": "hit rate", "unit": "", "samples": [measured.row["hit_rate"]], "upper": 1.0,
         "upper_source": "all accesses"},
        {"quantity": "bytes held", "unit": "B", "samples": [measured.row["resident"]], "upper": way.capacity or total,
         "upper_source": "the capacity" if way.capacity else "all weights"},
    ]  # fmt: skip


def measure(file, policy: str, capacity: str, dtype: str, tokens: int) -> tuple[ways.Way, Reading, Reading, int]:
    """(this way, measured, the lazy way over as many tokens, bytes of the working set).

    CacheError for an unknown policy or capacity, ModelError for an unknown dtype.
    """
    check(policy, capacity, dtype)
    order = order_of(file, 1)
    total = sum(part.elements for part in ways.used_tensors(file, order).values()) * DTYPES[dtype]
    way, lazy = way_of(policy, capacity, dtype, total), ways.Way("NoCache", None, dtype)
    return way, *(measured_ways.measure(each, file, order, tokens) for each in (way, lazy)), total
