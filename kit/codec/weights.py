"""Linear layers over compressed weights: matrices are unpacked by any decoder through any cache and multiplied as INT8."""

import math
from collections.abc import Mapping

import torch

from kit.cache.policies.base import NoCache, Policy
from kit.cache.store import WeightCache
from kit.codec.codings import CODINGS, Coded, unpack
from kit.codec.container import CompressedFile
from kit.codec.decoders import find
from kit.cpu.buffers import ARENA
from kit.cpu.linear import FEWEST
from kit.cpu.linear import linear as multiply
from kit.errors import ModelError
from kit.gguf.names import blocks_of, layer_of
from kit.model.linear import Variant, by_rows
from kit.model.weights import WeightSource
from kit.quants import dequantize
from kit.shown import Shown
from kit.system import usable_cores
from kit.trace import Trace


class CompressedWeights(WeightSource, Mapping, Shown):
    """The weights of a CompressedFile, for a Transformer: ``kit.Transformer(weights)``.

    ``cache``: for unpacked matrices (one byte a weight), a policy (None: every use unpacks) or an object with ``get`` and
    ``stats``. ``by="entries"``: a matrix counts as 1, as in report 004's caches, instead of its bytes. ``decoder`` and
    ``threads``: see kit.codec.decode (None: all cores).

    Each use adds a span "access" and, when it unpacks, a span "unpack" to ``trace``.
    """

    def __init__(self, file: CompressedFile, cache=None, decoder="interleaved", threads=None, by="bytes", trace=None):
        find(decoder)  # an unknown name is an error here, not at the first token
        self.file, self.decoder, self.threads, self.by = file, decoder, threads or usable_cores(), by
        self.trace = Trace() if trace is None else trace
        cache = NoCache() if cache is None else cache
        self.store = WeightCache(cache, self.trace) if isinstance(cache, Policy) else cache
        self.layers = {name: CompressedLinear(name, matrix, self) for name, matrix in file.matrices.items()}
        self.linear = Variant(lambda weights, name, x: weights.layer(name)(x), lambda weights, name: weights.layer(name).nbytes)

    def layer(self, name: str) -> "CompressedLinear":
        """The linear layer of a matrix by its full name; ModelError when there is none."""
        if name not in self.layers:
            raise ModelError(f"{self.file.path}: no compressed matrix {name!r}; give the full name")
        return self.layers[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor in floating point; a coded matrix is unpacked (through the cache) and scaled."""
        if name in self.layers:
            return self.layers[name].weight()
        return dequantize(blocks_of(self.file, name), self.info(name).qtype).reshape(self.shape(name))

    def rows(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """Rows ``index`` of a matrix (an embedding), (len(index), in) float32."""
        if name in self.layers:
            return self.layers[name].weight(index)
        return dequantize(self.file.blocks(name)[index.numpy()], self.info(name).qtype)

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in floating point."""
        return math.prod(self.shape(name)) * (2 if self.file.coding == "bf16" and name in self.layers else 4)

    @property
    def unpacked_bytes(self) -> int:
        """Bytes of all matrices when unpacked."""
        return sum(layer.nbytes for layer in self.layers.values())

    @property
    def compressed_bytes(self) -> int:
        """Bytes of all matrices in the file."""
        return sum(matrix.nbytes for matrix in self.file.matrices.values())


class CompressedLinear:
    """y = W x; W is unpacked when the cache does not hold it. Made by CompressedWeights."""

    def __init__(self, name: str, matrix: Coded, weights: CompressedWeights):
        self.name, self.matrix, self.weights = name, matrix, weights
        self.nbytes = math.prod(matrix.shape) * CODINGS[matrix.coding].nbytes  # unpacked
        self.tiles = len(matrix.tiles)
        self._scales = torch.tensor(matrix.beside, dtype=torch.float32, device="cpu") if matrix.coding == "int8" else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, in) float32 -> (tokens, out) float32; a row's scale multiplies its dot product."""
        values = self.values()
        if self._scales is None:
            return (x.to(torch.bfloat16) @ values.T).float()
        if len(x) >= FEWEST:
            return by_rows(values, torch.Tensor.float, x).mul_(self._scales)
        return multiply(values.view(torch.uint8).numpy(), "I8", x).mul_(self._scales)

    def values(self) -> torch.Tensor:
        """The unpacked matrix as int8 or bfloat16, by the cache."""
        return self.weights.store.get(self.name, self.size, self.load)

    def load(self) -> torch.Tensor:
        """Unpack the matrix without the cache; a miss and a prefetch call this."""
        with self.weights.trace.span("unpack", self.name, layer_of(self.name), self.matrix.nbytes):
            room = self.matrix.shape, torch.int8, self.weights.trace
            out = None if self._scales is None else ARENA.weights.empty(*room).numpy()
            return unpack(self.matrix, self.weights.decoder, self.weights.threads, out)

    @property
    def size(self) -> int:
        """Its size in the cache: bytes, or 1."""
        return 1 if self.weights.by == "entries" else self.nbytes

    def weight(self, index=slice(None)) -> torch.Tensor:
        """Rows ``index`` of the matrix, float32 (scaled INT8) or bfloat16."""
        values = self.values()[index]
        return values if self._scales is None else values * self._scales[index, None]
