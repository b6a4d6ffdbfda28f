"""Requests to a server, of which some are watched meanwhile: the time of a token, and what the process did."""

import time

import kit
from kit.errors import KitError, ServerError
from kit.lab.engines import owner as owners
from kit.lab.engines.meter import Received
from kit.lab.engines.server import TEXT, ServerClient
from kit.lab.engines.watch import Watch
from kit.lab.explaining.causes import Window
from kit.model.tokenizer import tokenizer_of


class AskedServer:
    """One server. ``url``, ``model``: see ServerClient. ``file``: what it runs, where the user named it. ``faults``: what was
    wrong with answers."""

    def __init__(self, url: str, model: str = "", file=None):
        self.server, self.faults = ServerClient(url, model), []
        self.began = time.monotonic()
        try:
            self.owner = owners.find(self.server, file)
            self.file = kit.open(self.owner.file) if self.owner.file else None
            self.server.tokenizer = self._tokenizer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection and close the file; the server goes on."""
        self.server.close()
        if getattr(self, "file", None) is not None:
            self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _tokenizer(self):
        try:
            return tokenizer_of(self.file) if self.file else None
        except KitError:
            return None

    def prompt(self, positions: int) -> list[int]:
        """As of ServerClient."""
        return self.server.prompt(positions)

    def further(self, positions: int) -> list[int]:
        """Token ids of as much text that follows another."""
        return self.server.tokenizer.encode(TEXT, special=False, ends=False)[:positions]

    def ask(self, prompt: list[int], tokens: int, cached: bool = True, positions: int = 0, **calls) -> Received:
        """One request; what is wrong with it is kept in ``faults``."""
        got = self.server.ask(prompt, tokens, cached, positions, **calls)
        if got.fault:
            self.faults.append(got.fault)
        return got

    def window(self, prompt: list[int], tokens: int, cached: bool = True, positions: int = 0) -> tuple[Window | None, Received]:
        """A watched answer: the time of a token between the first and the last one received."""
        watch, windows = Watch(self.owner), []
        got = self.ask(prompt, tokens, cached, positions, at_first=watch.start, at_end=lambda: windows.append(watch.stop()))
        if got.burst and not got.fault:  # all at once: what came before the first piece is the time of the tokens
            watch.start()
            again = self.ask(prompt, tokens, cached, positions, at_end=lambda: windows.append(watch.stop()))
            shorts = [self.ask(prompt, 1, cached, positions) for _ in range(2)]  # what disturbs one makes it only longer
            if again.fault or any(short.fault for short in shorts) or again.answered < 3:
                return None, again
            seconds = (again.seconds - min(short.seconds for short in shorts)) / (again.answered - 1)
            if seconds <= 0:  # one token took as long: what disturbed it took longer than the tokens
                self.faults.append(f"{again.answered} tokens that came at once took no longer than one")
                return None, again
            return Window(again.answered - 1, seconds, windows[-1], again.report.seconds_per_token), again
        if got.seconds_per_token is None:
            return None, got
        if windows[-1].gone:
            self.faults.append(f"process {self.owner.process} of the model ended while it answered")
            self.owner = owners.find(self.server, self.owner.file)
            return None, got
        return Window(got.answered - 1, got.seconds_per_token, windows[-1], got.report.seconds_per_token), got

    def refuse(self, got: Received) -> None:
        """ServerError: no answer of this server is a measurement."""
        short = f"{got.answered} of {got.asked} tokens came" + " at once" * got.burst
        why = got.fault or (self.faults[-1] if self.faults else short)
        raise ServerError(f"{self.server.url}: {why}: no speed can be measured")
