"""generate: prefill the prompt, then decode and sample token by token, with the time and bytes of each forward pass."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real

import torch

from kit.errors import ModelError, NoTokenizer, whole
from kit.gguf.uses import bytes_used, uses_of
from kit.model.footprint import has_run
from kit.model.kvcache import SequenceCache
from kit.model.layers import KINDS
from kit.model.transformer import Transformer, token_ids

# Of the bytes of a span, the share that is read: those of states are read and written.
_READ = {"token": 0, "linear": 1} | {span: share for kind in KINDS for span, share in kind.spans.items()}


class Sampler:
    """Greedy at temperature 0, else random at ``temperature``: among the ``top_k`` most probable tokens (0: all) and, of
    these, the fewest with a total probability of ``top_p``. The same seed gives the same tokens.

    The order top-k, top-p, temperature is llama.cpp's. Raises ModelError for a value out of range.
    """

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0):
        top_k, seed = whole(top_k, "cannot sample: top_k", ModelError), whole(seed, "cannot sample: seed", ModelError)
        for name, value in (("temperature", temperature), ("top_p", top_p)):
            if not isinstance(value, Real):
                raise ModelError(f"cannot sample: {name} is {value!r}, expected a number")
        for sound, problem in (
            (0 <= temperature < math.inf, f"temperature is {temperature}, expected 0 (greedy) or more"),
            (top_k >= 0, f"top_k is {top_k}, expected 0 (off) or more"),
            (0 < top_p <= 1, f"top_p is {top_p}, expected more than 0 and at most 1 (off)"),
            (-(2**63) <= seed < 2**64, f"seed is {seed}, expected a number of 64 bits"),
        ):
            if not sound:
                raise ModelError(f"cannot sample: {problem}")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """A token id from logits (vocabulary,); greedy sampling takes the lowest id of equal logits."""
        if self.temperature == 0:
            return int(logits.numpy().argmax() if logits.is_cpu else logits.argmax())  # torch's takes ten times as long
        chances, ids = self._chances(logits)
        return int(ids[self.draw(chances)])

    def _chances(self, logits):
        """The chances of the tokens that can be drawn, and the ids of all, likely ones first."""
        values, ids = logits.double().sort(descending=True, stable=True)
        values = values[: self.top_k or None]
        if self.top_p < 1:
            mass = values.softmax(0).cumsum(0)
            values = values[: int((mass < self.top_p).sum()) + 1]
        return ((values - values[0]) / self.temperature).softmax(0), ids  # of the largest 0, whatever the temperature

    def chances(self, logits: torch.Tensor) -> torch.Tensor:
        """The chance of each token, (vocabulary,) float64, at a temperature above 0."""
        some, ids = self._chances(logits)
        return torch.zeros(len(logits), dtype=torch.float64, device="cpu").index_put_((ids[: len(some)],), some)

    def draw(self, chances: torch.Tensor) -> int:
        """An index, by its chance."""
        return int(torch.multinomial(chances, 1, generator=self._generator))

    def verified(self, logits: torch.Tensor, token: int, drafted: torch.Tensor | None) -> tuple[int, bool]:
        """(a token by the chances of ``logits``, whether it is the drafted one), for a ``token`` that was ``drafted`` with
        these chances, None for certain."""
        if self.temperature == 0:
            own = self(logits)
            return own, own == token
        chances = self.chances(logits)
        of_draft = 1.0 if drafted is None else float(drafted[token])
        if float(torch.rand(1, generator=self._generator, dtype=torch.float64, device="cpu")) * of_draft < float(
            chances[token]
        ):
            return token, True
        if drafted is None:
            chances[token] = 0
        else:
            chances = (chances - drafted).clamp_min(0)
        return self.draw(chances), False


@dataclass
class Generation:
    """The generated tokens and text; ``seconds`` of each forward pass, and ``nbytes`` that it read: weights, KV cache, states.

    The first pass takes the prompt, each other one decodes a token. ``stopped`` is the reason of the end: "end of text",
    "max_tokens" or "context".
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    stopped: str = "max_tokens"
    draft: object = None  # kit.model.drafts.Drafting, if there was a draft

    @property
    def ttft(self) -> float:
        """Time to first token, seconds."""
        return self.seconds[0]

    def speed(self) -> dict[str, float | int | str | None]:
        """Tokens a second and GB/s read of prefill and of decode; None if nothing was decoded."""
        decoding = sum(self.seconds[1:])
        return {
            "time_to_first_token_seconds": self.ttft,
            "prefill_tokens": len(self.prompt),
            "prefill_tokens_per_second": len(self.prompt) / self.ttft,
            "prefill_gb_per_second": self.nbytes[0] / self.ttft / 1e9,
            "decode_tokens": len(self.tokens) - 1,
            "decode_tokens_per_second": (len(self.tokens) - 1) / decoding if decoding else None,
            "decode_gb_per_second": sum(self.nbytes[1:]) / decoding / 1e9 if decoding else None,
            "stopped": self.stopped,
        }


