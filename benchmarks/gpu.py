"""Triton kernels: bytes moved, operations, and the least time on an H200; times by events, L2 flushed, where there is a GPU.

The first session on a machine with a GPU is benchmarks/gpu_session.py.
"""

import click
import numpy as np
import pandas as pd
import torch

from benchmarks._gpu_codec import NOT_MEASURED, nvcomp_row, streaming_rows, tile_rows
from benchmarks._gpu_kernels import dequantizer, gemv, tile_decoder
from benchmarks.gpu_session import dequantize_seconds, device_blocks, device_model, product_seconds
from kit.gguf.formats import FORMATS
from kit.lab.measuring.machine import peaks
from kit.lab.synthetic.geometry import GEOMETRIES

_GEMV = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0")
_TILES = 4096
_TOKENS = 64


def run() -> pd.DataFrame:
    """One row a kernel, a stream, a model; "measured" is a time only on a CUDA device, and beside that device's bounds."""
    device = peaks().set_index("id").loc["h200"].to_dict()
    here = torch.cuda.is_available()
    if here:
        device |= _measured_device()
    else:
        click.echo("No GPU here: nothing below is measured. Times are lower bounds, computed for an H200 (data/devices.yaml).")
    cases = [(dequantizer(qtype, "bfloat16"), _dequantize) for qtype, format in FORMATS.items() if format.codes]
    cases += [(gemv(qtype, 4096, 12800), _multiply) for qtype in _GEMV] + [(gemv("Q4_K", 4096, 12800, 8), _multiply)]
    cases += [(case, None) for case in tile_decoder(_TILES)]
    rows = [_row(case, device, measure if here else None) for case, measure in cases]
    rows += (tiles := tile_rows(here)) + streaming_rows(device, here)
    rows += [_decode(name, device, here) for name in ("tinyllama-1.1b", "granite-3.3-8b")]
    rows.append(nvcomp_row(tiles, here))
    return pd.DataFrame(rows).set_index("kernel")


def _measured_device() -> dict:
    """The columns of data/devices.yaml of the device that is here; its clock is the nominal one."""
    from kit.lab.measuring.gpu import probe_device

    properties = torch.cuda.get_device_properties(0)
    return probe_device() | {"multiprocessors": properties.multi_processor_count, "clock_ghz": properties.clock_rate / 1e6}


def _row(case, device, measure) -> dict:
    """Instructions are those that all warps issue, times 32 threads, over what is counted."""
    compiled = case.compile()
    bounds = case.bounds(device, compiled)
    least = max(bounds.values())
    row = {
        "kernel": case.name, "read_MB": case.read / 1e6, "written_MB": case.written / 1e6, "MFLOP": case.flops / 1e6,
        "instructions": 32 * case.instructions(compiled) / case.count, "per": case.unit[:-1],
        "memory_us": bounds["memory"] * 1e6, "issue_us": bounds["issue"] * 1e6,
        "share_of_bandwidth_at_most": bounds["memory"] / least, "measured_us": NOT_MEASURED,
    }  # fmt: skip
    if measure:
        row["measured_us"] = measure(case) * 1e6
        row["share_of_bandwidth"] = row["memory_us"] / row["measured_us"]
    return row


def _dequantize(case) -> float:
    rows, columns = 4096, case.count // 4096
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
    return dequantize_seconds(device_blocks(qtype := case.name.split()[1], rows, columns), qtype, out)


def _multiply(case) -> float:
    qtype, rows, _, columns, tokens, _ = case.name.replace(",", "").split()
    return product_seconds(device_blocks(qtype, int(rows), int(columns)), qtype, int(tokens))


def _decode(name, device, here) -> dict:
    """One token at batch 1: every weight but the embedding's other rows is read once."""
    tensors = GEOMETRIES[name].tensors("Q4_K_M")
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    read = sum(
        FORMATS[tensor.qtype].nbytes(int(np.prod(tensor.shape)))
        for tensor in tensors
        if tied or tensor.name != "token_embd.weight"
    )
    seconds = read / device["read_gbps"] / 1e9
    row = {
        "kernel": f"decode {name}, {1 / seconds:.0f} tok/s at most", "read_MB": read / 1e6, "per": "token",
        "memory_us": seconds * 1e6, "measured_us": NOT_MEASURED,
    }  # fmt: skip
    if here:
        row["measured_us"] = _measured_decode(name) * 1e6
    return row


def _measured_decode(name) -> float:
    """Median seconds a token, from generate: CUDA graphs, sampling and the way to the host included."""
    import kit

    _, model = device_model(name)
    kit.generate(model, [1, 5, 9], max_tokens=4, stop_at_end=False)  # compiles and captures
    answer = kit.generate(model, [1, 5, 9], max_tokens=_TOKENS, stop_at_end=False)
    # the first token is the prompt's, the second captures this cache's graph
    return float(np.median(answer.seconds[2:]))
