"""Tokens together: a prompt and a few tokens, by each way and llama.cpp, beside what memory and arithmetic allow."""

from collections.abc import Mapping, Sequence

from kit.lab.engines import bounds_of
from kit.lab.engines.processes import Process
from kit.lab.engines.table import COMPARED, OURS, PROGRAM
from kit.lab.explaining import roofline
from kit.lab.measuring import arithmetic, kept, measurements, state
from kit.lab.measuring.measurements import Reading, Readings

FEW, PROMPT = 4, 512  # tokens: of a draft that is verified, of a prompt
_ROUNDS, _QUICK = 3, 10.0  # of a pass of all engines that takes at most so many seconds; else it is taken once
_LONG = 30.0  # seconds that a prompt takes at most where each token takes what one of FEW does; a longer one is left out
_FIRST = 96  # of a prompt, whose kernels are those of all longer ones
_RATE = "arithmetic, "  # begins the way of a rate in the store


def lengths(file) -> tuple[int, ...]:
    """FEW and PROMPT, as far as the context of an open file holds them."""
    context = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length", 0)
    return tuple(tokens for tokens in (FEW, PROMPT) if tokens <= context)


def passes(running: Mapping[str, Process], prompt: Sequence[int], counts: Sequence[int]) -> dict[str, dict[int, list[float]]]:
    """Engine -> number of tokens -> seconds per token of each pass over so many tokens of ``prompt``, again and again, the
    engines in turn; none of passes that other processes disturbed. Their contexts hold as many."""
    found = {name: {} for name in running}
    for tokens in counts:
        ids = (list(prompt) * (tokens // len(prompt) + 1))[:tokens]
        longest = {name: min(found[name].get(FEW, [0.0])) * tokens for name in running}  # of a token alone: more than it takes
        asked = [name for name in running if longest[name] <= _LONG]
        rounds = _ROUNDS if sum(longest[name] for name in asked) <= _QUICK else 1

        def once(number, asked=asked, ids=ids):
            return {name: running[name].ask(begin=ids)[0] / len(ids) for name in asked[:: 1 - 2 * (number % 2)]}

        once(0, ids=ids[:_FIRST])  # kernels are compiled
        taken = state.quietest(once, rounds, [engine.process for engine in running.values()], _QUICK)[0]
        for name in asked:
            samples = [seconds[name] for others, seconds in taken if others <= state.BUSY]
            found[name] |= {tokens: samples} if samples else {}
    return found


def note(rows: Mapping[str, dict], digest: str, by: str, store: Readings) -> None:
    """Add what ``passes`` found of each engine (``rows``: the column "together" of peers.compare) to a store and the shared
    one, in seconds per token of the file with this ``digest``."""
    for name, row in rows.items():
        for tokens, samples in (row["together"] if isinstance(row.get("together"), dict) else {}).items():
            reading = Reading(_way(name, int(tokens)), digest, tuple(samples), by=by)
            measurements.note(store, reading)


def readings(store: Readings, digest: str, tokens: int) -> dict[str, Reading]:
    """Engine -> seconds per token of so many together, as far as a store has them."""
    found = {name: store.known(_way(name, tokens), digest) for name in COMPARED}
    return {name: row for name, row in found.items() if row}


def rates(store: Readings, by: str, again: bool = False, measure: bool = True) -> dict[str, float]:
    """Operations per second by kind of arithmetic: the best that the store has of this machine, else, or ``again``, measured
    now, in some seconds; what is not known without ``measure`` is missing."""
    known = {kind: store.best(f"{_RATE}{kind}", "op/s") for kind in arithmetic.KINDS}
    if measure and (again or None in known.values()):
        taken, others, disturbed = kept.take("arithmetic", None, lambda: state.watched(arithmetic.probe))
        for kind, rate in taken.items():
            reading = Reading(f"{_RATE}{kind}", "", tuple(rate.samples), "op/s", others=others * disturbed, by=by)
            row = measurements.note(store, reading)
            known[kind] = row if known[kind] is None or rate.best > max(known[kind].samples) else known[kind]
    return {kind: max(row.samples) for kind, row in known.items() if row}


def points(file, store: Readings) -> list[roofline.Point]:
    """One token, FEW and PROMPT of an open file by each engine whose speed a store has, one after the other."""
    digest, found = measurements.digest_of(file), []
    for name, row in COMPARED.items():
        alone = store.known(row.label, digest)
        known = {1: alone} | {tokens: readings(store, digest, tokens).get(name) for tokens in (FEW, PROMPT)}
        for tokens, reading in known.items():
            if reading:
                found.append(roofline.point(bounds_of.work_of(file, tokens), row.title, _told(tokens), reading.median))
    return found


def shares(points: Sequence[roofline.Point], rates: Mapping[str, float], bandwidth: float) -> dict[str, float]:
    """Engine in one word -> the share that its pass over PROMPT tokens reaches of its roof: of memory, ``bandwidth`` bytes per
    second, and of the arithmetic that it multiplies by."""
    names, found = {row.title: name for name, row in COMPARED.items()}, {}
    for each in points:
        if each.test == _told(PROMPT):
            name = names[each.label]
            roof = min(rates.get(kind_of(name), rates["float32"]), bandwidth * each.intensity)
            found[short(name)] = each.rate / roof
    return found


def drawn(points: Sequence[roofline.Point], rates: Mapping[str, float], bandwidth: float):
    """The picture of ``points``, whose title has the ``shares``."""
    reached = ", ".join(f"{name} {share:.0%}" for name, share in shares(points, rates, bandwidth).items())
    title = f"{PROMPT} tokens together, share of the roof: {reached}" if reached else f"{len(points)} speeds below the roof"
    return roofline.drawn(points, rates, bandwidth, title)


def kind_of(engine: str) -> str:
    """The arithmetic that an engine of the table multiplies by: a key of ``rates``. llama.cpp rounds activations to 8 bits."""
    return OURS[engine].product.activations if engine in OURS else "int8"


def short(engine: str) -> str:
    """Its one word, or the program's name."""
    return COMPARED[engine].short or PROGRAM


def _way(engine: str, tokens: int) -> str:
    return f"{tokens} tokens together, {COMPARED[engine].label}"


def _told(tokens: int) -> str:
    return f"{tokens} tokens together" if tokens > 1 else "1 token"
