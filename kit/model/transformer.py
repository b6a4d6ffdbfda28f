"""Transformer: a model over a weight source on the CPU. It checks arguments, runs passes and reports bad weights."""

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from operator import index
from weakref import WeakKeyDictionary

import torch

from kit.cpu.buffers import ARENA
from kit.cpu.threads import torch_alone
from kit.errors import ModelError, known
from kit.model.attention import ATTENTION
from kit.model.cpu_ops import CpuOps, RowsOps
from kit.model.forward import forward
from kit.model.hyperparameters import read_config
from kit.model.kvcache import SequenceCache, state_of
from kit.model.linear import LINEAR, linear_named
from kit.model.plan import Plan, obstacle
from kit.model.rope import Rope
from kit.model.several import NotRecorded, PlanOfSeveral
from kit.model.tokenizer import Tokenizer, tokenizer_of
from kit.model.weights import Weights
from kit.shown import Shown
from kit.system import memory_available


@dataclass
class Verified:
    """What a pass over a few tokens gave: ``logits`` (tokens, vocabulary) after each of them."""

    logits: torch.Tensor
    tokens: list[int]
    held: int  # positions before the pass
    mark: tuple | None  # of the cache then, where no position can be taken away
    model: "Transformer"
    cache: SequenceCache

    def keep(self, count: int) -> None:
        """Take back all but the first ``count`` of the tokens. A recurrent layer computes its state again for these."""
        if count == len(self.tokens):
            return
        if self.mark is None:
            self.cache.truncate(self.held + count)
            return
        self.cache.back_to(self.mark)
        plan = self.model._several.get(self.cache, {}).get(len(self.tokens))
        if plan and count:
            plan.again(count)
            self.cache.length += count
        elif count:
            self.model.logits(self.tokens[:count], -1, self.cache)


def token_ids(tokens: Iterable[int]) -> list[int]:
    """Token ids as numbers; ModelError for what is none: torch would cut 5.5 to 5."""
    try:
        return [index(token) for token in tokens]
    except TypeError:
        raise ModelError(f"tokens are ids, whole numbers, not {str(tokens)[:60]}: encode a text first") from None


