"""Weights: the dequantized tensors of a file, through a cache; ``weights["blk.0.attn_q.weight"]`` is a tensor."""

import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch

from kit.cache.policies.base import NoCache, Policy
from kit.cache.store import WeightCache
from kit.cpu.buffers import ARENA
from kit.errors import CacheError, ModelError
from kit.gguf.foreign import check_blocks
from kit.gguf.names import blocks_of, find_tensor, layer_of
from kit.gguf.reader import GGUFFile, TensorInfo, open
from kit.model.linear import Variant
from kit.model.slots import Experts
from kit.quants.registry import dequantize, dtype_named
from kit.shown import Shown
from kit.trace import Trace
from kit.units import format_bytes

_PAGE = 4096


class WeightSource(Protocol):
    """A source of a Transformer's tensors, by their names in the file; ``stack[3]`` names one expert of a stack.

    Implemented by Weights (dequantized through a cache, or blocks in place), kit.codec.weights.CompressedWeights (tiles,
    unpacked through a cache), and weights on a device. ``file`` has path, metadata, architecture, tensors; ``store`` is the
    WeightCache with the statistics; ``linear`` is a Transformer's default linear layer: a name in kit.model.linear, or one.
    """

    file: GGUFFile
    trace: Trace
    store: WeightCache
    linear: str | Variant
    experts: Experts | None = None  # what holds a mixture's experts, if not the mapped file

    def __reduce__(self):
        """Neither pickle nor deepcopy: TypeError. Recorded passes point into the file's map."""
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: they are a file's memory; open the file again")

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole tensor in floating point, (out, in) or (n,)."""

    def rows(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """Rows ``index`` of a matrix (an embedding) in floating point, (len(index), in)."""

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor as this source returns it."""

    def __iter__(self):
        return iter(self.file.tensors)

    def __len__(self) -> int:
        return len(self.file.tensors)

    def info(self, name: str) -> TensorInfo:
        """The tensor's TensorInfo (for an expert, that of its stack); ModelError when the file has no such tensor."""
        return self.file.tensors[find_tensor(self.file, name)[0]]

    def _facts(self):
        stats = self.store.stats
        infos = self.file.tensors.values()
        held = f"{stats.hits:,} of {stats.gets:,} gets hit, {format_bytes(stats.resident_bytes)} held"
        facts = {
            "tensors": str(len(infos)),
            "in the file": format_bytes(sum(info.nbytes for info in infos)),
            "as returned": format_bytes(sum(map(self.nbytes, self))),
            **({"linear": self.linear} if isinstance(self.linear, str) else {}),
            "cache": f"{self.store.policy!r}, {held}",
        }
        return f"{type(self).__name__} of {self.file.path}", facts | ({"experts": self.experts.how} if self.experts else {})

    def shape(self, name: str) -> tuple[int, ...]:
        """(out, in) of a matrix, (n,) of a vector."""
        stack, expert = find_tensor(self.file, name)
        shape = self.file.tensors[stack].shape
        if isinstance(expert, slice):
            return expert.stop - expert.start, *shape[1:]
        return shape[expert is not None :]


def opened(file: GGUFFile | str | os.PathLike) -> GGUFFile:
    """``file``, or the file of that path or name (kit.open); ModelError for what is no file."""
    if isinstance(file, (str, os.PathLike)):
        return open(file)
    if not hasattr(file, "tensors"):
        raise ModelError(f"weights are those of a model's file: give its path or kit.open(path), not a {type(file).__name__}")
    return file


class Weights(WeightSource, Mapping, Shown):
    """The dequantized tensors of a GGUF file, shape (out, in), by name.

    ``file``: an open file, a path, or a name (see kit.open).
    ``cache``: a policy (None: every access dequantizes). ``backend`` and ``dtype``: see kit.dequantize. Where
    none of the three is named, a Transformer multiplies straight with the file's blocks (linear "fused") and
    asks for few tensors. ``experts``: kit.Slots("6 GiB"), in which the experts of a mixture are held instead of in the mapped
    file; without a cache. Each access adds a span "access" to ``trace``, each load also "read", "dequantize" and, where
    it took memory that nothing had used before, "fresh". Experts are separate objects of the cache, named ``stack[3]``.
    """

    mapped = True  # blocks stay at one place in memory

    def __init__(self, file, cache: Policy | None = None, backend="cpu", dtype="float32", trace=None, experts=None):
        file = opened(file)
        check_blocks(file)
        if experts is not None and cache is not None:
            raise CacheError("give cache= or experts= (slots), not both")
        self.file = file
        self.backend = backend
        self.dtype = dtype_named(dtype)
        plain = cache is None and backend == "cpu" and self.dtype == torch.float32 and type(self) is Weights
        self.linear = "fused" if plain else "dequantized"  # a subclass changes weights: blocks would pass it by
        self.trace = Trace() if trace is None else trace
        self.store = WeightCache(NoCache() if cache is None else cache, self.trace)
        self.experts = experts and experts.hold(file, self.trace)

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, from the cache or the file; ModelError when the file has no such tensor."""
        return self.store.get(name, self.nbytes(name), lambda: self.load(name))

    def rows(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """Rows ``index`` of a matrix (an embedding), (len(index), in), dequantized without the cache."""
        blocks = blocks_of(self.file, name)[index.numpy()]
        with self.trace.span("dequantize", name, layer_of(name), blocks.nbytes):
            return dequantize(blocks, self.info(name).qtype, dtype=self.dtype, backend=self.backend)

    def nbytes(self, name: str) -> int:
        """Bytes of the dequantized tensor."""
        return math.prod(self.shape(name)) * self.dtype.itemsize

    def blocks(self, name: str) -> np.ndarray:
        """The tensor's blocks where they are held, uint8 (out, bytes of a row)."""
        return self.experts.blocks(name) if self.experts and "_exps.weight" in name else blocks_of(self.file, name)

    def close(self) -> None:
        """Give back what holds experts; the file stays open."""
        if self.experts:
            self.experts.close()

    @property
    def working_set(self) -> int:
        """Bytes of all tensors when dequantized."""
        return sum(map(self.nbytes, self))

    def preload(self, names: Iterable[str] | None = None, workers: int = 1, read_ahead: bool = False) -> None:
        """Load ``names`` (all by default) into the cache by ``workers`` threads.

        ``read_ahead``: a further thread reads the file's pages into memory, so that reading and dequantizing overlap.
        """
        names = list(self if names is None else names)
        with ThreadPoolExecutor(workers + read_ahead) as pool:
            reading = pool.submit(lambda: [self.read(name) for name in names]) if read_ahead else None
            for _ in pool.map(self.__getitem__, names):
                pass
            if reading:
                reading.result()

    def read(self, name: str) -> np.ndarray:
        """The tensor's blocks, with every page read into memory; the span "read" has the time of that."""
        blocks = self.blocks(name)
        with self.trace.span("read", name, layer_of(name), blocks.nbytes):
            np.bitwise_or.reduce(blocks.reshape(-1)[::_PAGE])
        return blocks

    def load(self, name: str) -> torch.Tensor:
        """Read and dequantize the tensor without the cache; a miss and a prefetch call this."""
        blocks = self.read(name)
        qtype, shape = self.info(name).qtype, self.shape(name)
        with self.trace.span("dequantize", name, layer_of(name), self.nbytes(name)):
            out = ARENA.weights.empty(shape, self.dtype, self.trace)
            return dequantize(blocks, qtype, dtype=self.dtype, backend=self.backend, out=out)
