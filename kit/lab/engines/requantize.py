"""A model's matrices in another ggml format: dequantized, and quantized again by llama.cpp's own quantizer, else by gguf-py."""

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
from tqdm import tqdm

from kit.errors import QuantError, known
from kit.gguf.formats import FORMATS
from kit.gguf.metadata import encoded_pairs
from kit.gguf.reader import GGUFFile, TensorInfo
from kit.gguf.writer import header, padded
from kit.lab.engines import llama_cpp
from kit.lab.progress import say
from kit.quants.registry import dequantize
from kit.system import usable_cores
from kit.system.files import check_output, replacing

_PIECE = 1 << 22  # weights that are in float32 at once, of each thread
_SHORT_ROWS = {  # what llama.cpp takes where a row is no multiple of 256 weights
    "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
# Matrices that llama.cpp never quantizes: small, and a little error changes a choice, a mask or a scale of all that follows.
_KEPT = re.compile(
    r"_norm\.weight$|ffn_gate_inp\.weight$|ffn_gate_tid2eid|altup|laurel|per_layer_model_proj|position_embd|token_types|ssm_conv1d"
    r"|shortconv\.conv|indexer\.[kq]_proj|attn_rel_b|time_mix_(first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)"
)
FROM_SHELF = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")  # gguf-py quantizes to these
BY_LLAMA_CPP = (*FROM_SHELF, "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS")  # without an importance matrix


def targets() -> tuple[str, ...]:
    """The formats to which this machine can quantize."""
    return BY_LLAMA_CPP if llama_cpp.available() else FROM_SHELF


def requantize(file: GGUFFile, qtype: str, path: Path, progress: bool = False) -> Path:
    """Write ``path``: every matrix of ``file`` in ``qtype``, or, where its rows do not divide into blocks, in what llama.cpp
    takes then; vectors and metadata as they are. Whole or not at all.

    What the file has lost stays lost: its weights count as the exact ones. QuantError for a format that cannot be written, a
    big-endian or a compressed file.
    """
    known("format to quantize to", qtype, dict.fromkeys(targets()), QuantError)
    if file.byteorder == "big" or file.compressed:
        kind = "big-endian" if file.byteorder == "big" else "compressed"
        raise QuantError(f"{file.path}: is {kind}: name the little-endian GGUF file from which it was made")
    check_output(path, file.paths, QuantError)
    specs = [TensorInfo.new(info.name, _target(info, qtype), info.shape) for info in file.tensors.values()]
    pairs = encoded_pairs(file.path, np.memmap(file.path, np.uint8, "r"), ("split.", "general.file_type"))
    head = header({}, specs, pairs, file.alignment)
    size = len(head) + sum(padded(spec.nbytes, file.alignment) for spec in specs)
    if progress:
        say(f"quantizing to {qtype}: {path.name}")
    bar = tqdm(total=size, desc=path.name, unit="B", unit_scale=True, disable=None if progress else True)
    with replacing(path, size) as out, ThreadPoolExecutor(usable_cores()) as pool, bar:
        out.write(head)
        for spec, info in zip(specs, file.tensors.values(), strict=True):
            blocks = file.blocks(info.name)
            for piece in [blocks] if spec.qtype == info.qtype else pool.map(_again, *_pieces(blocks, info, spec)):
                out.write(np.ascontiguousarray(piece).data)
            out.write(bytes(-spec.nbytes % file.alignment))
            bar.update(spec.nbytes)
    return path


def _target(info: TensorInfo, qtype: str) -> str:
    kept = not info.name.endswith("weight") or _KEPT.search(info.name)
    if kept or len(info.shape) < 2 or not info.elements or not info.is_known or info.shape[-1] % 32:
        return info.qtype
    return qtype if info.shape[-1] % FORMATS[qtype].block_elements == 0 else _SHORT_ROWS[qtype]


def _pieces(blocks: np.ndarray, info: TensorInfo, spec: TensorInfo):
    rows = blocks.reshape(-1, blocks.shape[-1])
    step = max(1, _PIECE // info.shape[-1])
    parts = [rows[start : start + step] for start in range(0, len(rows), step)]
    return parts, [info.qtype] * len(parts), [spec.qtype] * len(parts)


def _again(rows: np.ndarray, source: str, target: str) -> np.ndarray:
    """Rows of blocks in another format, (rows, bytes of a row) uint8."""
    values = dequantize(rows, source).numpy()
    if not llama_cpp.available():
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[target])
    out = np.empty((len(values), FORMATS[target].nbytes(values.shape[1])), np.uint8)
    quantize, pointer = llama_cpp.library().ggml_quantize_chunk, ctypes.c_void_p
    quantize.restype, sizes = ctypes.c_size_t, map(ctypes.c_int64, (0, *values.shape))
    quantize(FORMATS[target].id, pointer(values.ctypes.data), pointer(out.ctypes.data), *sizes, None)
    return out
