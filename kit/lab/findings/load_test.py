"""A load test on loopback: a server with given routes, and a client that records everything it can know."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kit.lab.engines import meter
from kit.lab.measuring import kept
from kit.units import from_json

Route = Callable[["Server", int], object]  # the server, asked tokens -> what is sent as JSON; None: an empty body
MODELS, INFERENCE = "/api/v1/models", "/api/v1/inference"


class Server(ThreadingHTTPServer):
    """Loopback, a free port. ``routes``: path -> Route. A path that is not there is answered by 404 and no byte, a route
    that raises by 500. ``produced``: the model's counter; a route that has tokens made passes them through ``made``."""

    daemon_threads = True

    def __init__(self, routes: Mapping[str, Route]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes, self.produced = routes, 0

    def made(self, tokens: list[int]) -> list[int]:
        """The same tokens, counted as made by the model."""
        self.produced += len(tokens)
        return tokens

    def answer(self, path: str, asked: int) -> tuple[int, bytes]:
        """(status, body) of a request."""
        if path not in self.routes:
            return 404, b""
        try:
            body = self.routes[path](self, asked)
        except Exception as error:  # whatever a route raises is the server's error
            return 500, json.dumps({"error": str(error)}).encode()
        return 200, b"" if body is None else json.dumps(body).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = from_json(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        status, data = self.server.answer(self.path, asked)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """No log line per request."""


@contextmanager
def serving(routes: Mapping[str, Route]):
    """A running Server."""
    with Server(routes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@dataclass(frozen=True)
class Exchange(meter.Received):
    """One request by the meter of kit explain (kit.lab.engines.meter): its ``path``, and the tokens ``produced`` by the model's
    own counter during the request."""

    path: str = ""
    produced: int = 0


def answers(routes: Mapping[str, Route], asked: Iterable[tuple[str, int]], generate: Callable) -> list[Exchange]:
    """What a server with these routes answers to each (path, tokens), one after the other, after a token that fills a cache;
    once a run (kit.lab.measuring.kept)."""

    def taken():
        with serving(routes) as server:
            generate(1)
            return [ask(server, *each) for each in asked]

    return kept.take("answers", ([*routes], asked := list(asked)), taken)


def ask(server: Server, path: str, asked: int) -> Exchange:
    """POST and time one request, on a connection that is open."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=120)
    connection.connect()
    before, body = server.produced, json.dumps({"max_tokens": asked})
    start = time.perf_counter()
    connection.request("POST", path, body)
    response = connection.getresponse()
    data = response.read()
    seconds = time.perf_counter() - start
    connection.close()
    received = meter.tokens_of(data)
    return Exchange(asked, seconds, response.status, data, received=received, path=path, produced=server.produced - before)


def theirs(generate: Callable[[int], list[int]]) -> dict[str, Route]:
    """The routes that the reports' server has (crates/woolly-server/src/server.rs, lines 87 to 123): list, info, load,
    unload, three that generate. ``generate``: asked tokens -> tokens."""
    names = ("", "/granite", "/granite/load", "/granite/unload")
    models = dict.fromkeys(names, lambda server, asked: {"granite": "loaded"})
    ways = dict.fromkeys(("complete", "stream", "chat"), lambda server, asked: {"tokens": server.made(generate(asked))})
    routes = {f"{MODELS}{end}": route for end, route in models.items()}
    return routes | {f"{INFERENCE}/{end}": route for end, route in ways.items()}


def wrong(generate: Callable[[int], list[int]]) -> dict[str, Route]:
    """Answers that a client must not count: an error, no bytes, a message, one token of many, tokens that no model made (50 ms
    each), and tokens that the model's counter counts although nothing ran."""
    return {
        "/fails": lambda server, asked: 1 / 0,
        "/empty": lambda server, asked: None,
        "/busy": lambda server, asked: {"message": "busy"},
        "/stops-early": lambda server, asked: {"tokens": server.made(generate(1))},
        "/made-up": lambda server, asked: time.sleep(0.05 * asked) or {"tokens": [1] * asked},
        "/remembered": lambda server, asked: {"tokens": server.made([1] * asked)},
    }
