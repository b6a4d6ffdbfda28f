"""The blocks of a GGUF file in device memory, cached by a policy."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from kit.cache.policies.base import HashMap, NoCache, Policy
from kit.cache.store import WeightCache
from kit.cuda.device import DEVICE, pinned
from kit.errors import ModelError
from kit.gguf.names import blocks_of
from kit.gguf.reader import GGUFFile
from kit.model.weights import WeightSource
from kit.quants import dequantize
from kit.shown import Shown
from kit.trace import Trace
from kit.units import format_bytes, parse_bytes


class _Copy(NamedTuple):
    """Blocks on the device, and the CUDA event of the end of their copy (None on the CPU)."""

    blocks: torch.Tensor
    done: object


class DeviceWeights(WeightSource, Shown):
    """``blocks(name)``: a tensor's blocks on the device, uint8 (out, bytes of a row); ``stack[3]`` names one expert.

    ``cache``: policy of the blocks in device memory (None: all are kept); ``store`` has its statistics, and each access
    adds a span "access" to ``trace``. ``host``: policy of copies in pinned host memory (None: none), which are transferred
    at the full speed of the bus; ``host_store`` has its statistics. ``ahead``: bytes of device memory for ``prefetch``.
    """

    linear = "fused"

    def __init__(
        self, file: GGUFFile, cache: Policy | None = None, host: Policy | None = None, ahead: int | str = 0, trace=None
    ):
        self.file = file
        self.trace = Trace() if trace is None else trace
        self.store = WeightCache(HashMap() if cache is None else cache, self.trace, parse_bytes(ahead))
        self.host_store = WeightCache(NoCache() if host is None else host)
        self.device = torch.device(DEVICE)
        self._copying = torch.cuda.Stream() if DEVICE == "cuda" else None

    def nbytes(self, name: str) -> int:
        """Bytes of the blocks of ``name``."""
        info = self.info(name)
        return info.nbytes if name == info.name else info.nbytes // info.shape[0]

    def blocks(self, name: str) -> torch.Tensor:
        """The blocks of ``name``, usable on the current stream."""
        copy = self.store.get(name, self.nbytes(name), lambda: self._copy(name))
        if copy.done is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(copy.done)
            copy.blocks.record_stream(stream)  # after an eviction, memory is reused only when this stream has finished
        return copy.blocks

    def prefetch(self, name: str) -> bool:
        """Start the copy of ``name`` on a second CUDA stream; False when it is resident or does not fit ``ahead``."""
        return self.store.prefetch(name, self.nbytes(name), lambda: self._copy(name))

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor dequantized, float32 on the device."""
        return dequantize(self.blocks(name), self.info(name).qtype, backend="triton").view(self.shape(name))

    def rows(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """Rows ``index`` (on the device) of a matrix, (len(index), in) float32."""
        return dequantize(self.blocks(name).index_select(0, index), self.info(name).qtype, backend="triton")

    def resident(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The blocks of all ``names`` at fixed addresses, for CUDA graphs; ModelError when the policy does not keep one."""
        held = {name: self.blocks(name) for name in names}
        gone = [name for name in held if name not in self.store.policy]
        if gone:
            total = sum(blocks.nbytes for blocks in held.values())
            raise ModelError(
                f"{self.file.path}: {self.store.policy!r} does not keep {gone[0]!r} and {len(gone) - 1} other tensors on the "
                f"GPU, but a graph needs all of them: give the cache {format_bytes(total)}, or run without graphs"
            )
        return held

    def _copy(self, name: str) -> _Copy:
        host = self.host_store.get(name, self.nbytes(name), lambda: pinned(blocks_of(self.file, name)))
        if self._copying is None:
            return _Copy(host, None)
        with torch.cuda.stream(self._copying):
            return _Copy(host.to(self.device, non_blocking=True), self._copying.record_event())
