"""A load test on loopback: a server with one route that works, the reports' client that reads nothing, and the gates.

The client divides the tokens that it ASKED for by the latency of whatever came back. An error is fast.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd

from kit.findings.live import Live
from kit.lab import figures, tables
from kit.lab.state import NEAR

LADDER = ((5, 0.110), (5, 0.010), (10, 0.009))  # asked tokens, seconds until the error: 45, 500 and 1100 "tok/s"


class Server(ThreadingHTTPServer):
    """POST /generate {"max_tokens": n} -> {"tokens": [...]} from ``generate(n)``; every other path is an error.

    ``/error/<seconds>`` answers 500 after that time; ``/empty``, ``/sorry``, ``/short`` and ``/made-up`` answer 200 with
    nothing, with a message, with one token, and (after 50 ms a token) with tokens that no model made; ``/stops-early``
    generates one token whatever was asked; ``/remembered`` answers without the model and counts the tokens as made.
    ``produced``: tokens that the model's counter has counted.
    """

    daemon_threads = True

    def __init__(self, generate: Callable[[int], list[int]]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.generate, self.produced = generate, 0

    def answer(self, path: str, asked: int) -> tuple[int, object]:
        """(status, body) of a request."""
        if path in ("/generate", "/stops-early"):
            tokens = self.generate(asked if path == "/generate" else 1)
            self.produced += len(tokens)
            return 200, {"tokens": tokens}
        if path.startswith("/error/"):
            time.sleep(float(path.removeprefix("/error/")))
            return 500, {"error": "model not loaded"}
        time.sleep(0.05 * asked * (path == "/made-up"))
        self.produced += asked * (path == "/remembered")
        full = {"tokens": [1] * asked}
        canned = {
            "/empty": None, "/sorry": {"message": "busy"}, "/short": {"tokens": [1]}, "/made-up": full, "/remembered": full,
        }  # fmt: skip
        return (200, canned[path]) if path in canned else (404, {"error": f"no route {path}"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        status, body = self.server.answer(self.path, asked)
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """No log line a request."""


@contextmanager
def serving(generate):
    """A running Server on a free loopback port."""
    with Server(generate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@dataclass(frozen=True)
class Exchange:
    """One request and all that a careful client could know about it."""

    path: str
    asked: int
    seconds: float
    status: int
    body: bytes
    produced: int  # by the model's own counter, during the request

    @property
    def claimed(self) -> float:
        """What the reports' client prints: asked tokens over latency."""
        return self.asked / self.seconds

    @property
    def answered(self) -> int:
        """Tokens in the answer; 0 when there is no list of tokens in it."""
        try:
            return len(json.loads(self.body)["tokens"])
        except (ValueError, KeyError, TypeError):
            return 0