def generate(
    model: Transformer,
    prompt: str | Sequence[int],
    max_tokens: int = 16,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    on_text: Callable[[str], None] | None = None,
    stop_at_end: bool = True,
    cache: SequenceCache | None = None,
    draft=None,
    draft_max: int = 4,
) -> Generation:
    """Continue ``prompt`` (text or token ids) by up to ``max_tokens`` tokens.

    For the sampling parameters see Sampler. ``on_text`` is called with pieces of text, whole characters
    only. ``stop_at_end=False``: continue after the model's end-of-text token. ``cache``: a KV cache with the positions
    before the prompt (None: a new one). ``draft``: "ngram", "mtp" (the file's MTP head), or the file of a smaller model with
    the same vocabulary, which drafts up to ``draft_max`` tokens a pass. Raises ModelError for a prompt that is empty or does
    not fit the context, and
    TokenizerError for a text prompt or ``on_text`` if the file has no known tokenizer; without one, the answer has no text
    and does not stop at the end of text.
    """
    if not hasattr(model, "step"):
        raise ModelError(f"kit.generate needs a model: give kit.Transformer(path), not a {type(model).__name__}")
    if (max_tokens := whole(max_tokens, "max_tokens", ModelError)) < 1:
        raise ModelError(f"max_tokens is {max_tokens}, expected at least 1")
    with model.trace.turn:  # threads that share a model take turns: its plan and its trace are of one sequence at a time
        sampler = Sampler(temperature, top_k, top_p, seed)
        return _generated(model, prompt, max_tokens, sampler, on_text, stop_at_end, cache, draft, draft_max)


def _generated(model, prompt, max_tokens, sample, on_text, stop_at_end, cache, draft, draft_max) -> Generation:
    tokenizer = _tokenizer(model, needed=isinstance(prompt, str) or on_text is not None)
    answer = Generation(tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt))
    cache = model.new_cache() if cache is None else cache
    detokenize = tokenizer.stream() if tokenizer else lambda token: ""
    before, ends, counts, text = len(model.trace), tokenizer.end_tokens if stop_at_end and tokenizer else (), [], []
    if draft is None:
        each = _passes(model, cache, answer.prompt, sample)
    else:
        each = _drafted(model, cache, answer, sample, draft, draft_max, ends, max_tokens)
    for tokens, seconds, count in each:
        answer.seconds.append(seconds)
        counts.append(count)
        for token in tokens:
            answer.tokens.append(token)
            piece = detokenize(token)
            text.append(piece)
            if on_text and piece:
                on_text(piece)
        if tokens[-1] in ends:
            answer.stopped = "end of text"
            break
        if len(answer.tokens) == max_tokens:
            break
        if cache.length == cache.context:
            answer.stopped = "context"
            break
    answer.text = "".join(text)
    has_run(model.file, slots=bool(model.weights.experts))
    answer.nbytes = bytes_read(model.file, model.trace.spans[before:], counts)
    return answer


def _passes(model, cache, prompt, sample):
    """(the new token, seconds, positions) of each pass."""
    batch = prompt
    while True:
        start = time.perf_counter()
        token = sample(model.step(batch, cache))
        yield [token], time.perf_counter() - start, len(batch)
        batch = [token]


def _drafted(model, cache, answer, sample, draft, most, ends, max_tokens):
    """``_passes`` with a draft, of which ``answer`` tells."""
    from kit.model.drafters import drafter_of
    from kit.model.drafts import Drafting, passes

    drafter = drafter_of(model, draft, most)
    if (needed := cache.length + len(answer.prompt) + 1 + most) > cache.context:
        raise ModelError(
            f"{model.file.path}: the context of {cache.context} has no room for a draft of {most} tokens after the prompt, "
            f"which takes {needed}: ask for more context, or a smaller draft"
        )
    answer.draft = Drafting(drafter.name, drafter.nbytes)
    return passes(model, cache, answer.prompt, sample, drafter, most, ends, max_tokens, answer.draft)


def bytes_read(file, spans, tokens: Sequence[int]) -> list[int]:
    """Bytes that each pass of so many ``tokens`` read, by its spans: matrices of the file as they lie there, or as far as they
    are chosen, vectors, rows of embeddings, keys and values, and states."""
    passes, products = Counter(), set()
    for span in spans:
        if span.what in _READ:
            passes[span.token] += int(span.nbytes * _READ[span.what])
        if span.what == "linear":
            products.add(span.tensor.partition("[")[0])
    others = [use for use in uses_of(file) if use.name not in products and not use.name.startswith("enc.")]
    rows, rest = bytes_used(use for use in others if use.is_rows), bytes_used(use for use in others if not use.is_rows)
    return [round(passes[number] + rest + rows * count) for number, count in zip(sorted(passes), tokens, strict=False)]


def _tokenizer(model, needed):
    try:
        return model.tokenizer
    except NoTokenizer:
        if needed:
            raise
        return None
