"""Page 11: a llama-server with a fault made on purpose, or the reader's own, explained; then one change, tried in turn."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from kit.lab.engines.started import WHEEL, Started, changed
from kit.lab.explaining import causes, remedies, running_answer
from kit.lab.explaining.causes import Cause, Window
from kit.lab.explaining.running import NEAR, Running
from kit.lab.explaining.running_answer import turns
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.measure import interval_of

__all__ = ["WHEEL", "Explained", "Tried", "changed", "explain", "in_turn"]


@dataclass(frozen=True)
class Explained:
    """A server's decode. ``engine``: what started it, or its URL; ``windows`` and the ``rows`` of causes of each; ``causes``:
    their means. ``least``: seconds that a token's bytes take; ``kind``: of the server. ``data``: what kit explain says of it as
    JSON, and what a picture needs under one roof ("work", "machine", "engines"); {} where its file was not found."""

    engine: str
    windows: list[Window]
    rows: list[dict[str, float]]
    causes: list[Cause]
    least: float
    kind: str = "llama-server"
    data: dict = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of a token."""
        return float(np.mean([window.seconds for window in self.windows]))

    @property
    def largest(self) -> Cause | None:
        """The fault to act on."""
        return causes.largest(self.causes)

    @property
    def told(self) -> str:
        """The sum in words."""
        return remedies.sum_told(self.causes)

    @property
    def change(self) -> str:
        """The flags of the largest cause's remedy; "" where it is no flag."""
        return self.largest.flags if self.largest else ""


def table(explained: Explained) -> pd.DataFrame:
    """A row for each cause: share, seconds, ends of the interval, evidence, what to change."""
    total = sum(cause.seconds for cause in explained.causes)
    rows = {
        "not explained" if cause.name == "unexplained" else cause.name: {
            "share": cause.seconds / total, "per token, s": cause.seconds, "from, s": cause.low, "to, s": cause.high,
            "evidence": cause.evidence, "what to change": cause.remedy,
        }
        for cause in explained.causes
    }  # fmt: skip
    return pd.DataFrame.from_dict(rows, "index").rename_axis("cause")


@once_a_run
def explain(path: Path, engine: str, server: str = "", gbps: float | None = None) -> Explained:
    """The decode of a server that is started by ``engine`` on a file, or of one that runs at a URL. ``gbps``: of memory (None:
    measured now)."""
    with ExitStack() as stack:
        url = server or stack.enter_context(Started(engine, path)).url
        probe = (lambda: gbps) if gbps else None
        running = stack.enter_context(Running(url, gbps=probe))
        data = running_answer.under_roof(running, server or engine)
        return Explained(
            server or engine, running.windows, running.rows, running.decode, running.least(NEAR), running.server.name, data
        )


@dataclass(frozen=True)
class Tried:
    """Seconds per token of two settings, window by window in turn."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratios(self) -> np.ndarray:
        """How many times as fast ``after`` is, by round."""
        return np.array(self.before) / np.array(self.after)

    @property
    def times(self) -> float:
        """Their median."""
        return float(np.median(self.ratios))

    @property
    def interval(self) -> tuple[float, float]:
        """95 %."""
        return interval_of(self.ratios)


@once_a_run
def in_turn(path: Path, before: str, after: str, rounds: int) -> Tried:
    """Two settings of one server, both started, that answer in turn: only one of them computes at a time."""
    return Tried(*map(tuple, turns(path, before, after, rounds).values()))
