"""The meter of an answer: what a client received and when, what it asked for, and what the server reports of itself.

Only tokens that were received count. An error, an empty answer, a cached one or one that broke off is said, and is no speed:
report 001 of the Woolly project divided tokens that it asked for by the time of an error, and printed 1,100 per second.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from kit.units import from_json

BURST = 0.05  # of a request's time: pieces that all come within less came at once, and their distances are no times of tokens


class Report(NamedTuple):
    """What a server says of a request: positions of the prompt that it ``computed`` and that it had ``cached``, tokens that it
    made (``predicted``); the seconds of loading, of the prompt and of the tokens. None: not said."""

    computed: int | None = None
    cached: int | None = None
    predicted: int | None = None
    load_seconds: float | None = None
    prompt_seconds: float | None = None
    predicted_seconds: float | None = None

    @property
    def seconds_per_token(self) -> float | None:
        """By the server's own clock, without the way to the client. It begins at the first token, as a client's does."""
        if not self.predicted_seconds or not self.predicted or self.predicted < 2:
            return None
        return self.predicted_seconds / (self.predicted - 1)


@dataclass(frozen=True)
class Received:
    """One request. ``asked``: tokens asked for. ``seconds``: until its end; ``arrivals``: until each piece of the answer, since
    the request was sent. ``status``: of HTTP, 0 where the connection broke. ``received``: tokens received; None: not counted.
    ``ended``: whether the server said that the answer is whole."""

    asked: int
    seconds: float
    status: int
    body: bytes = b""
    arrivals: tuple[float, ...] = ()
    received: int | None = None
    text: str = ""
    ids: tuple[int, ...] = ()
    ended: bool = True
    stop: str = ""
    error: str = ""
    report: Report = field(default_factory=Report)

    @property
    def claimed(self) -> float:
        """What the reports' client prints: requested tokens / latency."""
        return self.asked / self.seconds

    @property
    def answered(self) -> int:
        """Tokens in the answer; 0 when there are none."""
        return self.received or 0

    @property
    def fault(self) -> str:
        """Why this is no measurement of a speed, in words; "" where it is one."""
        if self.error or self.status != 200:
            return f"an error ({self.status or 'the connection broke'}{': ' * bool(self.error)}{self.error})"
        if not self.answered:
            return "an empty answer"
        if not self.ended:
            return f"a stream that broke off after {self.answered} of {self.asked} tokens"
        return ""

    @property
    def burst(self) -> bool:
        """Whether all pieces came at once, at the end: a proxy that collects, or an answer that was ready."""
        several = self.answered > 1 and bool(self.arrivals)
        return several and self.arrivals[-1] - self.arrivals[0] < BURST * self.seconds

    @property
    def first(self) -> float | None:
        """Seconds to the first token; None without one."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds from the first token received to the last, per token between them; None where that is no speed."""
        if self.fault or self.burst or self.answered < 2 or len(self.arrivals) < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.answered - 1)

    @property
    def stopped(self) -> bool:
        """Whether the answer is whole and shorter than what was asked for."""
        return not self.fault and self.answered < self.asked


def tokens_of(body: bytes) -> int:
    """The tokens that an answer of JSON lists; 0 when there is no list of tokens in it."""
    try:
        return len(from_json(body)["tokens"])
    except (ValueError, KeyError, TypeError):
        return 0
