"""Drafts: tokens that something cheap proposes and the model verifies, several in one pass (Leviathan et al. 2023).

Greedy answers are those without a draft. Drawn ones have the same distribution: a drafted token x with chance q(x) in the draft
is taken with the chance min(1, p(x) / q(x)), and in its place comes one drawn from what p has more than q.
"""

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kit.errors import ModelError
from kit.gguf.uses import bytes_used, uses_of
from kit.model.transformer import Transformer
from kit.model.weights import Weights
from kit.units import format_bytes, format_rate, format_seconds

MOST = 8  # tokens of a draft
_SIZES = (1, 2, 4, 8)  # and the most that is asked for: for each of them a pass is recorded
_SAMPLE, _PLAIN, _AGAIN = 24, 3, 24  # tokens after which a draft is judged; passes without it that are timed, and how often


class Drafter(ABC):
    """Proposes how a sequence goes on. ``name`` is that of the option; ``nbytes``: of weights that it reads for a token."""

    name = ""
    nbytes = 0

    @abstractmethod
    def propose(self, tokens: Sequence[int], count: int, sampler) -> tuple[list[int], list[torch.Tensor | None]]:
        """Up to ``count`` tokens after all ``tokens`` of a sequence, and of each the chances (vocabulary,) by which it was
        drawn, None for one that was certain."""


class Ngrams(Drafter):
    """Text that repeats: what followed the last tokens when they last came, in the prompt or in the answer."""

    name, _LONGEST, _SHORTEST = "ngram", 4, 2

    def __init__(self):
        self._seen: dict[tuple[int, ...], int] = {}  # the last tokens -> what came after them, the last time
        self._known: list[int] = []

    def propose(self, tokens, count, sampler):
        tokens = list(tokens)
        if self._known != tokens[: len(self._known)]:
            self._seen, self._known = {}, []
        for end in range(len(self._known), len(tokens)):  # those before ``end`` are followed by the token there
            for n in range(self._SHORTEST, self._LONGEST + 1):
                if end >= n:
                    self._seen[tuple(tokens[end - n : end])] = end
        self._known = tokens
        for n in range(min(self._LONGEST, len(tokens)), self._SHORTEST - 1, -1):
            start = self._seen.get(tuple(tokens[len(tokens) - n :]))
            if start is not None:
                found = tokens[start : start + count]
                while len(found) < count:  # the end of a text that repeats goes on as it began
                    found += found[: count - len(found)]
                return found, [None] * count
        return [], []


class Smaller(Drafter):
    """Another model with the same vocabulary, which decodes by itself. ModelError where it is not one for ``model``."""

    def __init__(self, model, draft):
        file = draft if hasattr(draft, "tensors") else Weights(draft).file
        check_pair(model.file, file)
        self.name = Path(str(file.path)).name
        self._model = Transformer(Weights(file), linear="fused-int8", max_context=min(model.max_context, _context_of(file)))
        self._cache, self._held, self._mark = self._model.new_cache(), [], None
        self.nbytes = round(bytes_used(uses_of(file)))

    def propose(self, tokens, count, sampler):
        tokens, cache = list(tokens), self._cache
        if len(tokens) + count > cache.context:
            return [], []
        same = next((n for n, (a, b) in enumerate(zip(self._held, tokens, strict=False)) if a != b), None)
        same = min(len(self._held), len(tokens)) if same is None else same
        same = min(same, len(tokens) - 1)  # the last is always read, for the logits after it
        if same < cache.length:
            if cache.can_be_cut:
                cache.truncate(same)
            elif self._mark and self._mark[0] <= same:
                cache.back_to(self._mark)
            else:
                cache.truncate(0)
        rest = tokens[cache.length :]
        few = 1 < len(rest) <= MOST + 1 and cache.length  # by a recorded pass
        logits = self._model.verify(rest, cache).logits[-1] if few else self._model.step(rest, cache)
        self._mark = None if cache.can_be_cut else cache.mark()
        drafted, chances = [], []
        while True:
            chance = None if sampler.temperature == 0 else sampler.chances(logits)
            token = int(logits.argmax()) if chance is None else sampler.draw(chance)
            drafted.append(token)
            chances.append(chance)
            if len(drafted) == count:
                self._held = [*tokens, *drafted[:-1]]
                return drafted, chances
            logits = self._model.step([token], cache)


