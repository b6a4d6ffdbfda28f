"""What drafts cost: passes over 1 to 9 tokens beside their bounds, copies of states, and a drafted token."""

import statistics
import time
from collections.abc import Sequence

from kit.gguf.uses import bytes_used, uses_of
from kit.lab.drafts.predicted import Costs
from kit.lab.engines.bounds_of import Roof
from kit.lab.predicting.remembered import held
from kit.model.drafters import MOST, Drafter
from kit.model.generate import Sampler
from kit.products import PRODUCTS

ROUNDS = 3  # of the curve, after one that records the passes
_DRAFTED, _READ = 4, 5  # tokens of the longer drafts that are timed; that are read of one if all were accepted


def timed(work) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def typical(rounds: Sequence[Costs]) -> Costs:
    """The median of each cost."""
    median = statistics.median
    verify = tuple(map(median, zip(*(each.verify for each in rounds), strict=True)))
    names = ("draft", "catch_up", "back", "copies", "read")
    return rounds[0]._replace(verify=verify, **{name: median(getattr(each, name) for each in rounds) for name in names})


def one_round(model, drafter: Drafter, passed: Sequence[int], drafted: Sequence[int]) -> Costs:
    """All costs once: of passes after the tokens ``passed``, and of drafts for ``drafted``."""
    cache = model.new_cache()
    model.step(passed, cache)
    return verification(model, cache, passed, rounds=1)[0]._replace(**drafting(model, drafter, drafted, rounds=1))


def verification(model, cache, tokens: Sequence[int], most: int = MOST, rounds: int = ROUNDS) -> list[Costs]:
    """Costs of passes over 1 to ``most`` + 1 of ``tokens`` after the positions in ``cache``, which is left as it was: a row for
    each round, in which all sizes take turns."""
    base, sizes = cache.mark(), range(1, most + 2)
    taken = []
    for number in range(rounds + 1):
        passes, backs = {}, []
        for size in sizes if number % 2 else reversed(sizes):
            start = time.perf_counter()
            done = model.verify(tokens[:size], cache) if size > 1 else model.step(tokens[:1], cache)
            passes[size] = time.perf_counter() - start
            if size > 1:
                backs.append(timed(lambda done=done, size=size: done.keep(size // 2)))
            cache.back_to(base)
        copies = 0.0 if cache.can_be_cut else timed(cache.mark)
        taken.append(Costs(tuple(map(passes.get, sizes)), back=statistics.median(backs), copies=copies))
    return taken[1:]


def drafting(model, drafter: Drafter, tokens: Sequence[int], rounds: int = ROUNDS) -> dict:
    """``draft``, ``catch_up``, ``read`` and ``again`` of Costs, as ``tokens`` grows. Before a draft that is timed comes one of
    a single token, after which the drafter holds no token of its own: it reads as many as ``tokens`` has grown by."""
    cache = model.new_cache()
    drafter.follow(model, cache)
    model.step(tokens, cache)  # an MTP head reads what the model left
    more = _READ if drafter.again else 2
    kinds = {"one": (1, 1), "drafted": (1, _DRAFTED), "read": (more, 1)}  # tokens that are read, and drafted
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    end = len(tokens) - (rounds + 1) * sum(1 + read for read, _ in kinds.values())
    for _ in range(rounds + 1):
        for kind, (read, count) in kinds.items():
            drafter.propose(tokens[: end + 1], 1, Sampler())
            end += 1 + read
            taken[kind].append(timed(lambda end=end, count=count: drafter.propose(tokens[:end], count, Sampler())))
    one, drafted, read = (statistics.median(taken[kind][1:]) for kind in kinds)
    each = max(0.0, (drafted - one) / (_DRAFTED - 1))
    rest = {"catch_up": max(0.0, one - each), "read": max(0.0, (read - one) / (more - 1))}
    return {"draft": each, "again": drafter.again} | rest


def bounds(model, roof: Roof, most: int = MOST) -> list[dict]:
    """The least of passes over 1 to ``most`` + 1 tokens: ``tokens``, ``bytes`` (weights once, a mixture's the union of experts
    that each token draws evenly; states read and written once, and once more for the copy to which a pass over several can go
    back), ``operations``, ``seconds`` and what limits (``by``)."""
    uses, rows = uses_of(model.file), []
    how = PRODUCTS[model.linear.activations]
    rate = max(roof.rates["float32"], roof.rates.get("int8", 0.0) / how.digits)  # blocks are multiplied digit by digit
    operations = sum(2 * use.elements * use.share() for use in uses if not use.is_rows)
    states = held(model.config, 0)["states"]
    for tokens in range(1, most + 2):
        nbytes = bytes_used(uses, tokens=tokens) + 2 * states * (1 + (tokens > 1))
        by = {"memory": nbytes / roof.bandwidth, "arithmetic": tokens * operations / rate}
        limit = max(by, key=by.get)
        work = {"bytes": round(nbytes), "operations": round(tokens * operations)}
        rows.append({"tokens": tokens} | work | {"seconds": by[limit], "by": limit})
    return rows
