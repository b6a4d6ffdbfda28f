"""Tile-compressed weights: int8 matrices as independently coded tiles (rANS), their decoders, compressed models.

model = kit.Transformer(kit.codec.CompressedWeights(kit.codec.CompressedFile("model.tiles.gguf"), kit.HashMap()))
"""

import importlib

from kit.codec.decoders import DECODERS, decode
from kit.codec.encoder import PROFILES, CodecProfile, encode
from kit.codec.tiles import Tiles

_HOME = {"CompressedFile": "kit.codec.container", "CompressedWeights": "kit.codec.weights"}  # what needs torch
__all__ = ["DECODERS", "PROFILES", "CodecProfile", "CompressedFile", "CompressedWeights", "Tiles", "decode", "encode"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'kit.codec' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_HOME[name]), name)
    return value