class Transformer(Shown):
    """A model over a kit.model.weights.WeightSource; each linear layer, norm and attention adds a span to its trace.

    ``weights``: such a source; an open file or a path stands for its kit.Weights.
    ``attention`` and ``linear``: variants of kit.model.attention and kit.model.linear (None: the default of the weights).
    ``max_context``: limit of positions (None: the file's context length), by which LongRoPE chooses its divisors.
    ``kv_dtype``: float32, float16 or q8_0. Raises
    ModelError for a file that it cannot run, before any tensor data is read. After the first pass, single tokens run as a
    recorded program (kit.model.plan); if that is impossible, ``unplanned`` is the reason.
    """

    reads = staticmethod(read_config)
    ops = CpuOps  # what carries out a pass; a finding may put a subclass in its place

    def __init__(self, weights, attention="fused", linear=None, max_context=None, kv_dtype="float32"):
        weights = weights if hasattr(weights, "trace") else Weights(weights)
        self.weights, self.trace, self.file = weights, weights.trace, weights.file
        self.config = self.reads(self.file)
        self.max_context = self.config.context if max_context is None else max_context
        if not 1 <= self.max_context <= self.config.context:
            limit = self.config.context
            raise ModelError(f"{self.file.path}: context {max_context} is not possible: give 1 to {limit}")
        known("attention", attention, ATTENTION, ModelError)
        self.attention, self.linear, self.kv_dtype = attention, linear_named(linear or weights.linear), kv_dtype
        if self.linear.activations and not hasattr(weights, "blocks"):
            raise ModelError(
                f"{self.file.path}: linear {linear!r} needs ggml blocks, but this file is compressed: leave out linear"
            )
        self.new_cache(1)  # an unknown kv_dtype is an error here and not at the first token
        c = self.config
        self.ropes = {rope: Rope(rope, rope.layout or c.family.rope, self._divisors(rope)) for rope in c.ropes}

        # Norms and biases, read once where matrices stay in the file: seven a layer took 3% of a prompt of 128
        self.vectors = {}
        self.unplanned, self._plans = obstacle(self), WeakKeyDictionary()
        self.unplanned_several, self._several = "", WeakKeyDictionary()
        used = [self.file.tensors[name] for name in c.order_of_use(self.file.tensors) if "_exps." not in name]
        mapped = self.linear.activations and getattr(weights, "mapped", True)
        fit = mapped and sum(info.nbytes for info in used) < memory_available()
        self._unread = [info.name for info in used] if fit else []  # of the experts, a token reads few

    def _facts(self):
        c, linear = self.config, [name for name, variant in LINEAR.items() if variant is self.linear]
        several = {"experts": f"{c.experts_used} of {c.experts}"} if c.experts else {}
        heads = next(({"heads": layer.mixer.said} for layer in c.layers if layer.mixer.memory.position), {})
        return f"{type(self).__name__} of {self.file.path}", {
            "architecture": c.architecture,
            "layers": c.said,
            "hidden size": str(c.hidden_size),
            **heads,
            **several,
            "vocabulary": f"{c.vocabulary:,}",
            "context": f"{self.max_context:,}",
            "linear": linear[0] if linear else "that of the weights",
            "attention": self.attention,
            "KV cache": self.kv_dtype,
        }

    def _divisors(self, rope):
        name = rope.divisor(self.max_context)
        return self.weights[name].cpu() if name in self.file.tensors else None

    def new_cache(self, context: int | None = None) -> SequenceCache:
        """What the layers remember of an empty sequence, of up to ``context`` positions (None: ``max_context``). ModelError for
        fewer than none."""
        if context is not None and context < 0:
            raise ModelError(f"{self.file.path}: context {context} is not possible: give 1 to {self.config.context}")
        context = context or self.max_context
        states = []
        for mixer, *_ in self.config.layers:
            shared = getattr(mixer, "source", None)
            states.append(state_of(mixer, context, self.kv_dtype) if shared is None else states[shared])
        return SequenceCache(states, context, self.kv_dtype)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer, made at first use; TokenizerError when it has none, or one of an unknown kind."""
        return tokenizer_of(self.file)

    def logits(self, tokens: Sequence[int], first: int = 0, cache: SequenceCache | None = None) -> torch.Tensor:
        """Logits after each of ``tokens`` from index ``first`` on (negative: from the end), (tokens, vocabulary) float32.

        ``cache`` holds the positions before and grows; None: there are none. Raises ModelError as ``step`` does.
        """
        cache = self.new_cache(min(len(tokens), self.max_context)) if cache is None else cache
        with self.trace.turn:
            self._check_tokens(tokens, cache.length, cache.context)
            return self._forward(tokens, cache, slice(first, None))

    def step(self, tokens: Sequence[int], cache: SequenceCache) -> torch.Tensor:
        """Logits after the last of ``tokens``, (vocabulary,) float32; ``cache`` holds the positions before and grows.

        A prompt is passed at once (prefill), then one token a step (decode). Raises ModelError when there are no tokens,
        one is outside the vocabulary, or they do not fit the context; the cache is unchanged then.
        """
        return self.logits(tokens, -1, cache)[0]

    def verify(self, tokens: Sequence[int], cache: SequenceCache) -> Verified:
        """One pass over a few ``tokens`` after the positions in ``cache``, which grows by all of them; some can be taken back.

        It is recorded as that of one token is, where that is possible. Raises ModelError as ``step`` does.
        """
        with self.trace.turn:
            self._check_tokens(tokens, cache.length, cache.context)
            held, mark = cache.length, None if cache.can_be_cut else cache.mark()
            logits = self._forward(tokens, cache, slice(None), several=True)
            return Verified(logits, list(tokens), held, mark, self, cache)

    def batch(self, rows: Sequence[Sequence[int]], caches: Sequence[SequenceCache], wanted: torch.Tensor) -> torch.Tensor:
        """One pass over several rows of tokens, each after the positions that its own cache holds and grows by.

        ``wanted``: indices into the tokens of all rows, one row after another, (n,). Logits (n, vocabulary) float32. Raises
        ModelError as ``step`` does.
        """
        with self.trace.turn:
            return self._batch(rows, caches, wanted)

    def _batch(self, rows, caches, wanted):
        start = time.perf_counter_ns()
        for tokens, cache in zip(rows, caches, strict=True):
            self._check_tokens(tokens, cache.length, cache.context)
        self.trace.token = caches[0].passes
        with ARENA.results.kept(), self._alone():
            logits = forward(RowsOps(self, rows, caches), self.config, wanted)
            self._check_finite(logits)
        for tokens, cache in zip(rows, caches, strict=True):
            cache.advance(len(tokens))
        self.trace.add("token", start, time.perf_counter_ns(), nbytes=sum(cache.nbytes for cache in caches))
        return logits

    def _alone(self):
        """Torch on one thread, while a pass runs on the kit's."""
        return torch_alone() if self.linear.own_threads else nullcontext()

    def _check_tokens(self, tokens, held, context):
        if len(tokens) == 0:
            raise ModelError("the prompt is empty: give at least one token")
        vocabulary = self.config.vocabulary
        wrong = next((token for token in token_ids(tokens) if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise ModelError(f"{self.file.path}: token {wrong} is outside the vocabulary of {vocabulary}")
        if held + len(tokens) > context:
            raise ModelError(
                f"{self.file.path}: {held + len(tokens)} tokens do not fit the context of {context}; "
                f"shorten the prompt or ask for more context (the model has {self.config.context})"
            )

    def _forward(self, tokens, cache, wanted, several=False):
        """Logits (wanted tokens, vocabulary) float32; appends the tokens to the cache. ``several``: as a recorded pass, if that
        can be, of all tokens."""
        start = time.perf_counter_ns()
        self.trace.token = cache.passes
        ahead = self.file.reading_ahead(self._unread) if self._unread else nullcontext()
        with ARENA.results.kept(), self._alone(), ahead:
            plan = None
            if cache.length and len(tokens) == 1:
                plan = self._plan(cache)
            elif cache.length and several:
                plan = self._plan_of_several(cache, len(tokens))
            if plan:
                logits = self._planned(plan, tokens, cache)
            else:
                logits = forward(self.ops(self, tokens, cache), self.config, wanted)
            self._check_finite(logits)  # torch's other threads would wait for the kit's, which look for work a while
        if self._unread and not self.weights.experts:
            self.file.enlarge_pages(self.trace)  # the first pass has mapped the pages
        self._unread = []
        cache.advance(len(tokens))
        self.trace.add("token", start, time.perf_counter_ns(), nbytes=cache.nbytes, outcome="planned" if plan else "")
        return logits

    def _planned(self, plan, tokens, cache):
        if plan.given is not None:
            plan.given.copy_(cache.before(len(tokens)))
        logits = plan.step(tokens[0], cache.length) if len(tokens) == 1 else plan.steps(tokens, cache.length)
        if cache.kept is not None and plan.kept is not None:
            cache.keep(plan.kept, len(tokens))
        return logits

    def _plan(self, cache):
        """The recorded pass over one token for this cache, made at first use; None if it cannot be recorded."""
        if self.unplanned:
            return None
        if cache not in self._plans:
            self._plans[cache] = Plan(self, cache)
        return self._plans[cache]

    def _plan_of_several(self, cache, count) -> PlanOfSeveral | None:
        """``_plan`` for so many tokens."""
        plans = self._several.setdefault(cache, {})
        if count not in plans:
            try:
                plans[count] = PlanOfSeveral(self, cache, count)
            except NotRecorded as reason:
                plans[count], self.unplanned_several = None, str(reason)
        return plans[count]

    def _check_finite(self, logits):
        """ModelError for NaN or infinite logits; it names the first tensor in order of use that has such weights."""
        if logits.sum().isfinite():  # NaN and infinity propagate; a mask of the vocabulary takes longer
            return
        for name in self.config.tensors() | self.config.optional_tensors():
            bad = (~self.weights[name].isfinite()).nonzero() if name in self.file.tensors else ()
            if len(bad):
                where = tuple(bad[0].tolist())
                raise ModelError(
                    f"{self.file.path}: the tensor {name!r} holds NaN or infinite weights, the first at {where}; "
                    "fetch or convert the file again"
                )
        raise ModelError(
            f"{self.file.path}: the logits are NaN or infinite though every weight is finite: a number overflows; "
            "use float32 for the weights and the KV cache"
        )
