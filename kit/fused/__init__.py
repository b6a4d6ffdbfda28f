"""fused: y = W x straight from a file's blocks; no weight is ever decoded to memory.

``linear`` is the low-level function; ``Transformer(weights, linear="fused")`` and ``linear="fused-int8"`` use it. The two
differ in what they do to x: nothing, or a rounding to eight bits by blocks as ggml does.
"""

from kit.fused.linear import linear

__all__ = ["linear"]
