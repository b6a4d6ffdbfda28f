"""Rows of the table of engines for servers: one that runs, by its URL, and a llama-server that kit starts."""

import shlex
from contextlib import ExitStack
from pathlib import Path

import psutil

import kit
from kit.errors import KitError
from kit.lab.engines import owner, server
from kit.lab.engines.base import Cpu, EngineFacts, Pass
from kit.lab.engines.started import WHEEL, Started, changed, is_server
from kit.lab.engines.table import EngineKind
from kit.model.tokenizer import tokenizer_of

_KV = ("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v")


class ServerRunner:
    """A server as an engine: speeds by what its client receives. ``spec``: its URL, or what starts it; ``model``: its file."""

    def __init__(self, label: str, spec: str, model: Path | None = None):
        self.label, self._ends = label, ExitStack()
        try:
            url = spec if server.is_server(spec) else self._ends.enter_context(Started(spec, model)).url
            self.server = self._ends.enter_context(server.ServerClient(url))
            self.owner = owner.find(self.server, model)
            self._tell()
        except BaseException:
            self.close()
            raise

    def _tell(self) -> None:
        if self.owner.file:
            file = self._ends.enter_context(kit.open(self.owner.file))
            try:
                self.server.tokenizer = tokenizer_of(file)
            except KitError:
                return  # tokens are then counted by what the server says

    @property
    def facts(self) -> EngineFacts:
        """By its process and what it says."""
        context = self.server.context or None
        kv = tuple(self.owner.flag(names) or "f16" for names in _KV) if self.owner.command else None
        flags = {"command": " ".join(self.owner.command)} if self.owner.command else {}
        return EngineFacts(
            self.server.name, self.server.version, self.owner.threads, flags, self.owner.file, context, kv, self.owner.missing
        )

    def decode(self, tokens: int, depth: int = 0) -> Pass:
        """From the first token received to the last: ``tokens`` more than the first."""
        before = max(1, depth)
        got = self.server.ask(self.server.prompt(before), tokens + 1, positions=before)
        per, received = got.seconds_per_token, max(0, got.answered - 1)
        problem = got.fault or ("all tokens came at once" if per is None else "")
        reported = got.report.seconds_per_token and got.report.seconds_per_token * received
        return Pass((per or 0.0) * received, received, tokens, depth, reported, problem)

    def prompt(self, tokens: int, depth: int = 0) -> Pass:
        """From the request to the first token; positions that a cache had make it no speed."""
        before = self.server.prompt(depth) if depth else []
        if depth:
            self.server.ask(before, 1, positions=depth)
        got = self.server.ask([*before, *self.server.prompt(tokens)], 1, bool(depth), depth + tokens)
        computed, problem = got.report.computed, got.fault
        if not problem and computed is not None and computed < tokens:
            problem = f"a cached answer: {computed} of {tokens} positions were computed"
        return Pass(got.first or 0.0, tokens, tokens, depth, got.report.prompt_seconds, problem)

    def cpu_times(self) -> Cpu:
        """Of the server's processes."""
        used = [0.0, 0.0]
        for number in self.owner.all:
            try:
                times = psutil.Process(number).cpu_times()
            except psutil.Error:
                continue
            used = [used[0] + times.user, used[1] + times.system]
        return Cpu(*used)

    def close(self) -> None:
        """End what kit started; a server of the user's goes on."""
        self._ends.close()


def _by_url(label: str, words: list[str], model: Path | None, threads: int | None) -> ServerRunner:
    return ServerRunner(label, words[0], model)


def _by_binary(label: str, words: list[str], model: Path | None, threads: int | None) -> ServerRunner:
    spec = shlex.join(words)
    return ServerRunner(label, changed(spec, f"-t {threads}") if threads else spec, model)


KINDS = (
    EngineKind("server", "http://127.0.0.1:8080", server.is_server, _by_url, starts=False),
    EngineKind("llama-server", f"./llama-server -t 4, or {WHEEL} -t 4", is_server, _by_binary),
)