def check_pair(target, draft) -> None:
    """ModelError unless the file ``draft`` can draft for the file ``target``: a smaller model whose tokens are the same."""
    if any("nextn." in name for name in draft.tensors) and "blk.0.attn_norm.weight" not in draft.tensors:
        raise ModelError(f"{draft.path}: an MTP head without its model, which kit does not run")
    size, own = (sum(info.nbytes for info in file.tensors.values()) for file in (target, draft))
    if own >= size:
        raise ModelError(f"{draft.path}: a draft of {own:,} bytes for a model of {size:,} cannot pay: give a smaller one")
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre"):
        theirs, mine = (file.metadata.get(key) for file in (target, draft))
        if theirs != mine:
            raise ModelError(f"{draft.path}: another vocabulary than {target.path}: {key} is {mine!r}, there {theirs!r}")
    theirs, mine = (file.metadata.get("tokenizer.ggml.tokens") for file in (target, draft))
    if theirs is None or mine is None:
        sizes = [file.tensors["token_embd.weight"].shape[0] for file in (target, draft)]
        if sizes[0] != sizes[1]:
            raise ModelError(f"{draft.path}: another vocabulary than {target.path}: {sizes[1]} tokens, there {sizes[0]}")
        return
    theirs, mine = list(theirs), list(mine)
    if len(theirs) != len(mine):
        raise ModelError(f"{draft.path}: another vocabulary than {target.path}: {len(mine)} tokens, there {len(theirs)}")
    if theirs != mine:
        n = next(n for n, two in enumerate(zip(theirs, mine, strict=True)) if two[0] != two[1])
        raise ModelError(f"{draft.path}: another vocabulary than {target.path}: token {n} is {mine[n]!r}, there {theirs[n]!r}")


def _context_of(file) -> int:
    from kit.model.hyperparameters import read_config

    return read_config(file).context


def drafter_of(model, draft, most: int) -> Drafter:
    """The drafter that ``draft`` names: "ngram", "mtp", or a file; a Drafter is itself."""
    if not 1 <= most <= MOST:
        raise ModelError(f"a draft of {most} tokens is not possible: give 1 to {MOST}")
    if isinstance(draft, Drafter):
        return draft
    if draft == "ngram":
        return Ngrams()
    if draft == "mtp":
        heads = sorted(name for name in model.file.tensors if ".nextn." in name)
        has = f"its MTP head ({heads[0].split('.nextn')[0]}) is skipped" if heads else "it has no MTP head"
        raise ModelError(f"{model.file.path}: kit runs no MTP heads, and {has}: give ngram, or the file of a smaller model")
    return Smaller(model, draft)


@dataclass
class Drafting:
    """What drafts gave: passes over drafts, tokens that were drafted, taken, and that came of these passes in all; ``refused``:
    passes that ended with a drafted token that was not taken. ``drafting`` and ``verifying``: seconds of the ``timed`` tokens'
    passes, which drafted ``timed_drafted``. ``plain``: seconds of passes over one token, which were taken in turn; ``idle``:
    how often nothing was proposed. ``ties``: positions at which two logits of the exact way tie within its rounding, so that
    another order of sums may choose the other. ``nbytes``: of weights that the drafter reads for a token. ``stays``: it is
    never switched off."""

    name: str
    nbytes: int = 0
    stays: bool = False
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    refused: int = 0
    tokens: int = 0
    drafting: float = 0.0
    verifying: float = 0.0
    timed: int = 0  # tokens of the passes whose time counts
    timed_drafted: int = 0
    plain: list[float] = field(default_factory=list)
    idle: int = 0
    ties: int = 0
    off: int = 0  # tokens of the answer after which the draft was switched off; 0: never

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were taken."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def chance(self) -> float | None:
        """How often a drafted token was taken if all before it in its draft were: what a prediction for other drafts needs."""
        seen = self.accepted + self.refused
        return self.accepted / seen if seen else None

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds of drafting a token."""
        return self.drafting / self.timed_drafted if self.timed_drafted else None

    @property
    def speed(self) -> float | None:
        """Tokens per second with the draft."""
        spent = self.drafting + self.verifying
        return self.timed / spent if spent else None

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second without, in turn."""
        return 1 / statistics.median(self.plain) if self.plain else None

    @property
    def loses(self) -> bool:
        """Whether enough tokens say that the model alone is faster."""
        return not self.stays and self.timed >= _SAMPLE and len(self.plain) >= _PLAIN and self.speed < self.plain_speed

    def told(self) -> str:
        """One sentence for a person."""
        if not self.drafted:
            return f"draft {self.name}: it proposed nothing"
        fast, slow = self.speed, self.plain_speed
        text = f"draft {self.name}: {self.acceptance:.0%} of {self.drafted} drafted tokens accepted, "
        text += f"{self.tokens / self.passes:.2g} tokens per pass"
        if fast and slow:
            text += f"; {format_rate(fast)} tokens per second with it and {format_rate(slow)} without, in turn "
            text += f"({fast / slow:.2g} times)"
        if seconds := self.seconds_per_token:
            reads = f"reads {format_bytes(self.nbytes)} of weights" if self.nbytes else "reads no weights"
            text += f"; a drafted token takes {format_seconds(seconds)} and {reads}"
        if self.ties:
            text += f"; {self.ties} positions tie within rounding"
        return text + (f"; switched off after {self.off} tokens, because the model alone is faster" if self.off else "")


