"""What blocks and products of quantized matrices must be: float64 arithmetic, with the activations that the accuracy sees."""

import gguf
import llama_cpp
import numpy as np

from kit.gguf.formats import FORMATS
from kit.quants import reference

NAMES = sorted(reference.FORMATS | {"Q1_0", "Q2_0"})  # those of gguf-py, and those that only llama.cpp dequantizes


def truth(blocks, qtype: str):
    """float32 numbers of (count, bytes of a block) uint8 by gguf-py or llama.cpp, without any of the kit's code."""
    if qtype not in reference.FORMATS:
        return llama_cpp.dequantized(blocks, FORMATS[qtype].id)
    with np.errstate(all="ignore"):
        rows = gguf.quants.dequantize(blocks.reshape(1, -1), gguf.GGMLQuantizationType[qtype])
    return rows.reshape(len(blocks), -1).astype(np.float32)


def check(qtype: str, y, w, x, accuracy: str, fine: bool = False) -> None:
    """``y`` (tokens, rows) float32 for ``w`` (rows, columns) float64 and ``x`` (tokens, columns) float32, as both accuracies
    claim: of arithmetic, to float32; of int8 and int16, that each x is off by half a step at most. ``fine``: 32 of a prompt's
    eight bits share a scale, in every format."""
    y = y.astype(np.float64)
    if accuracy == "float32" or not FORMATS[qtype].codes:
        assert relative_rms(y, x.astype(np.float64) @ w.T, w, x) < 1e-6, qtype
        return
    group = 32 if fine else FORMATS[qtype].activations
    seen, scale = rounded(x, *((group, 1) if accuracy == "int8" else (256, 256)))
    error = relative_rms(y, seen @ w.T, w, x)
    assert error < 3e-6 or (accuracy == "int16" and relative_rms(y, x.astype(np.float64) @ w.T, w, x) < 1e-6), qtype
    assert (np.abs(y - x @ w.T) <= scale / 2 @ np.abs(w).T * (1 + 1e-4)).all(), qtype


def rounded(x, group, parts=1):
    """(x rounded to int8 activations, or to ``parts`` of their steps, and the step of each), by numpy; ``group`` columns share
    a scale."""
    tokens, columns = x.shape
    units = np.zeros((tokens, -(-columns // 256) * 256), np.float32)
    units[:, :columns] = x
    units = units.reshape(tokens, -1, group)
    largest = np.abs(units).max(-1, keepdims=True)
    codes = np.rint(units * (np.float32(127) / np.where(largest > 0, largest, np.float32(1))) * np.float32(parts))
    scale = np.broadcast_to(largest / np.float32(127 * parts), units.shape)
    assert np.abs(codes).max() <= 127 * parts
    flat = lambda array: array.reshape(tokens, -1)[:, :columns].astype(np.float64)  # noqa: E731
    return flat(codes) * flat(scale), flat(scale)


def relative_rms(y, right, w, x):
    """RMS of the error over the expected RMS of the sum, for products of random signs."""
    return np.sqrt(((y - right) ** 2).mean() / ((x.astype(np.float64) ** 2) @ (w**2).T).mean())
