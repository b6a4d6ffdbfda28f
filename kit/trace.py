"""Trace: a list of timed events (spans), from which counts, figures and replays are derived."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import NamedTuple

from kit.errors import library
from kit.shown import Shown
from kit.units import format_bytes, format_seconds


class Span(NamedTuple):
    """One event. Times are nanoseconds of ``time.perf_counter_ns``; layer or token -1: of no layer or token."""

    what: str  # open, read, dequantize, access, linear, attention, norm, sample, token, ...
    tensor: str
    layer: int
    token: int
    nbytes: int
    start: int
    end: int
    outcome: str  # hit, miss, bypass, prefetch, error or ""


_reading = threading.Lock()


class Trace(Shown):
    """A list of spans. Threads may share one trace, since appending is atomic under the interpreter lock.

    ``token``: number of the current token (0: the prompt), set by the transformer; the default token of new spans.
    """

    def __init__(self):
        self._entries: list[Span | Callable[[], list[Span]]] = []
        self._made = 0  # entries that are spans for certain
        self.token = -1
        self.turn = threading.RLock()  # whoever runs a model with this trace holds it: one pass at a time

    @property
    def spans(self) -> list[Span]:
        """All spans, in order."""
        with _reading:
            for place in range(len(self._entries) - 1, self._made - 1, -1):
                if not isinstance(self._entries[place], Span):
                    self._entries[place : place + 1] = self._entries[place]()
            self._made = len(self._entries)
        return self._entries

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "turn"} | {"_entries": self.spans}

    def __setstate__(self, state):
        vars(self).update(state, turn=threading.RLock())

    def later(self, spans: Callable[[], list[Span]]) -> None:
        """Append spans that are made when somebody reads the trace: hundreds of them take as long as a small model's layer."""
        self._entries.append(spans)

    def add(self, what, start, end, tensor="", layer=-1, token=None, nbytes=0, outcome=""):
        """Append one finished span (nanoseconds)."""
        token = self.token if token is None else token
        self._entries.append(Span(what, tensor, layer, token, nbytes, start, end, outcome))

    @contextmanager
    def span(self, what, tensor="", layer=-1, nbytes=0) -> Iterator[None]:
        """Time the body of a ``with``; an exception is recorded as the outcome ``error`` and passes on."""
        start, outcome = time.perf_counter_ns(), ""
        try:
            yield
        except BaseException:
            outcome = "error"
            raise
        finally:
            self.add(what, start, time.perf_counter_ns(), tensor, layer, None, nbytes, outcome)

    def frame(self):
        """A DataFrame with one row for each span: the fields of Span, and ``seconds``; start and end in s from the first."""
        import numpy as np

        pd = library("pandas")  # here, because a process that only runs a model does not need it

        spans = self.spans[:]  # other threads may add some meanwhile
        columns = {}
        for place, (name, kind) in enumerate(Span.__annotations__.items()):  # one at a time: rows as objects take 5 times more
            values = map(itemgetter(place), spans)
            columns[name] = np.fromiter(values, np.int64, len(spans)) if kind is int else pd.array(list(values), "str")
        start, end = columns["start"], columns["end"]
        zero = start.min() if len(spans) else 0
        columns |= {"start": (start - zero) / 1e9, "end": (end - zero) / 1e9, "seconds": (end - start) / 1e9}
        return pd.DataFrame(columns, copy=False)

    def _facts(self):
        sums: dict[str, list[int]] = {}
        spans = self.spans[:]
        for span in spans:
            total = sums.setdefault(span.what, [0, 0, 0])
            total[:] = total[0] + 1, total[1] + span.end - span.start, total[2] + span.nbytes
        took = (max(span.end for span in spans) - min(span.start for span in spans)) / 1e9 if spans else 0
        facts = {"spans": f"{len(spans):,} in {format_seconds(took)}"}
        for what, (count, nanoseconds, nbytes) in sorted(sums.items(), key=lambda row: -row[1][1]):
            facts[what] = f"{count:,} in {format_seconds(nanoseconds / 1e9)}" + (
                f" over {format_bytes(nbytes)}" if nbytes else ""
            )
        return "Trace", facts

    def clear(self) -> None:
        """Forget all spans."""
        self._entries.clear()
        self._made = 0

    def __len__(self) -> int:
        return len(self.spans)
