"""The forward pass on the device, from blocks: prefill in one pass, decoding as CUDA graphs with static buffers."""

import time

import torch
import torch.nn.functional as F

from kit.cuda.kvcache import DeviceKVCache
from kit.cuda.linear import apply, spread, spread_norm
from kit.errors import ModelError
from kit.model.device_weights import DeviceWeights
from kit.model.transformer import Transformer
from kit.quants import dequantize


class DeviceTransformer(Transformer):
    """kit.Transformer over DeviceWeights: the same ``step``, ``logits`` and ``new_cache``, and so kit.generate.

    Linear layers read the blocks where they lie; attention is torch's SDPA over a cache of ``kv_dtype`` on the device.
    ``graphs`` (None: on CUDA): one token is a replayed CUDA graph, which needs every block to stay on the device; its
    parts leave no spans in the trace, only "token". Without, the tensor after the one in use is prefetched. A model with
    experts runs without (None) or not at all (ModelError): which of them a token wants is known only when it is there.
    """

    def __init__(self, weights: DeviceWeights, max_context=None, kv_dtype="float32", graphs: bool | None = None):
        super().__init__(weights, attention="sdpa", max_context=max_context, kv_dtype=kv_dtype)
        if self.config.experts and graphs:
            raise ModelError(f"{self.file.path}: a graph cannot choose experts; leave graphs out, or give graphs=False")
        self.graphs = weights.device.type == "cuda" and not self.config.experts if graphs is None else graphs
        names = [name for name in self.config.tensors() | self.config.optional_tensors() if name in self.file.tensors]
        matrices = [name for name in names if len(self.file.tensors[name].shape) == 2]
        self._vectors = {name: weights[name] for name in names if len(self.file.tensors[name].shape) == 1}
        self._held = weights.resident(matrices) if self.graphs else {}
        order = matrices[1:] + matrices[:1]  # the embedding comes last again where it is the output projection
        self._next = dict(zip(matrices, order, strict=True))
        self._cos_sin = self._rope.angles(0, self.max_context).to(weights.device)

    def new_cache(self, context: int | None = None) -> DeviceKVCache:
        """An empty key/value cache for up to ``context`` positions (None: ``max_context``); it takes memory as it fills."""
        c = self.config
        shape = c.layers, c.kv_heads, c.head_dim, context or self.max_context
        return DeviceKVCache(*shape, self.kv_dtype, self.weights.device)

    def _forward(self, tokens, cache, wanted):
        """(wanted tokens, vocabulary) float32 on the host."""
        start = time.perf_counter_ns()
        self.trace.token = cache.passes
        cache.reserve(cache.length + len(tokens))
        if self.graphs and len(tokens) == 1:
            logits = self._replay(int(tokens[0]), cache)
        else:
            stop = cache.length + len(tokens)
            positions = torch.arange(cache.length, stop, device=self.weights.device)
            logits = self._pass(torch.as_tensor(tokens).to(positions), positions, cache, stop, wanted)
        logits = logits.cpu()
        if not logits.isfinite().all():
            self._blame()
        cache.advance(len(tokens))
        self.trace.add("token", start, time.perf_counter_ns(), nbytes=cache.nbytes)
        return logits

    def _replay(self, token, cache):
        """Logits of one token by the graph for as many positions as it can see; captured when first wanted."""
        cache.token.fill_(token)
        cache.position.fill_(cache.length)
        seen = cache.rounded(cache.length + 1)
        if seen not in cache.graphs:
            cache.graphs[seen] = self._capture(cache, seen)
        graph, logits = cache.graphs[seen]
        graph.replay()
        return logits

    def _capture(self, cache, seen):
        one_pass = (cache.token, cache.position, cache, seen, slice(None))
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # compiles kernels, which a capture must not
            self._pass(*one_pass)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._pass(*one_pass)
        return graph, logits

    def _pass(self, tokens, positions, cache, seen, wanted):
        """The whole pass, from tensors on the device alone; ``seen`` positions of the cache are looked at."""
        c = self.config
        key, query = torch.arange(seen, device=tokens.device), positions[:, None]
        visible = (key <= query) & (key > query - c.window) if c.window else key <= query
        cos_sin = self._cos_sin.index_select(0, positions)
        x = self._embed(tokens)
        for layer in range(c.layers):
            block = f"blk.{layer}."
            inner = spread_norm(x, self._vectors[f"{block}attn_norm.weight"], c.norm_eps)
            q, k, v = (
                self._multiply(f"{block}attn_{part}.weight", inner).unflatten(1, (-1, c.head_dim)) for part in "qkv"
            )
            if c.family.qk_norm:
                q = F.rms_norm(q, (c.head_dim,), self._vectors[f"{block}attn_q_norm.weight"], c.norm_eps)
                k = F.rms_norm(k, (c.head_dim,), self._vectors[f"{block}attn_k_norm.weight"], c.norm_eps)
            self._rope.rotate(q, cos_sin)
            self._rope.rotate(k, cos_sin)
            keys, values = cache.append(layer, positions, k, v, seen)
            mixed = _grouped_attention(q, keys, values, visible, c.attention_scale)
            self._multiply(f"{block}attn_output.weight", spread(mixed), x)
            inner = spread_norm(x, self._vectors[f"{block}ffn_norm.weight"], c.norm_eps)
            if c.experts:
                self._experts(f"{block}ffn_", inner, x)
            if c.shared_intermediate_size or not c.experts:
                self._swiglu(f"{block}ffn_", "_shexp.weight" if c.experts else ".weight", inner, x)
        last = spread_norm(x[wanted].contiguous(), self._vectors["output_norm.weight"], c.norm_eps)
        return self._multiply("token_embd.weight" if c.tied else "output.weight", last) / c.logit_scale

    def _embed(self, tokens):
        rows = self._blocks("token_embd.weight").index_select(0, tokens)
        qtype = self.file.tensors["token_embd.weight"].qtype
        return dequantize(rows, qtype, backend="triton") * self.config.embedding_scale

    def _swiglu(self, block, suffix, inner, add_to=None):
        gate, up = (self._multiply(f"{block}{part}{suffix}", inner) for part in ("gate", "up"))
        return self._multiply(f"{block}down{suffix}", spread(up, gate), add_to)

    def _experts(self, block, inner, x):
        """Add to x (tokens, width) what each token's best experts make of it; the host must wait to learn which."""
        share, chosen = self._multiply(f"{block}gate_inp.weight", inner).softmax(-1).topk(self.config.experts_used)
        share /= share.sum(-1, keepdim=True)
        experts = chosen.unique().tolist()
        parts = [f"{block}{part}_exps.weight[{expert}]" for expert in experts for part in ("gate", "up", "down")]
        self._next |= dict(zip(parts, [*parts[1:], self._next[f"{block}gate_inp.weight"]], strict=True))
        for expert in experts:
            token, place = (chosen == expert).nonzero(as_tuple=True)
            rows = inner[token]  # planes, or x itself where there are many: spread again, for they may be few now
            y = self._swiglu(block, f"_exps.weight[{expert}]", spread(rows) if rows.ndim == 2 else rows)
            x.index_add_(0, token, y.mul_(share[token, place, None]), alpha=self.config.residual_scale)

    def _multiply(self, name, spread_x, add_to=None):
        """W x + bias, (tokens, out); with ``add_to`` that much of the residual stream, times its scale, is added to it."""
        factor = 1.0 if add_to is None else self.config.residual_scale
        y = self._product(name, spread_x, add_to, factor)
        bias = self._vectors.get(name.removesuffix("weight") + "bias")
        return y if bias is None else y.add_(bias, alpha=factor)

    def _product(self, name, spread_x, add_to, factor):
        return apply(self._blocks(name), self.weights.info(name).qtype, spread_x, add_to, factor)

    def _blocks(self, name):
        if self.graphs:
            return self._held[name]
        blocks = self.weights.blocks(name)
        self.weights.prefetch(self._next[name])
        return blocks


def _grouped_attention(q, keys, values, visible, scale):
    """q (tokens, heads, head_dim), keys and values (kv_heads, seen, head_dim), visible (tokens, seen) -> (tokens, heads *
    head_dim) float32. The heads of a group are more queries of one key/value head: keys are read once and not repeated.
    """
    tokens, heads, _ = q.shape
    group = heads // len(keys)
    q = q.unflatten(1, (len(keys), group)).permute(1, 2, 0, 3).flatten(1, 2).to(keys.dtype)
    mask = visible.repeat(group, 1)
    mixed = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask, scale=scale)[0]
    return mixed.unflatten(1, (group, tokens)).permute(2, 0, 1, 3).flatten(1).float()
