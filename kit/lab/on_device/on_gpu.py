"""Transformer on a CUDA device, from blocks: prefill in one pass, decoding by CUDA graphs."""

import time

import torch

from kit.cuda.linear import apply
from kit.errors import ModelError
from kit.lab.on_device.device_kvcache import DeviceKVCache
from kit.lab.on_device.device_ops import DeviceOps
from kit.lab.on_device.device_weights import DeviceWeights
from kit.model.forward import forward
from kit.model.transformer import Transformer
from kit.quants import dequantize


class DeviceTransformer(Transformer):
    """kit.Transformer over DeviceWeights: the same ``step``, ``logits`` and ``new_cache``, so kit.generate takes it.

    Linear layers read blocks in device memory; attention is torch's SDPA over a cache of ``kv_dtype`` on the device.
    ``graphs`` (None: yes on CUDA, no for a mixture of experts): a token is a replayed CUDA graph. That needs all blocks
    resident on the device, and adds only the span "token" to the trace. Without graphs, the next tensor is prefetched
    while one is in use. ``graphs=True`` for a mixture of experts is a ModelError, because the graph cannot choose experts.
    """

    def __init__(self, weights: DeviceWeights, max_context=None, kv_dtype="float32", graphs: bool | None = None):
        super().__init__(weights, attention="sdpa", max_context=max_context, kv_dtype=kv_dtype)
        if others := sorted(filter(None, {layer.on_cpu_alone for layer in self.config.layers})):
            raise ModelError(f"{self.file.path}: {' and '.join(others)} run only on the CPU: use kit.Weights")
        if self.config.experts and graphs:
            raise ModelError(f"{self.file.path}: CUDA graphs do not support a mixture of experts: give graphs=False")
        self.graphs = weights.device.type == "cuda" and not self.config.experts if graphs is None else graphs
        names = [name for name, *_ in self.config.layout() if name in self.file.tensors]
        matrices = [name for name in names if len(self.file.tensors[name].shape) == 2 and "bias" not in name]
        self.vectors = {name: weights[name] for name in names if name not in matrices and "_exps.w" not in name}
        self._held = weights.resident(matrices) if self.graphs else {}
        order = matrices[1:] + matrices[:1]  # after the last comes the embedding: as output projection, or for the next token
        self._next = dict(zip(matrices, order, strict=True))
        self.cos_sin = {key: rope.cos_sin(0, self.max_context).to(weights.device) for key, rope in self.ropes.items()}

    def new_cache(self, context: int | None = None) -> DeviceKVCache:
        """An empty key/value cache for up to ``context`` positions (None: ``max_context``), allocated as it fills."""
        shapes = [(layer.mixer.kv_heads, layer.mixer.head_dim) for layer in self.config.layers]
        return DeviceKVCache(shapes, context or self.max_context, self.kv_dtype, self.weights.device)

    def _forward(self, tokens, cache, wanted):
        """Logits (wanted tokens, vocabulary) float32 on the host."""
        start = time.perf_counter_ns()
        self.trace.token = cache.passes
        cache.reserve(cache.length + len(tokens))
        if self.graphs and len(tokens) == 1:
            logits = self._replay(int(tokens[0]), cache)
        else:
            stop = cache.length + len(tokens)
            positions = torch.arange(cache.length, stop, dtype=torch.int64, device=self.weights.device)
            ops = DeviceOps(self, torch.as_tensor(tokens, dtype=torch.int64, device=positions.device), positions, cache, stop)
            logits = forward(ops, self.config, wanted)
        logits = logits.cpu()
        self._check_finite(logits)
        cache.advance(len(tokens))
        self.trace.add("token", start, time.perf_counter_ns(), nbytes=cache.nbytes)
        return logits

    def _replay(self, token, cache):
        """Logits of one token by the graph for its number of positions, which is captured at first use."""
        cache.token.fill_(token)
        cache.position.fill_(cache.length)
        seen = cache.rounded(cache.length + 1)
        if seen not in cache.graphs:
            cache.graphs[seen] = self._capture(cache, seen)
        graph, logits = cache.graphs[seen]
        graph.replay()
        return logits

    def _capture(self, cache, seen):
        def one_pass():
            ops = DeviceOps(self, cache.token, cache.position, cache, seen)
            return forward(ops, self.config, slice(None))

        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):  # compiles the kernels, which a capture cannot do
            one_pass()
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = one_pass()
        return graph, logits

    def blocks(self, name: str) -> torch.Tensor:
        """The blocks of a matrix on the device; without graphs, also starts the copy of the next matrix."""
        if self.graphs:
            return self._held[name]
        blocks = self.weights.blocks(name)
        self.weights.prefetch(self._next[name])
        return blocks

    def expects(self, names: list[str], router: str) -> None:
        """Set the order of use: ``router``, these experts' matrices, then the matrix after all experts."""
        self._next |= dict(zip(names, [*names[1:], self._next[router]], strict=True))

    def rows(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """Rows ``index`` of an embedding, (len(index), in) float32."""
        return dequantize(self.blocks(name).index_select(0, index), self.weights.info(name).qtype, backend="triton")

    def product(self, name: str, input: torch.Tensor, add_to: torch.Tensor | None, factor: float) -> torch.Tensor:
        """W input, or ``add_to + factor * W input``, written to ``add_to``."""
        return apply(self.blocks(name), self.weights.info(name).qtype, input, add_to, factor)
