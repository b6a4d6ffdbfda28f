"""Trace: spans in, one frame out."""

import pickle
import threading

import pytest

from kit.trace import Span, Trace


def test_frame_is_in_seconds_from_the_first_start():
    trace = Trace()
    trace.token = 3
    trace.add("read", 2_000_000_000, 2_500_000_000, "blk.1.attn_q.weight", 1, None, 64)
    trace.add("dequantize", 1_000_000_000, 4_000_000_000, token=7, outcome="miss")
    frame = trace.frame()
    assert list(frame["start"]) == [1.0, 0.0]
    assert list(frame["seconds"]) == [0.5, 3.0]
    assert list(frame["token"]) == [3, 7]


def test_span_records_an_error_and_lets_it_pass():
    trace = Trace()
    with pytest.raises(KeyError), trace.span("load", "x"):
        raise KeyError("x")
    (span,) = trace.spans
    assert span == Span("load", "x", -1, -1, 0, span.start, span.end, "error")  # of no layer, no token, no bytes


def test_an_empty_trace_has_an_empty_frame():
    assert Trace().frame().empty


def test_threads_lose_no_span():
    trace = Trace()
    threads = [threading.Thread(target=lambda: [trace.add("a", 0, 1) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trace) == 20_000


def test_spans_that_come_later_stand_where_they_were_announced():
    trace, made = Trace(), []
    trace.add("a", 0, 1)
    trace.later(lambda: made.append(1) or [Span(what, "", -1, 0, 0, 0, 1, "") for what in "bc"])
    trace.add("d", 0, 1)
    assert not made and [span.what for span in trace.spans] == list("abcd") and len(trace) == 4
    trace.later(lambda: [])
    assert [span.what for span in pickle.loads(pickle.dumps(trace)).spans] == list("abcd")
    assert list(trace.frame()["what"]) == list("abcd") and made == [1]
    trace.clear()
    trace.add("e", 0, 1)
    assert [span.what for span in trace.spans] == ["e"]
