"""Engines in turn: two builds or settings alternate, so that what the machine does meanwhile is the same for both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kit.errors import EngineError
from kit.lab.engines.base import Pass, Runner
from kit.lab.measuring import state
from kit.lab.measuring.measure import interval_of
from kit.lab.measuring.minutes import as_fast

DECODE, PROMPT = "decode", "prompt"


@dataclass
class Series:
    """What one engine did at one test. ``passes``: of each round that counts, in order; ``others``: cores that other processes
    used in the busiest of them; ``gbps``: how fast memory was read in the same rounds, where that was asked for."""

    kind: str
    asked: int
    depth: int
    passes: list[Pass] = field(default_factory=list)
    others: float = 0.0
    gbps: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """As llama-bench names its tests: pp512, tg128, tg128 @ d4096."""
        return f"{'tg' if self.kind == DECODE else 'pp'}{self.asked}" + f" @ d{self.depth}" * bool(self.depth)

    @property
    def per_token(self) -> list[float]:
        """Seconds per token of each pass that is a speed."""
        return [each.per_token for each in self.passes if each.per_token]

    @property
    def problems(self) -> list[str]:
        """Why some passes are none, each reason once."""
        return list(dict.fromkeys(each.problem for each in self.passes if each.problem))

    @property
    def seconds(self) -> float | None:
        """Seconds per token, the median; None where no pass is a speed."""
        return float(np.median(self.per_token)) if self.per_token else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``seconds``; None for fewer than two samples."""
        return interval_of(self.per_token) if len(self.per_token) > 1 else None

    @property
    def busy(self) -> bool:
        """Whether other processes disturbed it."""
        return self.others > state.BUSY

    def to_json(self) -> dict:
        """For ``decode`` and ``prompt`` of the JSON of kit explain."""
        return {
            "name": self.name, "tokens_per_second": self.seconds and 1 / self.seconds, "seconds": self.seconds,
            "interval": self.interval, "samples": self.per_token, "tokens_received": sum(each.received for each in self.passes),
            "tokens_asked": sum(each.asked for each in self.passes), "depth": self.depth, "others_cores": self.others,
            "problems": self.problems,
        }  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """How many times as fast ``after`` was as ``before``, with its 95 % interval over rounds."""

    before: str
    after: str
    test: str
    times: float
    low: float
    high: float
    rounds: int

    def to_json(self) -> dict:
        """For ``compared`` of the JSON of kit explain."""
        return vars(self) | {"says": self.told}

    @property
    def told(self) -> str:
        """In words, as a sentence."""
        if self.low <= 1 <= self.high:
            same = as_fast(self.times, self.low, self.high, f"`{self.before}`")
            return f"{self.test}: `{self.after}` is {same}, in {self.rounds} rounds."
        span = f"{self.times:.2f} ({self.low:.2f} to {self.high:.2f})"
        how = "slower" if self.high < 1 else "faster"
        return f"{self.test}: `{self.after}` is {span} times as fast as `{self.before}`, in {self.rounds} rounds: {how}."


def in_turn(
    engines: Sequence[Runner], kind: str, tokens: int, depth: int = 0, rounds: int = 5, strict: bool = False,
    read: Callable[[], float] | None = None,
) -> dict[str, Series]:  # fmt: skip
    """Label -> its Series of one test, a pass of each engine a round, in reverse order every other round.

    A round that other processes disturbed is taken again, at most as often as there are rounds; the quietest are kept.
    ``read``: reads memory once in each round and returns GB/s, so that the limit is of the same minutes.
    ``strict``: EngineError where even those were disturbed, because a comparison on a busy machine is none.
    """

    def one(number: int) -> tuple[float | None, dict[str, Pass]]:
        order = engines if number % 2 == 0 else engines[::-1]
        return read() if read else None, {each.label: getattr(each, kind)(tokens, depth) for each in order}

    kept, tried = state.quietest(one, rounds, engines)
    busiest = max(others for others, _ in kept)
    if strict and busiest > state.BUSY:
        raise EngineError(
            f"not compared: the machine is busy, other processes used {busiest:.1f} cores during the quietest {len(kept)} of "
            f"{tried} rounds; close them and ask again"
        )
    gbps = tuple(speed for _, (speed, _) in kept if speed)
    return {
        each.label: Series(kind, tokens, depth, [passes[each.label] for _, (_, passes) in kept], busiest, gbps)
        for each in engines
    }


def ratio(before: str, after: str, series: dict[str, Series]) -> Compared | None:
    """The speed of one label compared with another's in the same rounds; None for fewer than two rounds with both."""
    both = zip(series[before].passes, series[after].passes, strict=True)
    ratios = [first.per_token / second.per_token for first, second in both if first.per_token and second.per_token]
    if len(ratios) < 2:
        return None
    low, high = interval_of(ratios)
    return Compared(before, after, series[before].name, float(np.median(ratios)), low, high, len(ratios))
