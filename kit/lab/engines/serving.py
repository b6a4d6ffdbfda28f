"""Rows of the table of engines for servers: one that runs, by its URL, and a llama-server that kit starts."""

import shlex
from contextlib import ExitStack
from pathlib import Path

import psutil

import kit
from kit.errors import KitError
from kit.lab.engines import owner, server
from kit.lab.engines.base import Cpu, EngineFacts, Pass
from kit.lab.engines.meter import Received
from kit.lab.engines.started import WHEEL, Started, changed, is_server
from kit.lab.engines.table import EngineKind
from kit.model.tokenizer import tokenizer_of

_TEXT = "Every token that a language model makes reads its weights once, so bytes decide how fast it can be. "
_KV = ("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v")


class ServerRunner:
    """A server as an engine: speeds by what its client receives. ``spec``: its URL, or what starts it; ``model``: its file."""

    def __init__(self, label: str, spec: str, model: Path | None = None):
        self.label, self._ends, self._asked = label, ExitStack(), 0
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

    def decode(self, tokens: int, depth: int = 0, times: int = 1) -> list[Pass]:
        """From the first token received to the last: ``tokens`` more than the first."""
        prompt, taken = self._prompt(max(1, depth)), []
        for _ in range(times):
            got = self._ask(prompt, tokens + 1)
            per = got.seconds_per_token
            received = max(0, got.answered - 1)
            problem = got.fault or ("all tokens came at once" if per is None else "")
            reported = got.report.seconds_per_token and got.report.seconds_per_token * received
            taken.append(Pass((per or 0.0) * received, received, tokens, depth, reported, problem))
        return taken

    def prompt(self, tokens: int, depth: int = 0, times: int = 1) -> list[Pass]:
        """From the request to the first token; positions that a cache had make it no speed."""
        taken = []
        for _ in range(times):
            before = self._prompt(max(1, depth)) if depth else []
            if before:
                self._ask(before, 1)
            got = self._ask([*before, *self._prompt(tokens)] if before else self._prompt(tokens), 1, cached=bool(before))
            computed = got.report.computed
            problem = got.fault
            if not problem and computed is not None and computed < tokens:
                problem = f"a cached answer: {computed} of {tokens} positions were computed"
            taken.append(Pass(got.first or 0.0, tokens, tokens, depth, got.report.prompt_seconds, problem))
        return taken

    def _prompt(self, length: int) -> list[int]:
        self._asked += 1
        text = f"{self._asked * 7919 % 9973} " + _TEXT * (length // 8 + 2)
        return self.server.tokenizer.encode(text)[:length] if self.server.tokenizer else [0] * length

    def _ask(self, prompt: list[int], tokens: int, cached: bool = True) -> Received:
        text = None if self.server.tokenizer else f"{self._asked * 7919 % 9973} " + _TEXT * (len(prompt) // 20 + 1)
        return self.server.ask(prompt if text is None else [], tokens, cached, text=text)

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
