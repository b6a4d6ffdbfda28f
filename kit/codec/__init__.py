"""Tile-compressed weights: an int8 matrix as independently coded tiles (rANS), decoders by name, compressed models."""

from kit.codec.decoders import DECODERS, decode
from kit.codec.encoder import PROFILES, Profile, encode
from kit.codec.tiles import Tiles

__all__ = ["DECODERS", "PROFILES", "Profile", "Tiles", "decode", "encode"]
