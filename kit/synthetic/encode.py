"""Quantize float32 weights into the blocks of the formats that the synthetic models use.

Plain round-to-nearest: enough for random weights; llama.cpp searches for better scales.
"""

import gguf
import numpy as np

from kit.gguf.formats import FORMATS


def encode(values: np.ndarray, qtype: str) -> np.ndarray:
    """Blocks of ``values`` (float32, (..., a multiple of 256)), uint8 with the last axis as bytes."""
    if qtype in _ENCODERS:
        blocks = _ENCODERS[qtype](values.reshape(-1, 256))
        return blocks.view(np.uint8).reshape(*values.shape[:-1], -1)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[qtype]).view(np.uint8)


def _q4_k(values: np.ndarray) -> np.ndarray:
    """x = d * sc * q - dmin * m: 8 sub-blocks of 32 with 6-bit ``sc`` and ``m``, 4-bit q."""
    x = values.reshape(-1, 8, 32)
    low = np.maximum(-x.min(-1), 0)  # what is subtracted, per sub-block
    step = (x.max(-1) + low) / 15
    d, sc = _six_bits(step)
    dmin, m = _six_bits(low)
    scale, minimum = d[:, None] * sc, dmin[:, None] * m
    q = np.rint((x + minimum[..., None]) / np.maximum(scale, 1e-30)[..., None]).clip(0, 15).astype(np.uint8)

    block = np.empty(len(x), FORMATS["Q4_K"].layout)
    block["d"], block["dmin"] = d, dmin
    block["scales"][:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    block["scales"][:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    block["scales"][:, 8:12] = (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    pairs = q.reshape(-1, 4, 2, 32)  # sub-blocks 2i and 2i + 1 share 32 bytes
    block["qs"] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return block


def _six_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``values`` (blocks, 8), none negative, as a float16 scale a block and 6-bit multiples of it."""
    scale = (values.max(-1) / 63).astype(np.float16).astype(np.float32)
    multiples = np.rint(values / np.maximum(scale, 1e-30)[:, None]).clip(0, 63).astype(np.uint8)
    return scale, multiples


def _q6_k(values: np.ndarray) -> np.ndarray:
    """x = d * scale * (q - 32): 16 sub-blocks of 16 with 8-bit scales, 6-bit q as 4 low and 2 high bits."""
    x = values.reshape(-1, 16, 16)
    step = np.abs(x).max(-1) / 31
    d = (step.max(-1) / 127).astype(np.float16).astype(np.float32)
    scales = np.rint(step / np.maximum(d, 1e-30)[:, None]).clip(1, 127).astype(np.int8)
    unit = np.maximum(d[:, None] * scales, 1e-30)
    q = (np.rint(x / unit[..., None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)

    block = np.empty(len(x), FORMATS["Q6_K"].layout)
    block["d"], block["scales"] = d, scales
    low, high = q & 15, q >> 4
    block["ql"] = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    block["qh"] = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    return block


_ENCODERS = {"Q4_K": _q4_k, "Q6_K": _q6_k}
