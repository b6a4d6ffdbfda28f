"""Dequantize ggml blocks."""

from kit.quants.registry import BACKENDS, dequantize

__all__ = ["BACKENDS", "dequantize"]