def ask(server: Server, path: str, asked: int) -> Exchange:
    """POST and time one request, over a connection that is already open."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=120)
    connection.connect()
    before, body = server.produced, json.dumps({"max_tokens": asked})
    start = time.perf_counter()
    connection.request("POST", path, body)
    response = connection.getresponse()
    data = response.read()
    seconds = time.perf_counter() - start
    connection.close()
    return Exchange(path, asked, seconds, response.status, data, server.produced - before)


GATES: dict[str, Callable[[Exchange, float], bool]] = {  # what a number must pass before it counts: an answer, the roofline
    "status is 200": lambda e, roofline: e.status == 200,
    "the answer has bytes": lambda e, roofline: len(e.body) > 0,
    "tokens in the answer = asked": lambda e, roofline: e.answered == e.asked,
    "tokens by the model's counter = asked": lambda e, roofline: e.produced == e.asked,
    "below the roofline": lambda e, roofline: e.claimed <= NEAR * roofline,  # memory is not always equally fast
}
CAUGHT_BY = {  # answer -> the first gate that stops it, when gates are asked in their order
    "/error/0.009": "status is 200",
    "/no-such-route": "status is 200",
    "/empty": "the answer has bytes",
    "/sorry": "tokens in the answer = asked",
    "/short": "tokens in the answer = asked",
    "/stops-early": "tokens in the answer = asked",
    "/made-up": "tokens by the model's counter = asked",
    "/remembered": "below the roofline",
}


def ladder(server: Server, repeats: int = 5) -> pd.DataFrame:
    """The three rungs of the report, the median of so many requests: what was asked, what is printed, what nobody looked at."""
    rows = []
    for asked, seconds in LADDER:
        exchanges = sorted((ask(server, f"/error/{seconds}", asked) for _ in range(repeats)), key=lambda each: each.seconds)
        each = exchanges[repeats // 2]
        rows.append((asked, each.seconds, each.claimed, each.status, each.answered, each.produced))
    names = ["asked", "latency, s", 'printed "tok/s"', "status", "tokens in the answer", "tokens by the model"]
    return pd.DataFrame(rows, columns=names)


def gates(exchanges: list[Exchange], roofline: float) -> pd.DataFrame:
    """Exchange by gate: does it pass? ``roofline``: tokens a second that the bandwidth allows."""
    rows = {}
    for each in exchanges:
        passed = {name: passes(each, roofline) for name, passes in GATES.items()}
        stopped = next((name for name in GATES if not passed[name]), "none: it counts")
        rows[each.path] = {'"tok/s"': each.claimed, **passed, "stopped by": stopped}
    return pd.DataFrame.from_dict(rows, "index")


def ladder_figure(rungs: pd.DataFrame, honest: float, roofline: float):
    """What the client printed, what the model really did, and what the machine allows, in tokens a second."""
    figure, axes = figures.new(height=3.2)
    labels = [f"{row.asked} asked, error after {1000 * row._2:.0f} ms" for row in rungs.itertuples()]
    axes.barh(labels, rungs['printed "tok/s"'], color=figures.VERMILION, label="printed, no token made")
    axes.barh("the route that works, tokens counted", honest, color=figures.GREEN, label="measured, tokens counted")
    figures.bound(axes, roofline, f"roofline of this machine: {roofline:,.0f} tok/s", vertical=True)
    for bars in axes.containers:
        axes.bar_label(bars, fmt=" {:,.0f}", fontsize=9, bbox={"facecolor": "white", "lw": 0, "pad": 0.5})
    figures.log(axes, "x", write="{:,.0f}".format)
    axes.set_xlim(min(10, honest / 2), 3 * max(1100, honest, roofline))
    axes.set(xlabel="tokens a second", title="A fast error looks like a fast model")
    figures.rows(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.3, -0.2), ncols=3, fontsize=9)
    return figure


# --- what else can print between 45 and 1100 tokens a second: each beside the bandwidth that real tokens need ------------

WANTED = 1100 / 45  # times that the reported speeds differ by


def causes(rungs: pd.DataFrame, honest: Exchange, early: Exchange, runs: list[Live], swept: pd.DataFrame) -> pd.DataFrame:
    """One row a cause: the slowest and fastest "tok/s" that it printed here, their factor, whether tokens were made for it.
    ``early``: an answer that stopped before all tokens were made; ``runs``: with a slow dequantizer, from too small a cache to
    one that is large enough; ``swept``: the same with the kit's dequantizer."""
    printed, slow = rungs['printed "tok/s"'], [run.tokens_per_second for run in runs]
    fast = swept.loc[swept["policy"] == "LRU", "tok/s"]
    rows = {
        "errors, answered after chosen times": (printed.min(), printed.max(), "no"),
        "answers that stop early, asked tokens counted": (honest.claimed, early.claimed, "some"),
        "a cache too small or large enough, gguf-py's dequantizer": (min(slow), max(slow), "all"),
        "the same, the kit's dequantizer": (fast.min(), fast.max(), "all"),
    }
    table = tables.frame(rows, "cause", "slowest tok/s", "fastest tok/s", "tokens made")
    factor = (table["fastest tok/s"] / table["slowest tok/s"]).astype(float)
    return table.assign(factor=factor, **{f"as much as {WANTED:.0f} times": factor >= 0.9 * WANTED})
