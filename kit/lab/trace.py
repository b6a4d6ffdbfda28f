"""Trace: what happened to which tensor, when. Every count, every plot and every replay is derived from it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Span(NamedTuple):
    """One thing that happened. Times are nanoseconds of ``time.perf_counter_ns``; -1 means "not of a layer (token)"."""

    what: str  # open, read, dequantize, access, linear, attention, norm, sample, token, ...
    tensor: str
    layer: int
    token: int
    nbytes: int
    start: int
    end: int
    outcome: str  # hit, miss, bypass, prefetch, error or ""


class Trace:
    """A list of spans. Appending is atomic under the interpreter lock, so threads may share one trace.

    ``token`` is the running token (0 = the prompt), which the transformer sets; spans take it unless told otherwise.
    """

    def __init__(self):
        self.spans: list[Span] = []
        self.token = -1

    def add(self, what, start, end, tensor="", layer=-1, token=None, nbytes=0, outcome=""):
        """Append one finished span (nanoseconds)."""
        token = self.token if token is None else token
        self.spans.append(Span(what, tensor, layer, token, nbytes, start, end, outcome))

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
        """A DataFrame, a row a span: the fields of Span, times in seconds since the first start, ``seconds`` (end - start)."""
        import pandas as pd  # a tenth of the memory of a process that only runs a model

        frame = pd.DataFrame(list(self.spans), columns=Span._fields)
        zero = frame["start"].min() if len(frame) else 0
        frame["start"] = (frame["start"] - zero) / 1e9
        frame["end"] = (frame["end"] - zero) / 1e9
        frame["seconds"] = frame["end"] - frame["start"]
        return frame

    def clear(self) -> None:
        """Forget all spans."""
        self.spans.clear()

    def __len__(self) -> int:
        return len(self.spans)
