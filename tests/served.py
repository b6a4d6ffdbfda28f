"""Faults made on purpose around a real llama-server: groups with a quota or a memory limit, neighbors, proxies, an Ollama."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kit.lab.engines import llama_cpp
from kit.lab.engines.started import WHEEL, Started
from kit.system import groups

PASSIVE = {"GOMP_SPINCOUNT": "0", "OMP_WAIT_POLICY": "passive"}  # threads that wait sleep: the tests share two cores


def started(file, flags="-t 2 -c 512", run=subprocess.Popen):
    """The wheel's llama-server on a file."""
    if not llama_cpp.available():
        pytest.skip("llama.cpp is not installed: pip install xllamacpp")
    return Started(f"{WHEEL} {flags}", file, PASSIVE, run)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """For the modules that import it: windows of half a second in place of one and a half."""
    monkeypatch.setattr("kit.lab.explaining.running._WINDOW", 0.5)


@contextlib.contextmanager
def group(controller: str, **files):
    """A control group with these files written, by version: {1: {name: text}, 2: {...}}; skips where root may make none."""
    own = [(version, folder) for version, folder in groups.own(controller) if f"v{version}" in files]
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0 or not own:
        pytest.skip(f"no rights to make a control group for {controller}")
    version, folder = own[0]
    path = folder / f"kit-test-{os.getpid()}-{controller}"
    try:
        path.mkdir()
        for name, text in files[f"v{version}"].items():
            (path / name).write_text(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"no rights to make a control group for {controller}: {error.strerror}")
    try:
        yield path
    finally:
        for _ in range(100):
            try:
                path.rmdir()
                break
            except OSError:  # the processes of it end within moments
                time.sleep(0.05)


def inside(path: Path):
    """``run`` of Started: the process begins in a group, so that its pages are the group's."""
    joined = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(path / "cgroup.procs")]
    return lambda command, **how: subprocess.Popen([*joined, *command], **how)


@contextlib.contextmanager
def neighbors(count: int):
    """Processes that compute."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


class Server(ThreadingHTTPServer):
    """On a free port of this machine. A client that goes away early prints no traceback into what a test reads."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serving(handler):
    """A handler of HTTP on a free port of this machine; its URL."""
    with Server(handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # its end waits for no half second
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class Quiet(BaseHTTPRequestHandler):
    """No line per request; ``said``: answers a request with JSON."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        """Nothing."""

    def said(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    @property
    def body(self) -> bytes:
        """Of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


def answering(get, post=None):
    """A handler that answers a GET, and a POST, by what these say of its path: (status, body)."""

    class Answers(Quiet):
        def do_GET(self):
            self.said(*get(self.path))

        def do_POST(self):
            self.said(*(post or get)(self.path))

    return Answers


def proxy(url: str, each=lambda number: None, begin=lambda: None, answers=lambda path: True):
    """A handler that passes requests on to ``url``, line by line; ``each`` is called before the line of a number goes out and
    returns "drop" to break off; ``begin`` before an answer."""
    host = url.removeprefix("http://")

    class Proxy(Quiet):
        def pass_on(self):
            if not answers(self.path):
                return self.said(404, {})
            connection = http.client.HTTPConnection(host, timeout=120)
            data = self.body
            connection.request(self.command, self.path, data or None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            stream = self.path.startswith(("/completion", "/v1/completions"))
            stream and begin()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", ""))
            self.end_headers()
            for number, line in enumerate(answer):
                if stream and line.strip() and each(number) == "drop":
                    break
                self.wfile.write(line)
                self.wfile.flush()
            connection.close()

        do_GET = do_POST = pass_on

    return Proxy


def ollama(
    url: str,
    file: Path,
    load: float = 0.0,
    models=("smollm2:135m",),
    refuses: str = "",
    remembers: bool = True,
    slow: float = 0.0,
):
    """A handler that speaks Ollama's protocol in front of a real llama-server. ``load``: seconds that the first request waits
    for the model. ``refuses``: the error of every answer. ``remembers``: whether it uses its prefix cache. ``slow``: seconds
    that each character of a prompt takes in addition, if it is computed."""
    host, loads, before = url.removeprefix("http://"), [load], [""]

    class Ollama(Quiet):
        def do_GET(self):
            listed = [{"name": name, "model": name, "context_length": 512} for name in models]
            answers = {
                "/api/version": {"version": "0.12.6"}, "/api/ps": {"models": listed}, "/api/tags": {"models": listed},
                "/v1/models": {"object": "list", "data": [{"id": name} for name in models]},
            }  # fmt: skip
            self.said(200, answers[self.path]) if self.path in answers else self.said(404, b"404 page not found")

        def do_POST(self):
            asked = json.loads(self.body)
            if self.path == "/api/show":
                return self.said(200, {"modelfile": f"# Modelfile\nFROM {file}\n", "details": {"format": "gguf"}})
            if self.path != "/api/generate":
                return self.said(404, b"404 page not found")
            if refuses:
                return self.said(500, {"error": refuses})
            waited, loads[0] = loads[0], 0.0
            known = len(before[0]) if remembers and asked["prompt"].startswith(before[0]) else 0
            before[0] = asked["prompt"]
            time.sleep(waited + slow * (len(asked["prompt"]) - known))
            options = asked.get("options", {})
            ours = {"prompt": asked["prompt"], "n_predict": options.get("num_predict", 8), "stream": True, "temperature": 0}
            connection = http.client.HTTPConnection(host, timeout=120)
            connection.request("POST", "/completion", json.dumps(ours | {"cache_prompt": remembers, "ignore_eos": True}))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.end_headers()
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    self._line(json.loads(line[6:]), waited)
            connection.close()

        def _line(self, event, waited):
            said = {"model": models[0], "response": event.get("content", ""), "done": bool(event.get("stop"))}
            if said["done"]:
                times = event["timings"]
                said |= {
                    "done_reason": "length", "total_duration": 1, "load_duration": int(waited * 1e9) + 1000,
                    "prompt_eval_count": times["prompt_n"] + times["cache_n"], "eval_count": times["predicted_n"],
                    "prompt_eval_duration": int(times["prompt_ms"] * 1e6), "eval_duration": int(times["predicted_ms"] * 1e6),
                }  # fmt: skip
            self.wfile.write(json.dumps(said).encode() + b"\n")
            self.wfile.flush()

    return Ollama


def copied(file: Path, folder: Path) -> Path:
    """A copy whose pages nobody has read since they were written to the disk."""
    from kit.gguf import pagecache

    path = Path(shutil.copy(file, folder / file.name))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    pagecache.drop(path)
    return path
