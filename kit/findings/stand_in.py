"""Dequantizers to load weights with: the kit's, gguf-py's, and one that is about as fast as the reports' was."""

import numpy as np
import torch

import kit
from kit.cpu import dequantize, simd, threads
from kit.gguf.formats import FORMATS
from kit.gguf.names import layer_of

STAND_IN, OURS, GGUF_PY = "the stand-in", "the kit's", "gguf-py's"


class StandIn(kit.Weights):
    """Weights that the calling thread dequantizes alone, without vector code.

    It comes nearest to the reports' dequantizer, which made 7.6 GB/s of float32 in the median of their log
    (data/evidence.yaml: dequantize-gbps); gguf-py makes a twentieth of that.
    """

    def load(self, name: str) -> torch.Tensor:
        """Read and dequantize the tensor without the cache."""
        blocks, out = np.ascontiguousarray(self.read(name)), self._buffers.empty(self.shape(name), self.dtype)
        with self.trace.span("dequantize", name, layer_of(name), self.nbytes(name)), simd.using("plain"):
            kernel, arguments, tasks = dequantize.step(blocks, FORMATS[self.info(name).qtype], out)
            threads.run(kernel, arguments, -tasks)  # a negative number of tasks stays on this thread
        return out


SOURCES = {STAND_IN: (StandIn, "cpu"), OURS: (kit.Weights, "cpu"), GGUF_PY: (kit.Weights, "reference")}  # and its backend
