"""The blocks of a GGUF file on a device: copied once, kept as a policy says, and never stored dequantized."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from kit.cache.policies.base import HashMap, NoCache, Policy
from kit.cache.store import WeightCache
from kit.cuda.dequantize import DEVICE
from kit.cuda.memory import pinned
from kit.errors import ModelError
from kit.gguf.names import find_tensor
from kit.gguf.reader import GGUFFile
from kit.lab.trace import Trace
from kit.model.weights import WeightSource
from kit.quants import dequantize
from kit.units import format_bytes, parse_bytes


class _Copy(NamedTuple):
    """Blocks on the device and the event after which they are there (None on the CPU)."""

    blocks: torch.Tensor
    done: object


class DeviceWeights(WeightSource):
    """``blocks(name)`` is a tensor's blocks (out, bytes of a row), uint8, on the device; ``stack[3]`` those of one expert.

    ``cache`` decides which stay there: its capacity counts bytes of device memory (None: all of them); ``store`` has the
    statistics and each access adds a span "access" to ``trace``, as for kit.Weights. ``host`` decides which are also
    kept in pinned host memory (None: none), from where a copy runs at the full speed of the bus; ``host_store`` counts.
    ``ahead`` bytes of device memory hold what ``prefetch`` copies on a stream of its own while others compute.
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
            copy.blocks.record_stream(stream)  # evicted, its memory is not used again before this stream is through
        return copy.blocks

    def prefetch(self, name: str) -> bool:
        """Start the copy of ``name`` on the second stream and return at once; False when it is there or has no room."""
        return self.store.prefetch(name, self.nbytes(name), lambda: self._copy(name))

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor dequantized anew, float32 on the device: for vectors, and where a whole matrix is wanted."""
        return dequantize(self.blocks(name), self.info(name).qtype, backend="triton").view(self.shape(name))

    def rows(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """(len(index), in) float32: some rows of a matrix; ``index`` lies on the device."""
        return dequantize(self.blocks(name).index_select(0, index), self.info(name).qtype, backend="triton")

    def resident(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The blocks of all ``names``, at addresses that stay (CUDA graphs); ModelError when the policy lets one go."""
        held = {name: self.blocks(name) for name in names}
        gone = [name for name in held if name not in self.store.policy]
        if gone:
            total = sum(blocks.nbytes for blocks in held.values())
            raise ModelError(
                f"{self.file.path}: {self.store.policy!r} does not keep {gone[0]!r} and {len(gone) - 1} other tensors on "
                f"the device; give it {format_bytes(total)}, or run without graphs"
            )
        return held

    def _copy(self, name: str) -> _Copy:
        host = self.host_store.get(name, self.nbytes(name), lambda: self._pinned(name))
        if self._copying is None:
            return _Copy(host, None)
        with torch.cuda.stream(self._copying):
            return _Copy(host.to(self.device, non_blocking=True), self._copying.record_event())

    def _pinned(self, name: str) -> torch.Tensor:
        """A copy of the mapped file's blocks in memory from which the device can read by itself."""
        stack, expert = find_tensor(self.file, name)
        blocks = self.file.blocks(stack)
        return pinned(blocks if expert is None else blocks[expert])
