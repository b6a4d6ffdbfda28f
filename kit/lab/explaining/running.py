"""A running server measured by its client: decode, prompts, a second turn, depth; watched meanwhile, in a budget of seconds."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import psutil

from kit.errors import KitError, ServerError
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.engines import watch as watching
from kit.lab.engines.meter import Received
from kit.lab.engines.watch import Seen
from kit.lab.explaining import causes, remedies, second_turn
from kit.lab.explaining.asked import AskedServer
from kit.lab.explaining.causes import DECODE, DEEP, FIRST, PROMPT, TURN, Cause, Window, split
from kit.lab.explaining.remedies import ServerFacts
from kit.lab.measuring import slices, state
from kit.lab.predicting.remembered import by_kind
from kit.model.hyperparameters import read_config
from kit.model.layers.kind import KV_TYPES, Memory
from kit.units import format_seconds

NEAR, DEPTH = 48, 4096  # positions before the tokens that are timed
ROUNDS, _LEAST, _MOST, _WINDOW = 3, 8, 32, 1.5  # windows; tokens of one, and the seconds that it should take
LENGTHS = (16, 64, 512)  # of prompts
_FIRST = 1 / 4  # of the budget: after it no further window of the first answer begins
_LARGE = 0.75  # of a map by pages of 2 MiB: the rest costs less than can be measured
_KV_FLAGS = (("-ctk", "--cache-type-k", "--kv-cache-type"), ("-ctv", "--cache-type-v", "--kv-cache-type"))
_CONTEXT = ("-c", "--ctx-size", "--num-ctx")
_KV_NAMES = {"f32": "float32", "f16": "float16", "": "float16"}  # llama.cpp's -> kit's, where they differ
_KV_BYTES = KV_TYPES | {"bf16": 2.0, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32}


class Running(AskedServer):
    """One server, as in kit.lab.explaining.asked.

    ``budget``: seconds for what takes longer than the first answer. ``gbps``: a function that measures how fast memory is read,
    10^9 bytes per second.
    """

    def __init__(self, url: str, model: str = "", file=None, budget: float = 45.0, gbps: Callable[[], float] | None = None):
        self.budget, self._probe = budget, gbps
        super().__init__(url, model, file)

    @cached_property
    def config(self):
        """The model's shapes; None for a file that kit does not know."""
        try:
            return read_config(self.file) if self.file else None
        except KitError:
            return None

    @cached_property
    def memories(self) -> list[Memory]:
        """What each layer keeps; [] for a file that kit does not know."""
        return [each for kind in by_kind(self.config).values() for each in kind] if self.config else []

    @property
    def position_bytes(self) -> int:
        """Bytes that a further position takes in the caches."""
        return sum(memory.held(1, self.kv_width) - memory.held(0) for memory in self.memories)

    @cached_property
    def _kv(self) -> list[str]:
        """The types of keys and of values by the command, float16 where it does not say."""
        return [_KV_NAMES.get(text, text) for text in map(self.owner.flag, _KV_FLAGS)]

    @property
    def kv(self) -> str:
        """The same in words."""
        return " and ".join(dict.fromkeys(self._kv))

    @property
    def kv_width(self) -> float:
        """Bytes of an element of keys and values, in their mean; those of float16 for a type that kit does not know."""
        return float(np.mean([_KV_BYTES.get(kind, _KV_BYTES["float16"]) for kind in self._kv]))

    @cached_property
    def context(self) -> int:
        """Positions that the server has room for; 0: not known."""
        return self.server.context or (self.config.context if self.config else 0)

    @property
    def room(self) -> int:
        """Positions of all its slots together, as -c has them: a slot may have a part."""
        said = self.owner.flag(_CONTEXT)
        return int(said) if said.isdigit() and int(said) else self.context

    @cached_property
    def gbps(self) -> float:
        """How fast memory is read now."""
        return self._probe() if self._probe else slices.read_gbps()

    def bytes_at(self, positions: int) -> float:
        """Bytes that a token reads after so many positions: its weights, its keys, values and states."""
        if not self.file:
            return 0.0
        width = self.kv_width
        kept = sum(memory.read(positions, width) + memory.written(width) for memory in self.memories)
        return bytes_used(uses_of(self.file)) + kept

    def least(self, positions: int) -> float:
        """The least seconds of a token after so many positions; 0 where the server's memory or its passes are others."""
        return 0.0 if self.owner.gpu or self.owner.drafts else self.bytes_at(positions) / (self.gbps * 1e9)

    @cached_property
    def holding(self) -> watching.Holding:
        """What the server holds, after the first windows: nothing is read to find it out."""
        return watching.holding(self.owner, psutil.virtual_memory().total)

    @cached_property
    def facts(self) -> ServerFacts:
        """What evidence and remedies are made of."""
        name = self.server.name
        size = self.owner.file.stat().st_size if self.owner.file else 0
        recurrent = any(memory.held(0) for memory in self.memories)
        return ServerFacts(
            name, self.owner, self.holding, self.bytes_at(NEAR), size, self.gbps, self.room, self.position_bytes, recurrent
        )

    @cached_property
    def first(self) -> Received:
        """The first request: loading is in it, if the model was not loaded."""
        prompt = self.prompt(LENGTHS[0])
        got = self.ask(prompt, 4, positions=LENGTHS[0])
        if got.fault and not got.answered and got.status not in (200, 0):
            from kit.lab.explaining import refused

            if got.status in (404, 405):
                path = self.server.protocol.path
                raise ServerError(f"{self.server.url}: has no {path} ({got.error}): kit measures no server that only chats")
            raise ServerError(refused.told(self, got.error) if refused.is_refusal(got.error) else
                              f"{self.server.url}: {got.error or got.fault}")  # fmt: skip
        if got.fault:
            got = self.ask(prompt, 4, positions=LENGTHS[0])
        if got.fault:
            self.refuse(got)
        return got

    @cached_property
    def window_tokens(self) -> int:
        """Tokens of a window that takes a second or two."""
        first = self.first
        guess = first.seconds_per_token or first.seconds / max(1, first.answered)
        return int(np.clip(_WINDOW / max(guess, 1e-4), _LEAST, _MOST))

    @cached_property
    def windows(self) -> list[Window]:
        """Several windows of decode near 64 positions."""
        tokens = self.window_tokens
        prompt, taken, self.decodes = self.prompt(NEAR), [], []
        self.ask(prompt, 1, positions=NEAR)  # the prompt is computed once
        for _ in range(2 * ROUNDS):
            window, got = self.window(prompt, tokens, positions=NEAR)
            if window:
                taken.append(window)
                self.decodes.append(got)
            if len(taken) == ROUNDS or (taken and self.spent > _FIRST * self.budget):
                break
        if not taken:
            self.refuse(got)
        _ = self.gbps, self.holding
        return taken

    def again(self, prompt: list[int]) -> Window:
        """One more window of decode after a prompt; ServerError where no answer comes."""
        for _ in range(ROUNDS):
            window, got = self.window(prompt, self.window_tokens)
            if window:
                return window
        self.refuse(got)

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """The causes of each window of decode."""
        least, extra = self.least(NEAR), self.pages
        return [split(window, least, extra) for window in self.windows]

    @cached_property
    def pages(self) -> float:
        """Seconds of a token that small pages of the map cost. It is measured only where the whole file is in memory, because
        to read it would bring it there, and not while other processes disturb it."""
        if not self.file or not self.owner.mapped or self.holding.resident < 0.999 or (self.holding.large or 0.0) > _LARGE:
            return 0.0
        from kit.lab.measuring import pages

        speed, _, disturbed = state.watched(lambda: pages.speed(self.file))
        if disturbed or speed is None or speed.ratio >= pages.SMALL:
            return 0.0
        return (1 / speed.ratio - 1) * bytes_used(uses_of(self.file)) / (self.gbps * 1e9)

    @cached_property
    def decode(self) -> list[Cause]:
        """Causes of a token near 64 positions."""
        return remedies.explained(self.windows, self.rows, self.facts, DECODE, {})

    @cached_property
    def prompts(self) -> list[tuple[int, float, float | None]]:
        """(positions, seconds to the first token, the server's own seconds) by length, without what the server remembers."""
        points: list[tuple[int, float, float | None]] = []
        for length in LENGTHS:
            if self.context and length + _LEAST > self.context:
                break
            if length == LENGTHS[-1] and self._slope(points)[0] * length > max(0.0, self.budget - self.spent) / 3:
                break
            for _ in range(2 if length == LENGTHS[0] else 1):
                got = self.ask(self.prompt(length), 1, cached=False, positions=length)
                if not got.fault and got.first:
                    said = got.report.computed
                    points.append((said if said and said > 1 else length, got.first, got.report.prompt_seconds))
        return points

    @staticmethod
    def _slope(points) -> tuple[float, float]:
        lengths, seconds = (np.array([float(point[column]) for point in points]) for column in (0, 1))
        slope, intercept = np.polyfit(lengths, seconds, 1) if len(set(lengths)) > 1 else (seconds[0] / lengths[0], 0.0)
        return max(float(slope), 1e-9), max(0.0, float(intercept))

    @cached_property
    def per_position(self) -> float:
        """Seconds of a position of a prompt."""
        return self._slope(self.prompts)[0] if self.prompts else 0.0

    @cached_property
    def overhead(self) -> float:
        """Seconds to the first token that no position takes: the server's own account where it gives one, else the line's."""
        told = [seconds - said for _, seconds, said in self.prompts if said is not None]
        if told:
            return max(0.0, float(np.median(told)))
        return self._slope(self.prompts)[1] if len({length for length, *_ in self.prompts}) > 1 else 0.0

    @cached_property
    def load(self) -> list[Cause]:
        """Causes of the first request, if the model was loaded for it."""
        first, said = self.first.first or 0.0, self.first.report  # before any other request
        usual = min((seconds for length, seconds, _ in self.prompts if length <= LENGTHS[0] + 1), default=first)
        if said.load_seconds is not None:
            longer = said.load_seconds
        elif "is_sleeping" in self.server.about:  # llama-server: it had unloaded its model, or it had not
            longer = first - (said.prompt_seconds or usual) - self.overhead if self.server.about["is_sleeping"] else 0.0
        else:
            longer = first - 3 * usual
        if longer < causes.SMALL * first or longer < 0.05:
            return []
        row = {"load": min(longer, first), "overhead": min(self.overhead, max(0.0, first - longer))}
        return self._request(FIRST, first, row, {"load": f"the first request waited {format_seconds(longer)} for the model"})

    @cached_property
    def turns(self) -> dict | None:
        """A second turn that only appends: positions computed again, seconds with the prefix cache and without."""
        return second_turn.measured(self)

    @cached_property
    def second_turn(self) -> list[Cause]:
        """Causes of the time to the first token of a second turn."""
        if not self.turns:
            return []
        total, again = self.turns["seconds"], self.turns["again"]
        row = {"reprocess": min(total, again * self.per_position), "overhead": self.overhead}
        told = f"{again} of {self.turns['positions'] - self.turns['new']} positions of the first turn were computed again"
        return self._request(TURN, total, row, {"reprocess": told})

    def _request(self, of: str, total: float, row: dict[str, float], evidence: dict[str, str]) -> list[Cause]:
        """Causes of a request: the rest of its time is the prompt's."""
        used = sum(row.values())
        row = {name: seconds * min(1.0, total / used) for name, seconds in row.items()} if used else row
        row |= {PROMPT: max(0.0, total - sum(row.values()))}
        evidence = {PROMPT: "the positions that the request needs"} | evidence
        window = Window(1, total, Seen(total, known=False))
        return [each for each in remedies.explained([window], [row], self.facts, of, evidence) if each.name != "unexplained"]

    @cached_property
    def deep(self) -> dict | None:
        """Decode at depth 4,096, or as deep as the context and the budget allow: positions, windows, causes, tokens."""
        room = (self.context or DEPTH) - _MOST - 8
        can = (self.budget - self.spent) / max(self.per_position, 1e-9) * 0.7
        depth = next((each for each in (DEPTH, 2048, 1024, 512) if each <= min(room, can)), 0)
        if not depth or not self.prompts:
            return None
        prompt, taken, rows = self.prompt(depth), [], []
        if self.ask(prompt, 1, positions=depth).fault:
            return None
        for _ in range(2):
            window, _got = self.window(prompt, self.windows[0].tokens + 1, positions=depth)
            if window:
                taken.append(window)
                rows.append(split(window, self.least(NEAR), self.pages))
        if not taken:
            return None
        rows = causes.with_depth(rows, self.rows)
        reads = (self.bytes_at(depth) - self.bytes_at(NEAR)) / (self.gbps * 1e9)
        told = f"after {depth:,} positions, whose keys and values need at least {format_seconds(reads)}"
        facts = replace(self.facts, kept=reads / max(1e-9, float(np.mean([row["depth"] for row in rows]))))
        found = remedies.explained(taken, rows, facts, DEEP, {"depth": told})
        return {"positions": depth, "windows": taken, "causes": found}