def passes(model, cache, prompt, sampler, drafter, most: int, end: Sequence[int], max_tokens: int, told: Drafting) -> Iterator:
    """(new tokens, seconds, positions) of each pass over the prompt, one token or a draft. The cache holds, when tokens are
    yielded, what it holds after a decode of them. The last tokens are those up to the first of ``end``."""
    start = time.perf_counter()
    logits = model.step(prompt, cache)
    sequence, done = [*prompt, sampler(logits)], 1
    yield sequence[-1:], time.perf_counter() - start, len(prompt)
    known = set()  # numbers of tokens whose pass is recorded; the first pass of each is not timed
    since = 0
    while True:
        room = min(most, max_tokens - done - 1, cache.context - cache.length - 1)
        wanted = max((n for n in {*_SIZES, most} if n <= room), default=0)
        plainly = told.off or (told.passes and (len(told.plain) < _PLAIN or since >= _AGAIN))
        start = time.perf_counter()
        drafted, chances = ([], []) if plainly or not wanted else drafter.propose(sequence, wanted, sampler)
        middle = time.perf_counter()
        if drafted:
            new, since = _verified(model, cache, sequence, drafted, chances, sampler, end, told), since + 1
            count = 1 + len(drafted)
            if count in known:
                told.drafting += middle - start
                told.verifying += time.perf_counter() - middle
                told.timed += len(new)
                told.timed_drafted += len(drafted)
        else:
            new, count, since = [sampler(model.step(sequence[-1:], cache))], 1, 0 if len(told.plain) >= _PLAIN else since
            told.idle += bool(wanted) and not plainly
            if count in known:
                told.plain.append(time.perf_counter() - middle)
        known.add(count)
        sequence, done = sequence + new, done + len(new)
        if not told.off and told.loses:
            told.off = done
        yield new, time.perf_counter() - start, count


def _verified(model, cache, sequence, drafted, chances, sampler, end, told) -> list[int]:
    """The tokens that one pass over a draft gives, one at least."""
    pass_ = model.verify([sequence[-1], *drafted], cache)
    new, taken = [], 0
    for logits, token, chance in zip(pass_.logits, drafted, chances, strict=False):
        own, accepted = sampler.verified(logits, token, chance)
        new.append(own)
        taken += accepted
        if not accepted or own in end:
            break
    else:
        new.append(sampler(pass_.logits[-1]))
    if sampler.temperature == 0 and model.linear.activations == "float32":
        best = pass_.logits[: len(new)].topk(2).values
        told.ties += int((best[:, 0] - best[:, 1] < 1e-5 * pass_.logits[: len(new)].std(1)).sum())
    pass_.keep(len(new))
    told.passes, told.drafted, told.accepted, told.tokens = (
        told.passes + 1, told.drafted + len(drafted), told.accepted + taken, told.tokens + len(new),
    )  # fmt: skip
    told.refused += not accepted
    return new
