"""Bytes and instructions of each kernel at real sizes, counted, and the least time that a device needs for them."""

from dataclasses import dataclass

import triton

from benchmarks._gpu_compile import HOPPER, Compiled, compile_for
from kit.cuda.dequantize_kernel import WEIGHTS_A_PROGRAM, dequantize_kernel
from kit.cuda.formats import constants_of
from kit.cuda.gemv import STEP_WORDS, blocks_kernel, floats_kernel, norm_kernel, pack_kernel, rows_of_a_program
from kit.cuda.tile_decoder import finish_kernel, rans_kernel
from kit.gguf.formats import DTYPES, FORMATS
from kit.gguf.tile_coding import LOWER

_POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
_STORED = {"F32": "*fp32", "F16": "*fp16", "BF16": "*bf16", "I8": "*i8"}


@dataclass(frozen=True)
class Case:
    """One launch: its work, and how to compile it.

    read, written: bytes of device memory, each once. programs: size of the grid. trips: iterations of the longest loop.
    """

    name: str
    read: int
    written: int
    programs: int
    trips: int
    kernel: object
    types: dict[str, str]
    constants: dict
    warps: int = 4
    fusion: bool = True

    def compile(self, capability: int = HOPPER) -> Compiled:
        """The machine code of a case for GPUs of a compute capability (90: Hopper)."""
        return compile_for(self.kernel, self.types, self.constants, self.warps, self.fusion, capability)

    def instructions(self, compiled: Compiled) -> int:
        """Instructions issued by all warps."""
        once, again = compiled.counts()["all"], compiled.counts(compiled.loop)["all"]
        return self.programs * self.warps * (once + (self.trips - 1) * again if again else once)

    def bounds(self, device: dict, compiled: Compiled) -> dict[str, float]:
        """Least seconds for memory and for instruction issue on ``device`` (a row of data/devices.yaml)."""
        rate = device["copy_gbps"] if self.written > self.read / 10 else device["read_gbps"]
        issue = 4 * device["multiprocessors"] * device["clock_ghz"] * 1e9  # four schedulers a multiprocessor
        return {"memory": (self.read + self.written) / rate / 1e9, "issue": self.instructions(compiled) / issue}


def dequantizer(qtype: str, dtype: str) -> Case:
    """The dequantizer of one format, over 2^28 weights."""
    format, weights = FORMATS[qtype], 1 << 28
    at_once = WEIGHTS_A_PROGRAM // format.block_elements
    constants = constants_of(format) | {"BLOCKS": at_once, "BITS": False}
    return Case(
        f"dequantize {qtype} to {dtype}", format.nbytes(weights), weights * DTYPES[dtype],
        weights // WEIGHTS_A_PROGRAM, 1, dequantize_kernel,
        {"blocks": "*u8", "table": "*i32", "out": _POINTERS[dtype], "count": "i32"}, constants, fusion=False,
    )  # fmt: skip


def gemv(qtype: str, rows: int, columns: int, tokens: int = 1) -> Case:
    """W x from the blocks, or the numbers, of a (rows, columns) matrix, for one token or a few."""
    format = FORMATS[qtype]
    at_once, chunk = rows_of_a_program(format, rows, tokens), 4 * STEP_WORDS // format.block_elements
    steps, constants = columns // format.block_elements, {"TOKENS": tokens, "ROWS": at_once, "ADD": False}
    if format.codes:
        kernel, types, steps_name = blocks_kernel, {"blocks": "*u8", "table": "*i32"}, "blocks_a_row"
        constants |= constants_of(format) | {"CHUNK": chunk}
    else:
        kernel, types, steps_name = floats_kernel, {"weight": _STORED[qtype]}, "words"
        constants["CHUNK"] = STEP_WORDS
    types |= {"planes": "*fp32", "y": "*fp32", "rows": "i32", steps_name: "i32", "factor": "fp32"}
    return Case(
        f"{qtype} {rows} x {columns}, {tokens} token{'s' * (tokens > 1)}",
        format.nbytes(rows * columns) + 5 * columns * tokens, 4 * rows * tokens,
        triton.cdiv(rows, at_once), triton.cdiv(steps, chunk), kernel, types, constants,
    )  # fmt: skip


def packers(columns: int) -> list[Case]:
    """What packs the activations of a token: as they are, times a gate, and by the norm."""
    padded = triton.cdiv(columns // 4, STEP_WORDS) * STEP_WORDS
    types = {"x": "*fp32", "gate": "*fp32", "planes": "*fp32", "words": "i32", "padded": "i32"}
    work = 4 * columns, 5 * padded * 4
    made = [
        Case(name, *work, padded // STEP_WORDS, 1, pack_kernel, types, {"SWIGLU": gated, "BLOCK": STEP_WORDS})
        for name, gated in (("pack", False), ("pack with a gate", True))
    ]
    types = {"x": "*fp32", "weight": "*fp32", "planes": "*fp32", "words": "i32", "padded": "i32", "eps": "fp32"}
    block = {"BLOCK": triton.next_power_of_2(padded)}
    return [*made, Case(f"norm of {columns}", *work, 1, 1, norm_kernel, types, block, warps=8)]


def tile_decoder(tiles: int) -> list[Case]:
    """Both kernels of the tile decoder over ``tiles`` tiles of 64 KiB with 7.2 bits a value."""
    values, lanes = 1 << 16, 128
    rans_types = dict.fromkeys(("begin", "end", "coded", "values"), "*i64")
    rans_types |= {"units": "*u16", "slots": "*u32", "residuals": "*u8", "status": "*u32", "room": "i32", "slots_a_tile": "i32"}
    finish_types = {"residuals": "*u8", "sums": "*u32", "out": "*i8"}
    finish_types |= dict.fromkeys(("room", "rows", "columns", "tile_rows", "tile_columns"), "i32")
    shape = {"THREADS": 32, "EACH": lanes // 32, "UNIT_BITS": 16, "LOWER": LOWER[16], "TOUCH": False}
    return [
        Case(
            f"rANS, {tiles} tiles", int(tiles * values * 7.2 / 8), tiles * values, tiles,
            values // lanes - 2, rans_kernel, rans_types, shape, warps=1,
        ),
        Case(
            f"predictor and checksum, {tiles} tiles", tiles * values, tiles * values, tiles, 16,
            finish_kernel, finish_types, {"PREDICTOR": 0, "HEIGHT": 16, "WIDTH": 256},
        ),
    ]  # fmt: skip
