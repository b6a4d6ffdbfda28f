"""The memory frontier of a device: seconds a token against the bytes of blocks that its memory holds, the rest on the bus."""

import numpy as np
import pandas as pd

import kit
from kit.findings import reported
from kit.findings.caches_on_device import bounds, decode, matrices
from kit.findings.decode_on_device import blocks_read, check_room, whole_blocks
from kit.lab import figures, tables
from kit.lab.device import Limits
from kit.units import format_bytes, format_seconds

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the matrices' blocks
CURVE = np.linspace(0, 1, 41)


def predict(total: int, held: float, gpu: Limits) -> float:
    """Seconds a token: all ``total`` bytes read from device memory while those not ``held`` there cross the bus."""
    return bounds(gpu, total, max(0.0, total - held))[0]


def measure(file, gpu: Limits, tokens: int, shares=SHARES) -> pd.DataFrame:
    """A decode through a pinned set of each share, the next tensor prefetched, one row a share. MiB held; seconds a token
    predicted by what that set really held, and measured: the median of the ``samples`` after the first token; the error, tokens
    a second."""
    check_room(file)
    total, read, rows = sum(matrices(file).values()), blocks_read(file), []
    for share in shares:
        policy = kit.Pinned(round(share * total)) if 0 < share < 1 else kit.HashMap() if share else kit.NoCache()
        live = decode(file, policy, passes=tokens + 1)
        missing = live.accesses[(live.accesses["token"] == tokens) & (live.accesses["outcome"] != "hit")]["nbytes"].sum()
        predicted, samples = bounds(gpu, read, float(missing))[0], live.seconds[1:]
        real = float(np.median(samples))
        label = f"{share:.0%} of the blocks"
        rows.append((label, live.held_bytes / 2**20, predicted, real, predicted / real - 1, 1 / real, samples))
    names = ("in device memory", "MiB held", "predicted, s", "measured, s", "error", "tok/s", "samples")
    return tables.frame(rows, *names)


def plane(file, points: pd.DataFrame, gpu: Limits):
    """Seconds a token against bytes held: the prediction as a line, what was measured as rings."""
    figure, axes = figures.new()
    total = blocks_read(file)
    axes.plot(CURVE * total / 2**20, [predict(total, share * total, gpu) for share in CURVE], color=figures.BLUE,
              label="predicted: the longer of device memory and bus")  # fmt: skip
    axes.plot(points["MiB held"], points["measured, s"], "o", ms=8, mfc="none", color=figures.VERMILION, label="measured")
    figures.bound(axes, gpu.seconds_to_read(total), f"all blocks read once at {gpu.read_gbps:,.0f} GB/s")
    figures.log(axes, "y")
    axes.set(xlabel="MiB of blocks in device memory", ylabel="seconds a token")
    axes.set_title(f"On {gpu.name} a block that stays saves its way over the bus")
    axes.legend()
    return figure


def answer(memory: int, gpu: Limits, geometry: str = "granite-3.3-8b") -> str:
    """What to do with ``memory`` bytes of device memory, for the model of the reports, in two sentences."""
    total, dequantized = whole_blocks(geometry), reported.f32_bytes(geometry)
    held = min(memory, total)
    inside, streamed, everything = (predict(total, share, gpu) for share in (held, 0, total))
    return (
        f"{geometry} with {format_bytes(memory)} of {gpu.name}: {held / total:.0%} of its {format_bytes(total)} of blocks "
        f"stay, and a token takes at least {format_seconds(inside)}, {streamed / inside:.1f} times less than with none "
        f"there. With all of them there it is {format_seconds(everything)}; dequantized to f32 they would need "
        f"{format_bytes(dequantized)} and take at least {format_seconds(gpu.seconds_to_read(dequantized))}."
    )


def record(lab, points: pd.DataFrame) -> None:
    """A record of every share, and one of the prediction's error."""
    for label, point in points.iterrows():
        lab.record(
            quantity=f"a token on the device, {label} in its memory", unit="s", samples=list(point["samples"]),
            lower=point["predicted, s"], lower_source="the longer of device memory and bus, at measured bandwidths",
            device=lab.device, reason=f"{point['MiB held']:.0f} MiB held; predicted {format_seconds(point['predicted, s'])}",
        )  # fmt: skip
    lab.record(
        quantity="predicted over measured seconds a token, on the device", unit="x", device=lab.device,
        samples=list(points["predicted, s"] / points["measured, s"]), upper=1.0,
        upper_source="the prediction is a bound: launches and waiting come on top",
    )  # fmt: skip
