"""Compiled code of the tile coding (kit.gguf.tile_coding has its numbers, kit.codec what calls this): encoder and decoders.

rans.py has frequency tables and the coding of symbols, predictors.py the differences that are coded, encoding.py the loops over
tiles; states.py what every decoder does first and last, scalar.py decodes a value at a time, vector.py 16 lanes at once,
finishing.py follows a decoder.
"""

from kit.cpu.tiles.encoding import count, encode
from kit.cpu.tiles.finishing import finish
from kit.cpu.tiles.rans import normalize

__all__ = ["count", "encode", "finish", "normalize"]
