"""Drafts: tokens that something cheap proposes and the model verifies, several in one pass (Leviathan et al. 2023).

Greedy answers are those without a draft. Drawn ones have the same distribution: a drafted token x with chance q(x) in the draft
is taken with the chance min(1, p(x) / q(x)), and in its place comes one drawn from what p has more than q.
"""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kit.units import format_bytes, format_rate, format_seconds

_TIE = 1e-5  # of the deviation of logits
_SIZES = (1, 2, 4, 8)  # and the most that is asked for: for each of them a pass is recorded
_LONG = 4  # tokens; longer drafts are asked for where they can gain more than those of so many
_SAMPLE, _PLAIN, _AGAIN = 24, 3, 24  # tokens after which a draft is judged; passes without it that are timed, and how often


class Timed(NamedTuple):
    """A pass over a draft: tokens that it gave, that were drafted, and that the drafter read before; whether one was refused;
    seconds of drafting and of verifying."""

    tokens: int
    drafted: int
    read: int
    refused: bool
    drafting: float
    verifying: float


@dataclass
class Drafting:
    """What drafts gave: passes over drafts, tokens that were drafted, taken, and that came of these passes in all; ``refused``:
    passes that ended with a drafted token that was not taken. ``timed``: the passes whose time counts. ``plain``: seconds of
    passes over one token, which were taken in turn; ``idle``: how often nothing was proposed. ``ties``: positions at which two
    logits of the exact way tie within its rounding, so that another order of sums may choose the other. ``nbytes``: of weights
    that the drafter reads for a token. ``stays``: it is never switched off."""

    name: str
    nbytes: int = 0
    stays: bool = False
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    refused: int = 0
    tokens: int = 0
    timed: list[Timed] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    idle: int = 0
    ties: int = 0
    off: int = 0  # tokens of the answer after which the draft was switched off; 0: never

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were taken."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def chance(self) -> float | None:
        """How often a drafted token was taken if all before it in its draft were: what a prediction for other drafts needs."""
        seen = self.accepted + self.refused
        return self.accepted / seen if seen else None

    @property
    def share(self) -> float:
        """Of passes for which there was a draft, where one was wanted."""
        return self.passes / (self.passes + self.idle) if self.passes else 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds of drafting a token."""
        return statistics.median(each.drafting / each.drafted for each in self.timed) if self.timed else None

    def mean(self, name: str) -> float:
        """Of the passes whose time counts, a field of theirs."""
        return statistics.fmean(getattr(each, name) for each in self.timed)

    @property
    def speed(self) -> float | None:
        """Tokens per second with the draft: the median time of each kind of pass, as others' work may lengthen some of them."""
        kinds: dict[tuple, list[float]] = {}
        for each in self.timed:
            kinds.setdefault((each.drafted, each.read, each.refused), []).append(each.drafting + each.verifying)
        spent = sum(len(times) * statistics.median(times) for times in kinds.values())
        return sum(each.tokens for each in self.timed) / spent if spent else None

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second without, in turn."""
        return 1 / statistics.median(self.plain) if self.plain else None

    def asked(self, sizes: Iterable[int]) -> int:
        """Of some numbers of tokens the one to draft: the largest, but from _LONG on that whose passes gain most where all is
        taken. Each of these is tried until a pass is timed. 0 without any."""
        sizes = sorted(sizes)
        long = [size for size in sizes if size >= _LONG]
        if len(long) < 2:
            return max(sizes, default=0)
        times = {size: [each.drafting + each.verifying for each in self.timed if each.drafted == size] for size in long}
        unknown = [size for size in long if not times[size]]
        return max(unknown) if unknown else max(long, key=lambda size: (size + 1) / statistics.median(times[size]))

    @property
    def loses(self) -> bool:
        """Whether enough tokens say that the model alone is faster."""
        enough = sum(each.tokens for each in self.timed) >= _SAMPLE and len(self.plain) >= _PLAIN
        return not self.stays and enough and self.speed < self.plain_speed

    def told(self) -> str:
        """One sentence for a person."""
        if not self.drafted:
            return f"draft {self.name}: it proposed nothing"
        fast, slow = self.speed, self.plain_speed
        text = f"draft {self.name}: {self.acceptance:.0%} of {self.drafted} drafted tokens accepted, "
        text += f"{self.tokens / self.passes:.2g} tokens per pass"
        if fast and slow:
            text += f"; {format_rate(fast)} tokens per second with it and {format_rate(slow)} without, measured alternately "
            text += f"({fast / slow:.2g} times)"
        if seconds := self.seconds_per_token:
            reads = f"reads {format_bytes(self.nbytes)} of weights" if self.nbytes else "reads no weights"
            text += f"; a drafted token takes {format_seconds(seconds)} and {reads}"
        if self.ties:
            text += f"; {self.ties} positions tie within rounding"
        return text + (f"; switched off after {self.off} tokens, because the model alone is faster" if self.off else "")


def passes(model, cache, prompt, sampler, drafter, most: int, end: Sequence[int], max_tokens: int, told: Drafting) -> Iterator:
    """(new tokens, seconds, positions) of each pass over the prompt, one token or a draft. The cache holds, when tokens are
    yielded, what it holds after a decode of them. The last tokens are those up to the first of ``end``."""
    drafter.follow(model, cache)
    start = time.perf_counter()
    logits = model.step(prompt, cache)
    sequence, done = [*prompt, sampler(logits)], 1
    yield sequence[-1:], time.perf_counter() - start, len(prompt)
    known = set()  # numbers of tokens whose pass is recorded; the first pass of each is not timed
    since = 0
    while True:
        room = min(most, max_tokens - done - 1, cache.context - cache.length - 1)
        wanted = told.asked(n for n in {*_SIZES, most} if n <= room)
        plainly = told.off or (told.passes and (len(told.plain) < _PLAIN or since >= _AGAIN))
        start = time.perf_counter()
        drafted, chances = ([], []) if plainly or not wanted else drafter.propose(sequence, wanted, sampler)
        middle = time.perf_counter()
        if drafted:
            refused = told.refused
            new, since = _verified(model, cache, sequence, drafted, chances, sampler, end, told), since + 1
            count = 1 + len(drafted)
            if count in known and drafter.settled:
                lost, spent = refused < told.refused, time.perf_counter() - middle
                told.timed.append(Timed(len(new), len(drafted), drafter.read, lost, middle - start, spent))
        else:
            new, count, since = [sampler(model.step(sequence[-1:], cache))], 1, 0 if len(told.plain) >= _PLAIN else since
            told.idle += bool(wanted) and not plainly
            if count in known and not told.off:  # those after it are not in turn with passes over drafts
                told.plain.append(time.perf_counter() - middle)
        known.add(count)
        sequence += new  # the list that the drafter knows grows: a copy for each token would be quadratic
        done += len(new)
        if not told.off and told.loses:
            told.off = done
        yield new, time.perf_counter() - start, count


def ties(logits: np.ndarray) -> bool:
    """Whether the two largest of logits (vocabulary,) are within the rounding of another order of sums. It is asked for every
    token, so the deviation, which takes longer than all else, is only taken where the two are near."""
    first = int(logits.argmax())
    others = [part.max() for part in (logits[:first], logits[first + 1 :]) if len(part)]
    gap = logits[first] - max(others, default=-np.inf)
    return bool(gap < _TIE * (logits[first] - logits.min()) and gap < _TIE * logits.std(ddof=1))


def _verified(model, cache, sequence, drafted, chances, sampler, end, told) -> list[int]:
    """The tokens that one pass over a draft gives, one at least."""
    pass_ = model.verify([sequence[-1], *drafted], cache)
    new, taken = [], 0
    for logits, token, chance in zip(pass_.logits, drafted, chances, strict=False):
        own, accepted = sampler.verified(logits, token, chance)
        new.append(own)
        taken += accepted
        if not accepted or own in end:
            break
    else:
        new.append(sampler(pass_.logits[-1]))
    if sampler.temperature == 0 and model.linear.activations == "float32":
        told.ties += sum(map(ties, pass_.logits[: len(new)].numpy()))
    pass_.keep(len(new))
    told.passes, told.drafted, told.accepted, told.tokens = (
        told.passes + 1, told.drafted + len(drafted), told.accepted + taken, told.tokens + len(new),
    )  # fmt: skip
    told.refused += not accepted
    return new
