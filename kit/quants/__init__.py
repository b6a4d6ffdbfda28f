"""Dequantize ggml blocks: ``dequantize`` with its backends, imported at first use."""

import importlib

_HOME = {"dequantize": "kit.quants.registry", "BACKENDS": "kit.quants.registry"}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'kit.quants' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_HOME[name]), name)
    return value
