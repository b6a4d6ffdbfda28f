"""exactness: compare dequantized numbers with those of gguf-py, for every format, backend, tier and dtype."""

import itertools
from collections import Counter

import numpy as np
import pandas as pd
import torch

from kit.cpu import simd
from kit.cpu.linear import linear
from kit.errors import QuantError
from kit.gguf.foreign import check_blocks
from kit.gguf.formats import DTYPES, FORMATS
from kit.lab.progress import steps
from kit.products import PRODUCTS
from kit.quants import reference
from kit.quants.registry import dequantize, dtype_named

_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_BLOCKS = 64
_PROMPT = 5  # rows of activations in a fused product


def exactness(qtypes=None, backends=("cpu",), dtypes=tuple(DTYPES), tiers=(None,), blocks=None, progress=False) -> pd.DataFrame:
    """One row for each format, backend, tier and dtype: whether it equals the reference, and the largest error.

    qtypes: names, by default all of ``blocks``, or all that gguf-py can dequantize. tiers: of the cpu backend
    (kit.cpu.simd.available()); None is the current one. blocks: {name: uint8 array of whole blocks} to test on, by default
    random ones with finite scales.
    The reference is gguf-py's float32, rounded to nearest even by torch. For the backend "fused" the dtype column holds
    the type of its activations, and products with random activations are compared with products in float64.
    Columns: qtype, backend, tier, dtype, weights, equal (every bit, or both NaN), ulp (largest difference, counted in
    representable numbers), relative (largest difference over the largest weight or product).
    """
    rows = []
    qtypes = sorted(reference.FORMATS if blocks is None else blocks) if qtypes is None else qtypes
    for qtype in steps(qtypes, "compare", progress, "format"):
        data = random_blocks(qtype, _BLOCKS) if blocks is None else blocks[qtype]
        truth = dequantize(data, qtype, backend="reference")
        x = torch.randn(_PROMPT, truth.shape[-1], generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
        for backend, tier in itertools.product(backends, tiers):
            fused = backend == "fused"
            for dtype in PRODUCTS if fused else dtypes:
                with simd.using(tier) as current:
                    result = linear(data, qtype, x, dtype) if fused else dequantize(data, qtype, dtype, backend).cpu()
                    ran = current().value if backend in ("cpu", "fused") else ""
                right = (x.double() @ truth.double().T).float() if fused else truth.to(dtype_named(dtype))
                row = {"qtype": qtype, "backend": backend, "tier": ran, "dtype": dtype, "weights": truth.numel()}
                rows.append(row | _errors(result, right))
    return pd.DataFrame(rows)


def sample(file, rows: int) -> dict[str, np.ndarray]:
    """{format: (blocks, bytes of a block) uint8}: the first ``rows`` rows of every tensor of an open GGUF file.

    Tensors of a format that gguf-py cannot dequantize are left out; QuantError when none is left.
    """
    check_blocks(file)
    by_format = {}
    for name, info in file.tensors.items():
        if info.qtype in reference.FORMATS and info.elements:
            block_bytes = FORMATS[info.qtype].block_bytes
            row_bytes = FORMATS[info.qtype].nbytes(info.shape[-1] if info.shape else 1)
            by_format.setdefault(info.qtype, []).append(
                file.blocks(name).reshape(-1, row_bytes)[:rows].reshape(-1, block_bytes)
            )
    if not by_format:
        raise QuantError(f"{file.path}: no tensor of a format that can be dequantized")
    return {qtype: np.concatenate(blocks) for qtype, blocks in sorted(by_format.items())}


def not_compared(file) -> list[str]:
    """What ``sample`` leaves out of a file: each format with the number of its tensors."""
    counts = Counter(info.qtype for info in file.tensors.values() if info.qtype not in reference.FORMATS and info.elements)
    return [f"{qtype}, tensors: {count}" for qtype, count in sorted(counts.items())]


def random_blocks(qtype: str, count: int, seed: int = 0) -> np.ndarray:
    """(count, bytes of a block) uint8 of random bits, in which every floating-point number is finite."""
    format = FORMATS[qtype]
    blocks = np.random.default_rng(seed).integers(0, 256, (count, format.block_bytes), dtype=np.uint8)
    fields = blocks.view(format.layout)[:, 0]
    for name in format.layout.names:
        kind = format.layout[name]
        if kind.kind == "f" or qtype == "BF16":
            bits = 8 * kind.itemsize
            exponent = ~np.array(2 ** (bits - 2), f"u{kind.itemsize}")  # clears its highest bit
            fields[name].view(f"u{kind.itemsize}")[:] &= exponent
    if qtype == "IQ1_M":  # the same bit of a float16 scale whose bits are spread over four integers
        fields["scales"][:, 3] &= 0xBFFF
    if format.scales and format.scales.table == "E8M0":  # a byte that is only an exponent
        fields[format.scales.d] &= 0xBF
    return blocks


def _errors(result: torch.Tensor, truth: torch.Tensor) -> dict:
    same = (result == truth) & (result.signbit() == truth.signbit()) | result.isnan() & truth.isnan()
    if same.all():
        return {"equal": True, "ulp": 0, "relative": 0.0}
    steps = [_ordered(values[~same]) for values in (result, truth)]
    off = (result[~same].double() - truth[~same].double()).abs().nan_to_num(torch.inf).max()
    largest = max(truth[truth.isfinite()].double().abs().tolist(), default=0)
    return {"equal": False, "ulp": int((steps[0] - steps[1]).abs().max()), "relative": float(off) / (largest or 1)}


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats; neighboring floats differ by 1."""
    bits = values.view(_INTEGERS[values.dtype]).long()
    return torch.where(bits < 0, torch.iinfo(_INTEGERS[values.dtype]).min - bits, bits)
