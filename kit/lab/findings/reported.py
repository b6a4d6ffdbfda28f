"""The set-up of the reports as numbers: their models by geometry, the machine of 000 to 003 by its maker's figures."""

from functools import cache
from math import prod
from types import SimpleNamespace

import pandas as pd

from kit.gguf.uses import Use, bytes_used, uses_of
from kit.lab.claims import table as claims
from kit.lab.claims.judge import judge
from kit.lab.claims.records import Record
from kit.lab.measuring.machine import peaks
from kit.lab.predicting.attention import attention_flops
from kit.lab.predicting.order import Kind
from kit.lab.predicting.ways import UsedTensor
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.units import format_bytes

MODEL = "granite-3.3-8b"
MACHINE = "apple-m4"
WIDTHS = {"float32": 4.0, "float16": 2.0, "int8": 1.0}  # bytes a weight; the file's blocks have their own


@cache
def elements(model: str = MODEL) -> int:
    """Weights of a whole model."""
    return sum(tensor.elements for tensor in GEOMETRIES[model].tensors())


@cache
def uses(model: str = MODEL) -> tuple[Use, ...]:
    """What a token uses of the model's Q4_K_M file."""
    tensors = {spec.name: spec for spec in GEOMETRIES[model].tensors("Q4_K_M")}
    architecture = GEOMETRIES[model].architecture
    return tuple(uses_of(SimpleNamespace(architecture=architecture, metadata={}, tensors=tensors)))


def tensors() -> dict[str, UsedTensor]:
    """Name -> UsedTensor of the tensors that a token uses of their Q4_K_M file, in order."""
    specs = {spec.name: spec for spec in GEOMETRIES[MODEL].tensors("Q4_K_M")}
    return {use.name: UsedTensor(Kind(specs[use.name].qtype, specs[use.name].shape), use.nbytes) for use in uses()}


def float32_bytes() -> int:
    """Bytes that a token reads of the reports' model dequantized to float32: 30.44 GiB, all of it."""
    return int(bytes_used(uses(), 4))


def block_bytes(model: str = MODEL) -> int:
    """Bytes that a token reads of a model as its file, Q4_K_M, holds it."""
    return int(bytes_used(uses(model)))


def machine() -> pd.Series:
    """The reports' machine (a row of data/devices.yaml): read_gbps, memory_bytes, source."""
    return peaks().set_index("id").loc[MACHINE]


def least_seconds(nbytes: float) -> float:
    """Seconds in which the reports' machine can read so many bytes once."""
    return nbytes / (machine()["read_gbps"] * 1e9)


def speed(claim: str, nbytes: int, weights: str = "float32") -> Record:
    """The verdict on claimed tokens per second of their model, by its ``nbytes`` in ``weights`` and their bandwidth."""
    device, goal = machine(), claims.get(claim).after
    return judge(
        claim, f"tokens a second of {MODEL} from {weights} at the reports' bandwidth", "tok/s", how="computed",
        text=f"{goal:g} tok/s would read {goal * nbytes / 1e12:.1f} TB/s; their machine reads {device['read_gbps'] / 1000:.2f}",
        accept=(goal, None),
        at_most=(1 / least_seconds(nbytes),
                 f"{format_bytes(nbytes)} per token, {device['read_gbps']} GB/s: {device['source']}"),
    )  # fmt: skip


def least_by_width() -> pd.Series:
    """The least seconds per token of their model on their machine, by what a weight is kept as."""
    sizes = {width: bytes_ * elements() for width, bytes_ in WIDTHS.items()} | {"blocks of the file": block_bytes()}
    return pd.Series({width: least_seconds(nbytes) for width, nbytes in sizes.items()})


def attention_share(positions: int) -> float:
    """Of a token's floating-point operations those of attention, after so many positions."""
    config = GEOMETRIES[MODEL].config()
    flops = sum(attention_flops(config, positions, layer) for layer in range(len(config.layers)))
    return flops / (flops + 2 * sum(use.elements for use in uses(MODEL) if not use.is_rows))


def least_tokens(seconds_a_tile: float = 0.001) -> tuple[float, float]:
    """(seconds of the first token, of a later one) by report 004's own figures where they are best: 1 to 5 ms per tile of 256
    by 256 values, and a cache that keeps the 20 largest layers of TinyLlama 1.1B."""
    shapes = {tensor.name: tensor.shape for tensor in GEOMETRIES["tinyllama-1.1b"].tensors("Q4_K_M") if len(tensor.shape) == 2}
    tiles = [prod(-(-size // 256) for size in shape) for name, shape in shapes.items() if name != "token_embd.weight"]
    return seconds_a_tile * sum(tiles), seconds_a_tile * sum(sorted(tiles)[:-20])
