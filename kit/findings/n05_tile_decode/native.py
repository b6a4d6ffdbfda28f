"""Report 004's decoder as a native library has it: one scalar loop with a linear search, built by LLVM without and with
optimization (decoder.ll), alone and with a context and copies a tile.
"""

import ctypes
import functools
from importlib import resources

import llvmlite.binding as llvm
import numpy as np

from kit.codec.tiles import Tiles

_WORD, _POINTER = ctypes.c_int64, ctypes.c_void_p
_DECODER = ctypes.CFUNCTYPE(None, _POINTER, _WORD, _POINTER, _POINTER, _WORD, _WORD)  # both functions of decoder.ll


@functools.cache
def _decoder(level: int, name: str):
    source = resources.files(__package__).joinpath("decoder.ll").read_text(encoding="utf-8")
    module = llvm.parse_assembly(source)
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=level, jit=True)
    if level:
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
        passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = _DECODER(engine.get_function_address(name))
    function.engine = engine  # the code lives as long as what calls it
    return function


def unpack(tiles: Tiles, level: int, context: bool, out: np.ndarray) -> np.ndarray:
    """int8 values (tiles, rows, columns) of whole tiles under the profile "reported", a tile after the other, in ``out``.
    ``level``: of LLVM's optimization, 0 or 3; ``context``: whether one is made for each tile, its bytes copied in and out."""
    decode = _decoder(level, "unpack_in_context" if context else "unpack")
    streams, (rows, columns) = tiles.streams.ctypes.data, tiles.sizes[0].tolist()
    for tile, (start, length) in enumerate(zip(tiles.starts.tolist(), tiles.lengths.tolist(), strict=True)):
        table = tiles.frequencies[tile % len(tiles.frequencies)].ctypes.data
        decode(streams + start, length, table, out[tile].ctypes.data, rows, columns)
    return out
