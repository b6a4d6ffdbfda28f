"""A llama-server that kit starts and ends: a binary of the user, or the server inside the wheel ``xllamacpp``.

One string names it with its options, as in a shell: ``./llama-server -t 4 -c 8192``, or ``xllamacpp -t 4`` for the wheel's.
"""

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx

import kit
from kit.errors import ServerError
from kit.lab.engines import llama_cpp, wheel_server
from kit.lab.engines.wheel_server import WHEEL
from kit.system import python

_PATIENCE = 120.0  # seconds until a model is loaded
_KEPT = 400  # characters of a server's last words


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
            wheel_server.parsed(options)  # a flag that the wheel lacks is said before anything starts
            command = python.running(wheel_server.__name__, *options)
        else:
            command = [os.path.expanduser(words[0]), *options]  # a quoted ~ is none of the shell's
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
            skip = (bool(after) and not after.startswith("-")) or after.removeprefix("-").isdigit()
        else:
            kept.append(word)
    return shlex.join(kept + new)


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
