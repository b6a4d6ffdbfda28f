"""Dequantize 200 MB: the kit compared with ggml's own code, gguf-py and a non-temporal fill, on as many threads."""

import ctypes
import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

import kit
from kit.cpu import threads
from kit.cpu.simd.memory import fence, stream
from kit.cpu.simd.vectors import broadcast, f32x16
from kit.cpu.tasks import task
from kit.gguf.formats import FORMATS
from kit.lab.exactness import random_blocks
from kit.lab.measuring import measure
from kit.quants import reference

ROWS, COLUMNS = 12288, 4096  # 201 MB of float32
COMMON = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0")
# At least, and hoped for: times ggml, times gguf-py, share of the fill.
GOALS = {name: {"ggml": (1.6, 2.2), "gguf_py": (25, 25), "fill": (0.8, 0.95)} for name in COMMON}
OTHER = {"gguf_py": (40, 40), "fill": (0, 0.6)}


def run(only: str = "", samples: int = 7) -> pd.DataFrame:
    """One row for each format and dtype: GB/s of output, and median ratios of alternating samples.

    only: formats whose name contains this. of_fill: share of the fill's speed, with its interval. bytes_allow: that share
    if blocks were read as fast as the fill writes. of_traffic: of_fill over bytes_allow. missed: the least goals that the
    format does not reach.
    """
    out = torch.ones(ROWS, COLUMNS)
    rows = []
    for name in filter(lambda name: only in name, [*COMMON, *sorted(reference.FORMATS - set(COMMON))]):
        blocks = _blocks(name)
        rows.append(_row(name, "float32", blocks, out, samples))
        if name in COMMON:
            halves = out.view(torch.float16)[: ROWS // 2].view(ROWS, COLUMNS)
            rows += [_row(name, kind, blocks, halves.view(getattr(torch, kind)), samples) for kind in ("float16", "bfloat16")]
    return pd.DataFrame(rows).set_index(["format", "dtype"])


def _row(name, dtype, blocks, out, samples) -> dict:
    def ours():
        kit.dequantize(blocks, name, dtype, out=out)

    filled = measure.compare(ours, lambda: _fill(out), samples, min_sample=0)
    (low, high), allowed = measure.interval_of(filled.ratios()), out.nbytes / (out.nbytes + blocks.nbytes)
    row = {"format": name, "dtype": dtype, "gbps": out.nbytes / filled.median("a") / 1e9}
    row |= {"fill_gbps": out.nbytes / filled.median("b") / 1e9, "of_fill": filled.ratio, "bytes_allow": allowed}
    row |= {"of_traffic": filled.ratio / allowed, "what": f"{name} to {dtype}, of the fill"}
    least, hoped = (0.8, 0.95) if dtype == "float32" else (0.85, 0.95)
    row |= {"ratio": filled.ratio, "low": low, "high": high, "least": least, "hoped": hoped}
    row["why"] = f"the blocks are read, too: bytes allow {allowed:.2f}"
    if dtype == "float32":
        peers = {"ggml": _ggml(name, blocks, out), "gguf_py": _gguf_py(name, blocks)}
        for peer, theirs in peers.items():
            if theirs:
                paired = measure.compare(ours, theirs, samples if peer == "ggml" else 3, min_sample=0)
                row |= {f"{peer}_gbps": out.nbytes / paired.median("b") / 1e9, f"times_{peer}": paired.ratio}
        row["missed"] = ", ".join(_missed(GOALS.get(name, OTHER), row))
    return row


def _missed(goals: dict, row: dict):
    """The least goals that a row misses; marks those that even the fill would miss, because the peer is so fast."""
    for against, (least, _) in goals.items():
        reached = row.get("of_fill" if against == "fill" else f"times_{against}", np.inf)
        if reached < least:
            most = 1 if against == "fill" else row["fill_gbps"] / row[f"{against}_gbps"]
            yield f"{against} {reached:.2f} < {least}" + (f" (the fill: {most:.1f})" if most < least else "")


def _blocks(name: str) -> np.ndarray:
    """(ROWS, bytes of a row) uint8 of random blocks, with repetitions."""
    count = ROWS * COLUMNS // FORMATS[name].block_elements
    some = random_blocks(name, min(count, 2**20))
    return np.resize(some, (count, some.shape[1])).reshape(ROWS, -1)


# ---- the machine and the peers


_PART = 2**20  # bytes of the result that a thread of kit.cpu.threads takes at a time, here and for ggml: the kit's own way
i64 = types.int64


def _fill_part(task, out, nbytes):
    x, first = broadcast(f32x16, 1.5), out + task * _PART
    for at in range(first, min(out + nbytes, first + _PART), 64):
        stream(at, x)
    fence()


@task
def _filler():
    return _fill_part


def _fill(out: torch.Tensor) -> None:
    """Fill by non-temporal stores; not with zeros, which some CPUs write at twice the speed of memory."""
    threads.run(_filler(), (out.data_ptr(), out.nbytes), -(-out.nbytes // _PART))


@intrinsic
def _call_row(_, function, source, target, count):
    """A C function at an address: void (const void *, float *, int64_t)."""

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[i64] * 4), emit


def _rows_part(task, function, blocks, out, row_bytes):
    rows = _PART // (4 * COLUMNS)
    _call_row(function, blocks + task * rows * row_bytes, out + task * _PART, rows * COLUMNS)


@task
def _caller():
    return _rows_part


def _ggml(name: str, blocks: np.ndarray, out: torch.Tensor):
    """ggml's dequantize_row of a format on the kit's threads; None where xllamacpp is not installed."""
    package = importlib.util.find_spec("xllamacpp")
    if package is None:
        return None
    library = ctypes.CDLL(str(next(Path(package.origin).parent.glob("*.so"))))
    lower = name.lower()
    row = getattr(library, f"dequantize_row_{lower[:-1]}K" if name.endswith("_K") else f"dequantize_row_{lower}", None)
    if row is None:  # the plain floats
        return None
    arguments = ctypes.cast(row, ctypes.c_void_p).value, blocks.ctypes.data, out.data_ptr(), blocks.strides[0]
    return lambda: threads.run(_caller(), arguments, out.nbytes // _PART)


def _gguf_py(name: str, blocks: np.ndarray):
    if name == "F32":  # a view: no work to compare with
        return None
    qtype = gguf.GGMLQuantizationType[name]

    def theirs():
        with np.errstate(all="ignore"):  # random scales may overflow
            gguf.quants.dequantize(blocks, qtype)

    return theirs
