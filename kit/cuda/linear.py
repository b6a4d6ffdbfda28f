"""Linear layers on a CUDA device: from blocks for a few tokens, by dequantizing and a matrix product for many."""

import torch
import triton

from kit.cuda.dequantize import STORED_FLOATS, run
from kit.cuda.formats import constants_of, table_of
from kit.cuda.gemv import PLANES, STEP_WORDS, blocks_kernel, floats_kernel, norm_kernel, pack_kernel, rows_of_a_program
from kit.errors import QuantError
from kit.gguf.formats import FORMATS

FUSED_TOKENS = 8  # for more tokens, dequantizing and a matrix product are faster
_STORED = STORED_FLOATS | {"I8": torch.int8}  # weights stored as numbers; the caller applies the scales of I8


def linear(blocks: torch.Tensor, qtype: str, x: torch.Tensor) -> torch.Tensor:
    """x (tokens, in) float32 -> (tokens, out) float32 for the matrix in ``blocks`` (out, bytes of a row), uint8.

    For up to FUSED_TOKENS tokens the blocks are read once and no dequantized weights are stored; more tokens take a float32
    matrix and one product. |x| must be below 2^32. Raises QuantError for a format without a kernel, and for an x that does
    not fit the rows.
    """
    _check(blocks, qtype, x.shape[1])
    return apply(blocks, qtype, pack_activations(x))


def pack_activations(x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
    """x (tokens, in) float32, or x * silu(gate), in the form that ``apply`` takes: planes (tokens, 5, words) for up to
    FUSED_TOKENS tokens, else a tensor (tokens, in)."""
    if len(x) > FUSED_TOKENS:
        return x if gate is None else x * torch.nn.functional.silu(gate)
    planes, words = _planes(x), x.shape[1] // 4
    padded = planes.shape[2]
    grid, other = (padded // STEP_WORDS, len(x)), x if gate is None else gate
    pack_kernel[grid](x, other, planes, words, padded, SWIGLU=gate is not None, BLOCK=STEP_WORDS, num_warps=4)
    return planes


def pack_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm(x) * weight in the form that ``apply`` takes; x (tokens, in) and weight (in,) float32."""
    if len(x) > FUSED_TOKENS:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    planes, words = _planes(x), x.shape[1] // 4
    padded = planes.shape[2]
    norm_kernel[(len(x),)](x, weight, planes, words, padded, eps, BLOCK=triton.next_power_of_2(padded), num_warps=8)
    return planes


def _planes(x):
    return torch.empty(len(x), PLANES, _padded(x.shape[1]), dtype=torch.float32, device=x.device)


def _padded(columns):
    return triton.cdiv(columns // 4, STEP_WORDS) * STEP_WORDS


def apply(blocks: torch.Tensor, qtype: str, packed: torch.Tensor, add_to=None, factor: float = 1.0) -> torch.Tensor:
    """W x from ``pack_activations(x)``, (tokens, out) float32; or ``add_to + factor * W x``, written to ``add_to``."""
    if packed.ndim == 2:
        _check(blocks, qtype, packed.shape[1])
        y = packed @ _dequantized(blocks, qtype).T
        return y if add_to is None else add_to.add_(y, alpha=factor)
    format = FORMATS[qtype]
    blocks_a_row, words = blocks.shape[1] // format.block_bytes, packed.shape[2]
    columns = blocks_a_row * format.block_elements
    if _padded(columns) != words:
        raise QuantError(f"x with {4 * words} columns (padded) does not match rows of {columns} weights of {qtype}")
    tokens, rows = len(packed), len(blocks)
    full = triton.next_power_of_2(tokens)
    if full > tokens:  # kernels take a power of two of tokens
        zeros = packed.new_zeros(full - tokens, *packed.shape[1:])
        y = apply(blocks, qtype, torch.cat([packed, zeros]))[:tokens]
        return y if add_to is None else add_to.add_(y, alpha=factor)
    out = torch.empty(tokens, rows, dtype=torch.float32, device=blocks.device) if add_to is None else add_to
    at_once = rows_of_a_program(format, rows, tokens)
    shared = dict(TOKENS=tokens, ROWS=at_once, ADD=add_to is not None, num_warps=4)
    grid = (triton.cdiv(rows, at_once),)
    if qtype in _STORED:
        weight = blocks.view(_STORED[qtype])
        floats_kernel[grid](weight, packed, out, rows, columns // 4, factor, CHUNK=STEP_WORDS, **shared)
        return out
    blocks_kernel[grid](
        blocks, table_of(format, blocks.device), packed, out, rows, blocks_a_row, factor,
        CHUNK=4 * STEP_WORDS // format.block_elements, **constants_of(format), **shared,
    )  # fmt: skip
    return out


def _dequantized(blocks, qtype):
    if qtype == "I8":
        return blocks.view(torch.int8).float()
    format = FORMATS[qtype]
    columns = blocks.shape[1] // format.block_bytes * format.block_elements
    weight = torch.empty(len(blocks), columns, dtype=torch.float32, device=blocks.device)
    run(blocks.contiguous(), format, weight)
    return weight


def _check(blocks, qtype, columns):
    known = [name for name, format in FORMATS.items() if format.codes or name in _STORED]
    if qtype not in known:
        raise QuantError(f"there is no GPU linear layer for {qtype}; choose one of {', '.join(known)}")
    format = FORMATS[qtype]
    if columns % format.block_elements or format.nbytes(columns) != blocks.shape[1] or columns % 4:
        raise QuantError(f"x with {columns} columns does not match rows of {blocks.shape[1]} bytes of {qtype}")
