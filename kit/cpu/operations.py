"""The operations of a forward pass by name: each is described once, as a step, and either run at once or recorded."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from kit.cpu import (
    altup,
    attention,
    bank,
    choice,
    compress,
    convolution,
    dequantize,
    elementwise,
    history,
    kda,
    mamba,
    norm,
    recurrent,
    routing,
    rows,
    streams,
    threads,
)
from kit.cpu.shapes import Choice
from kit.cpu.tasks import ARGUMENTS, Step, address_of

_TABLE = 512  # positions in the table of cosines and sines


class Operation(NamedTuple):
    """``step`` describes it for operands, and ``takes`` says whether its kernel supports them (None: always). ``scans``: it
    carries on a state that a recurrent layer has; ``strided``: its operands may be views."""

    step: Callable[..., Step]
    takes: Callable[..., bool] | None = None
    scans: bool = False
    strided: bool = False


OPERATIONS = {
    **{name: Operation(partial(elementwise.step, name), elementwise.takes) for name in elementwise.EACH},
    **{name: Operation(partial(elementwise.rope_step, name), elementwise.rotates) for name in elementwise.ROPES},
    "gate": Operation(elementwise.gate_step),
    "norm": Operation(norm.step),
    "convolution": Operation(convolution.step, scans=True, strided=True),
    "delta net": Operation(recurrent.delta_net_step, scans=True, strided=True),
    "kda": Operation(kda.step, scans=True),
    "mix streams": Operation(streams.mix_step),
    "gate streams": Operation(streams.gate_step),
    "spread": Operation(streams.spread_step),
    "share streams": Operation(streams.shares_step),
    "weigh streams": Operation(streams.weigh_step),
    "mix balanced": Operation(streams.balanced_step),
    "add unmixed": Operation(streams.unmixed_step),
    **{name: Operation(getattr(altup, f"{name}_step")) for name in ("predict", "correct", "first", "others", "sized", "cut")},
    "mix bank": Operation(bank.mix_step),
    "bank": Operation(bank.put_step),
    "situ": Operation(bank.situ_step, strided=True),
    "gate heads": Operation(elementwise.gate_heads_step),
    "mamba": Operation(mamba.step, scans=True),
    "mamba2": Operation(recurrent.mamba2_step, scans=True, strided=True),
    "dequantize": Operation(dequantize.step, strided=True),
    "append": Operation(history.append_step, strided=True),
    "route": Operation(routing.step, strided=True),
    "take": Operation(rows.take_step),
    "mix": Operation(rows.mix_step),
}


def run(name: str, *operands, alone: bool = False, **constants) -> bool:
    """Do an operation now, on all threads or ``alone`` on the calling one. False, and nothing is done, if its kernel does not
    support the operands."""
    operation = OPERATIONS[name]
    if operation.takes is not None and not operation.takes(*operands):
        return False
    task, arguments, tasks = operation.step(*operands, **constants)
    threads.run_all([(task, arguments, -tasks if alone else tasks)])
    return True


class Recording(threads.Program):
    """A program of operations on a token, or some ``tokens``, of a sequence of up to ``context`` positions.

    It holds its operands. ``move_to`` sets what depends on the position of the first token.
    """

    def __init__(self, context: int, tokens: int = 1):
        super().__init__()
        self._tokens, self.scans = tokens, []  # steps that carry on what a recurrent layer has
        self._context, self._part_bytes, self._parts = context, 0, None
        self._appends: dict[int, list[int]] = {}  # positions of a row -> steps
        self._pools: dict[int, list[int]] = {}  # the same, of means of so many rows
        self._rings: dict[Any, list[int]] = {}  # ring -> steps
        self._compressed: dict[tuple[int, int], list[int]] = {}  # positions of a row, and those that are kept -> steps
        # Of each RoPE and number of positions that share a turn: the table of cosines and sines, and the steps with their token
        self._tables, self._turns = {}, {}
        # Window, choice or ring, and number of the token -> (step of the chunks, tasks of one, last step)
        self._attentions: dict[tuple[Any, int], list[tuple[int, int, int]]] = {}
        self._choices: dict[Choice, _OfChoice] = {}

    def do(self, name: str, *operands, alone: bool = False, **constants) -> int:
        """Append the step of an operation. ``alone``: on the calling thread, for those that are small. Returns its index."""
        operation = OPERATIONS[name]
        task, arguments, tasks = operation.step(*operands, **constants)
        step = self.add(task, arguments, -tasks if alone else tasks)
        if operation.scans:
            self.scans.append(step)
        return step

    @staticmethod
    def takes_views(name: str) -> bool:
        """Whether the operands of an operation may be views of several tokens."""
        return OPERATIONS[name].strided

    def append(self, rows: torch.Tensor, history: history.History, each: int = 1) -> None:
        """Write keys or values (tokens, kv_heads, head_dim) to the positions, or those of a token to its block of ``each``."""
        self._appends.setdefault(each, []).append(self.do("append", rows, history, alone=True))

    def pool(self, row: torch.Tensor, held: torch.Tensor, mean: torch.Tensor) -> None:
        """Put the token's row (1, n) at its place in its block, held (each, n), and the mean of these into ``mean`` (1, n)."""
        self._pools.setdefault(len(held), []).append(self.add(*streams.pool_step(row, held, mean)))

    def write_ring(self, rows: torch.Tensor, history: history.History, ring) -> None:
        """Write keys (1, heads, size) to their ``ring.slot`` (kit.model.layers.kind.Ring)."""
        self._rings.setdefault(ring, []).append(self.do("append", rows, history, alone=True))

    def compress(self, row, score, places, held, out) -> None:
        """A token's part of a row of several positions, as kit.cpu.compress.step."""
        kept = len(places), len(held[0])
        self._compressed.setdefault(kept, []).append(self.add(*compress.step(row, score, places, held, out)))

    def rotate(self, layout: str, x: torch.Tensor, rope, each: int = 1) -> None:
        """RoPE of x (tokens, heads, head_dim) in place by ``rope``, a kit.model.rope.Rope, at the tokens' positions or at the
        first one of the block of ``each`` that a token is in. Of several tokens, the heads of one are contiguous."""
        if (rope, each) not in self._tables:
            self._tables[rope, each], self._turns[rope, each] = (0, rope.table(0, _TABLE + self._tokens - 1)), []
        parts, table = [(0, x)] if x.is_contiguous() else enumerate(x.split(1)), self._tables[rope, each][1]
        self._turns[rope, each] += [(self.do(layout, part, table, alone=True), token) for token, part in parts]

    def score(self, q: torch.Tensor, keys: history.History, by: Choice, weights=None) -> None:
        """Scores for ``choose``, as kit.cpu.choice.choose; q: (1, heads, size), weights: (1, heads) or None."""
        own = self._choices.get(by)
        if own is None:
            scores = torch.empty(1, choice.scores_row(self._context, by), dtype=torch.float32, device="cpu")
            chosen = torch.empty(1, by.room, dtype=torch.int32, device="cpu")
            own = self._choices[by] = _OfChoice(scores, chosen, {}, [], [], [], [], [])
        own.scored.append(self.add(*choice.scores_step(q, keys, own.scores, by, 1, weights)))

    def choose(self, by: Choice) -> None:
        """Choose positions for ``gather`` by the scores of the step before."""
        own = self._choices[by]
        own.best.append(self.add(*choice.best_step(own.scores, own.chosen, 1, by, 1)))

    def choose_rows(self, by: Choice) -> None:
        """The same of rows of several positions, for ``gather_rows``."""
        own, each = self._choices[by], by._replace(each=1)
        own.best_rows.append(self.add(*choice.best_step(own.scores, own.chosen, 1, each, 1)))

    def gather_rows(self, ring: history.History, rows: history.History, dim: int, by: Choice, window: int) -> history.History:
        """A ring of so many positions and the chosen rows after it, for ``attend`` with a ring."""
        own, key = self._choices[by], (ring.kind, window, dim)
        if key not in own.rooms:
            own.rooms[key] = choice.room_for(ring, 1, window + by.top, dim)
        room, all_ = own.rooms[key], torch.arange(window, dtype=torch.int32, device="cpu")
        whole, rest = (history.History(ring.kind, part, *choice.strides(room)) for part in (room, room[:, window:]))
        self.add(*choice.gather_step(ring, whole, 1, all_, window))
        own.row_gathers.append(self.add(*choice.gather_step(rows, rest, 1, own.chosen, 1)))
        return whole

    def gather(self, histories, kv_heads: int, dim: int, by: Choice) -> list[history.History]:
        """The chosen positions of keys and values side by side, for ``attend`` with the choice in place of a window."""
        own, sides = self._choices[by], []
        for place, side in enumerate(histories[: 1 if histories[0].memory is histories[1].memory else 2]):
            key = side.kind, kv_heads, dim, place
            if key not in own.rooms:
                own.rooms[key] = choice.room_for(side, kv_heads, by.room, dim)
            room = own.rooms[key]
            sides.append(history.History(side.kind, room, *choice.strides(room)))
            own.gathers.append((self.add(*choice.gather_step(side, sides[-1], kv_heads, own.chosen, 1)), kv_heads))
        return [sides[0], sides[-1]]

    def attend(self, q, keys, values, kv_heads: int, out, scale: float, window: Any, cap: float, sinks, token: int = 0) -> None:
        """Attention of one ``token``, as kit.cpu.attention.attend; q and out are (1, heads, head_dim)."""
        none = torch.empty(0, dtype=torch.uint8, device="cpu")  # until ``move_to`` knows how much all need
        seen = attention.span(0, 1)  # a chunk
        chunk, (join, last, heads) = attention.attend_steps(q, keys, values, kv_heads, out, none, seen, scale, cap, sinks)
        self._attentions.setdefault((window, token), []).append((self.add(*chunk), chunk[2], self.add(join, last, -heads)))
        self._part_bytes = max(self._part_bytes, attention.parts_bytes(*q.shape[1:], 2 * self._context))

    def chosen(self, step: int, sets: Sequence[tuple[int, str, int, np.ndarray | torch.Tensor | None, int]]) -> None:
        """What a step of ``route`` sets by its choice, when no step is added any more: (step, argument, place among the chosen,
        memory and bytes of expert 0; or None and 0 bytes for the share)."""
        words = [(self.address(at, name), place, address_of(memory), size) for at, name, place, memory, size in sets]
        self.set([step], words=np.array(words, np.int64), count=len(words))
        self._held[step, "chosen"] = sets

    def place(self, part: torch.Tensor, target: torch.Tensor) -> None:
        """Copy part (heads, n), whose rows are contiguous, to the first n numbers of the rows of target (heads, any)."""
        self.do("append", part[:, None], history.History.of(target[None]))

    def part(self, steps: Sequence[int]) -> threads.Program:
        """A program of some of the steps, with the arguments that they have now, in memory that this one holds."""
        some = threads.Program()
        for step in steps:
            task = self._tasks[step]
            arguments = self.steps[step, ARGUMENTS : ARGUMENTS + len(task.parameters)].tolist()
            some.add(task, arguments, int(self.steps[step, self.TASKS]))
        return some

    def move_to(self, position: int) -> None:
        """The next run is of the token, or the first of the tokens, at ``position``, from 0."""
        if self._parts is None:
            self._parts = torch.empty(self._part_bytes, dtype=torch.uint8, device="cpu")
            for steps_of in self._attentions.values():
                for chunks, _, join in steps_of:
                    self.set([chunks], parts=self._parts)
                    self.set([join], parts=self._parts)
        for (rope, each), steps in self._turns.items():
            at, (first, table) = position // each * each, self._tables[rope, each]
            if not first <= at < first + _TABLE:
                first = at // _TABLE * _TABLE
                self._tables[rope, each] = first, (table := rope.table(first, _TABLE + self._tokens - 1))
            for token in {token for _, token in steps}:
                self.set([step for step, own in steps if own == token], table=table[at - first + token])
        for each, steps in self._appends.items():
            self.set(steps, position=position // each)
        for each, steps in self._pools.items():
            self.set(steps, slot=position % each)
        for ring, steps in self._rings.items():
            self.set(steps, position=ring.slot(position))
        for (each, slots), steps in self._compressed.items():
            self.set(steps, slot=position % slots, began=int(position >= each))
        for by, own in self._choices.items():
            own.move_to(self, by, position)
        for (window, token), steps_of in self._attentions.items():
            chunks, tasks, joins = np.transpose(steps_of)
            chosen, positions = isinstance(window, Choice), position + token + 1
            if hasattr(window, "span"):
                first, stop = window.span(positions)
                seen = attention.span(stop - first, stop)
            else:
                seen = attention.span(0, window.count(positions)) if chosen else attention.span(window, positions)
            self.set(chunks, **seen)
            self.steps[chunks, self.TASKS] = tasks * seen["chunks"]
            self.set(joins, chunks=seen["chunks"])


class _OfChoice(NamedTuple):
    """What a recording has for one kind of choice: memory, and the steps that depend on the position."""

    scores: torch.Tensor
    chosen: torch.Tensor
    rooms: dict[tuple, torch.Tensor]  # of what is gathered, by type, heads, their size, and side
    scored: list[int]
    best: list[int]
    gathers: list[tuple[int, int]]  # (step, heads)
    best_rows: list[int]  # the same of rows of several positions
    row_gathers: list[int]

    def move_to(self, program: Recording, by: Choice, position: int) -> None:
        """The next run is of the token at ``position``. What takes all needs no scores."""
        units, count = by.units(position + 1), by.count(position + 1)
        chunks = 1 if by.takes_all(position + 1) else choice.scores_row(position + 1, by) // attention.CHUNK
        program.set(self.scored, positions=position + 1 if units > by.top else 0, chunks=chunks)
        program.steps[self.scored, program.TASKS] = chunks
        if self.best:
            program.set(self.best, positions=position + 1)
        if self.best_rows:
            rows = min(units, by.top)
            pieces = choice.pieces_of(rows)
            program.set(self.best_rows, positions=units)
            program.set(self.row_gathers, count=rows, pieces=pieces)
            program.steps[self.row_gathers, program.TASKS] = pieces
        if self.gathers:
            steps, heads = np.transpose(self.gathers)
            pieces = choice.pieces_of(count)
            program.set(steps, count=count, pieces=pieces)
            program.steps[steps, program.TASKS] = heads * pieces
