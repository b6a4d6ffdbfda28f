"""Sequences of weight accesses: recorded live, or built from a file."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from kit.errors import TraceError
from kit.trace import Trace

BYTES_PER_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Requests:
    """Accesses in order: what was asked for, how large it is (bytes), and in which token."""

    keys: list[str]
    sizes: list[int]
    tokens: list[int]

    def __len__(self):
        return len(self.keys)


def requests(source, tokens: int = 1, dtype: str = "float32") -> Requests:
    """Accesses of a Trace, of its DataFrame, of ``[(name, bytes), ...]``, or of ``tokens`` passes over a GGUF file.

    Of a trace only the spans "access" that did not fail count. TraceError when the source is none of these.
    """
    if isinstance(source, Requests):
        return source
    if isinstance(source, Trace):
        spans = [span for span in source.spans if span.what == "access" and span.outcome != "error"]
        return Requests([s.tensor for s in spans], [s.nbytes for s in spans], [s.token for s in spans])
    if isinstance(source, pd.DataFrame):
        return _of_frame(source)
    if hasattr(source, "tensors"):
        if dtype not in BYTES_PER_ELEMENT:
            raise TraceError(f"dtype {dtype!r}: known are {', '.join(BYTES_PER_ELEMENT)}")
        pairs = [(name, info.elements * BYTES_PER_ELEMENT[dtype]) for name, info in source.tensors.items()]
        return repeated(pairs, tokens)
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        return repeated(source, 1)
    raise TraceError(f"{type(source).__name__} is no trace: give a Trace, its DataFrame, a GGUF file or (name, bytes)")


def repeated(pairs, tokens: int) -> Requests:
    """``tokens`` passes over ``[(name, bytes), ...]`` in that order: a cyclic scan."""
    try:
        pairs = [(name, int(size)) for name, size in pairs]
    except (TypeError, ValueError):
        raise TraceError("a trace of pairs needs (name, bytes) in each item") from None
    negative = next((name for name, size in pairs if size < 0), None)
    if negative is not None:
        raise TraceError(f"{negative}: a negative size")
    numbered = [token for token in range(tokens) for _ in pairs]
    return Requests([name for name, _ in pairs] * tokens, [size for _, size in pairs] * tokens, numbered)


def _of_frame(frame: pd.DataFrame) -> Requests:
    missing = {"tensor", "nbytes"} - set(frame.columns)
    if missing:
        raise TraceError(f"the frame is no trace: it lacks the column {', '.join(sorted(missing))}")
    if "what" in frame:
        frame = frame[frame["what"] == "access"]
    if "outcome" in frame:
        frame = frame[frame["outcome"] != "error"]
    tokens = frame["token"].tolist() if "token" in frame else [0] * len(frame)
    return Requests(frame["tensor"].tolist(), frame["nbytes"].tolist(), tokens)
