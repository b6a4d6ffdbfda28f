"""Transformer: the forward pass of the llama family, reading each weight from a Weights object when it needs it."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property

import torch
import torch.nn.functional as F

from kit.cpu.norm import rms_norm
from kit.cpu.threads import torch_alone
from kit.errors import ModelError
from kit.model.attention import attention_named
from kit.model.config import read_config
from kit.model.kvcache import KVCache
from kit.model.linear import GEMV_MAX_TOKENS, linear_named
from kit.model.rope import Rope
from kit.model.tokenizer import Tokenizer, tokenizer_of


class Transformer:
    """A model over ``weights[name]``; every linear layer, norm and attention adds a span to ``weights.trace``.

    ``attention`` and ``linear`` name variants of kit.attention and kit.linear; ``max_context`` limits the positions
    (None: as many as the file was trained for); ``kv_dtype`` is float32, float16 or q8_0. Raises ModelError for a
    file that it cannot run, before any tensor data is read.
    """

    def __init__(self, weights, attention="fused", linear="decoded", max_context=None, kv_dtype="float32"):
        self.weights, self.trace, self.file = weights, weights.trace, weights.file
        self.config = read_config(self.file)
        self.max_context = self.config.context if max_context is None else max_context
        if not 1 <= self.max_context <= self.config.context:
            limit = self.config.context
            raise ModelError(f"{self.file.path}: a context of {max_context} was asked for; the model has 1 to {limit}")
        self.attention, self.linear, self.kv_dtype = attention, linear, kv_dtype
        self._attend, self._linear = attention_named(attention), linear_named(linear)
        self.new_cache(1)  # an unknown kv_dtype is an error here and not at the first token
        divisors = weights["rope_freqs.weight"].cpu() if "rope_freqs.weight" in self.file.tensors else None
        self._rope = Rope(self.config.rope, self.config.family.rope, divisors)

    def new_cache(self, context: int | None = None) -> KVCache:
        """An empty key/value cache for up to ``context`` positions (None: ``max_context``)."""
        c = self.config
        return KVCache(c.layers, c.kv_heads, c.head_dim, context or self.max_context, self.kv_dtype)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer, built when first asked for; TokenizerError when the file has none that the kit knows."""
        return tokenizer_of(self.file)

    def logits(self, tokens: Sequence[int], first: int = 0) -> torch.Tensor:
        """Logits after each of ``tokens`` from the ``first`` on, (tokens - first, vocabulary) float32; nothing is kept."""
        self._check_tokens(tokens, 0, self.max_context)
        return self._forward(tokens, self.new_cache(len(tokens)), slice(first, None))

    def step(self, tokens: Sequence[int], cache: KVCache) -> torch.Tensor:
        """Logits after the last of ``tokens``, (vocabulary,) float32; ``cache`` holds what came before and grows.

        The prompt goes in at once (prefill), then one token a step (decode). Raises ModelError when there are no
        tokens, one is outside the vocabulary, or they do not fit the context; the cache is unchanged then.
        """
        self._check_tokens(tokens, cache.length, cache.context)
        return self._forward(tokens, cache, slice(-1, None))[0]

    def _check_tokens(self, tokens, held, context):
        if len(tokens) == 0:
            raise ModelError("the prompt is empty: give at least one token")
        vocabulary = self.config.vocabulary
        wrong = next((int(token) for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise ModelError(f"{self.file.path}: token {wrong} is outside the vocabulary of {vocabulary}")
        if held + len(tokens) > context:
            raise ModelError(
                f"{self.file.path}: {held + len(tokens)} tokens do not fit the context of {context}; "
                f"shorten the prompt or ask for more context (the model has {self.config.context})"
            )

    def _forward(self, tokens, cache, wanted):
        """(wanted tokens, vocabulary): embed, the blocks, the output projection of the rows ``wanted``."""
        start = time.perf_counter_ns()
        self.trace.token = cache.passes
        with torch_alone() if self._linear.own_threads and len(tokens) <= GEMV_MAX_TOKENS else nullcontext():
            logits = self._logits(tokens, cache, wanted)
        if not logits.isfinite().all():
            self._blame()
        cache.advance(len(tokens))
        self.trace.add("token", start, time.perf_counter_ns(), nbytes=cache.nbytes)
        return logits

    def _logits(self, tokens, cache, wanted):
        config = self.config
        x = self._embed(tokens)
        cos_sin = self._rope.angles(cache.length, len(tokens))
        for layer in range(config.layers):
            x.add_(self._attention(x, layer, cos_sin, cache), alpha=config.residual_scale)
            x.add_(self._ffn(x, layer), alpha=config.residual_scale)
        x = self._norm(x[wanted], "output_norm.weight", -1)
        logits = self._apply("token_embd.weight" if config.tied else "output.weight", x, -1)
        return logits.div_(config.logit_scale)

    def _embed(self, tokens):
        """(tokens, width): only the rows asked for are dequantized, even where the output projection needs them all."""
        start = time.perf_counter_ns()
        rows = self.weights.rows("token_embd.weight", torch.as_tensor(tokens, dtype=torch.int64)).float()
        rows *= self.config.embedding_scale
        self.trace.add("embed", start, time.perf_counter_ns(), "token_embd.weight", nbytes=rows.nbytes)
        return rows

    def _attention(self, x, layer, cos_sin, cache):
        """(tokens, width) -> (tokens, width): norm, projections, RoPE, attention over the cache, output projection."""
        c, block = self.config, f"blk.{layer}."
        x = self._norm(x, f"{block}attn_norm.weight", layer)
        q, k, v = (self._apply(f"{block}attn_{part}.weight", x, layer).unflatten(1, (-1, c.head_dim)) for part in "qkv")
        if c.family.qk_norm:
            q = self._norm(q, f"{block}attn_q_norm.weight", layer)
            k = self._norm(k, f"{block}attn_k_norm.weight", layer)
        start = time.perf_counter_ns()
        self._rope.rotate(q, cos_sin)
        self._rope.rotate(k, cos_sin)
        rotated = time.perf_counter_ns()
        keys, values = cache.append(layer, k, v)
        mixed = self._attend(q.transpose(0, 1), keys, values, c.attention_scale, c.window)
        mixed = mixed.transpose(0, 1).flatten(1)
        self.trace.add("rope", start, rotated, "", layer)
        nbytes = keys.shape[1] * cache.bytes_per_position // c.layers
        self.trace.add("attention", rotated, time.perf_counter_ns(), "", layer, nbytes=nbytes)
        return self._apply(f"{block}attn_output.weight", mixed, layer)

    def _ffn(self, x, layer):
        """(tokens, width) -> (tokens, width): norm and SwiGLU, dense or by experts."""
        block = f"blk.{layer}.ffn_"
        x = self._norm(x, f"{block}norm.weight", layer)
        if not self.config.experts:
            return self._swiglu(x, block, ".weight", layer)
        out = self._experts(x, block, layer)
        return out.add_(self._swiglu(x, block, "_shexp.weight", layer)) if self.config.shared_intermediate_size else out

    def _swiglu(self, x, block, suffix, layer):
        gate = self._apply(f"{block}gate{suffix}", x, layer)
        up = self._apply(f"{block}up{suffix}", x, layer)
        return self._apply(f"{block}down{suffix}", F.silu(gate, inplace=True).mul_(up), layer)

    def _experts(self, x, block, layer):
        """Each token passes its ``experts_used`` best experts; an expert is read only when some token wants it."""
        scores = self._apply(f"{block}gate_inp.weight", x, layer).softmax(-1)
        share, chosen = scores.topk(self.config.experts_used)
        share /= share.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            token, place = (chosen == expert).nonzero(as_tuple=True)
            y = self._swiglu(x[token], block, f"_exps.weight[{expert}]", layer)
            out.index_add_(0, token, y.mul_(share[token, place, None]))
        return out

    def _apply(self, name, x, layer):
        start = time.perf_counter_ns()
        y = self._linear.apply(self.weights, name, x)
        bias = name.removesuffix("weight") + "bias"
        if bias in self.file.tensors:
            y += self.weights[bias]
        nbytes = self._linear.nbytes(self.weights, name)
        self.trace.add("linear", start, time.perf_counter_ns(), name, layer, nbytes=nbytes)
        return y

    def _norm(self, x, name, layer):
        start = time.perf_counter_ns()
        weight = self.weights[name]
        y = rms_norm(x, weight, self.config.norm_eps)
        self.trace.add("norm", start, time.perf_counter_ns(), name, layer)
        return y

    def _blame(self):
        """Logits came out NaN or infinite: name the first tensor, in the order of use, that has such weights."""
        for name in self.config.tensors() | self.config.optional_tensors():
            bad = (~self.weights[name].isfinite()).nonzero() if name in self.file.tensors else ()
            if len(bad):
                where = tuple(bad[0].tolist())
                raise ModelError(
                    f"{self.file.path}: the tensor {name!r} holds NaN or infinite weights, the first at {where}; "
                    "fetch or convert the file again"
                )
        raise ModelError(
            f"{self.file.path}: the logits are NaN or infinite though every weight is finite: something overflows; "
            "use float32 for the weights and the KV cache"
        )
