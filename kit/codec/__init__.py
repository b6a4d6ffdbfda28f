"""Tile-compressed weights: int8 matrices as independently coded tiles (rANS), their decoders, compressed models."""

from kit.codec.decoders import DECODERS, decode
from kit.codec.encoder import PROFILES, Profile, encode
from kit.codec.tiles import Tiles

__all__ = ["DECODERS", "PROFILES", "Profile", "Tiles", "decode", "encode"]
