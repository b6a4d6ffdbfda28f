"""The memory frontier of a device: seconds a token against the bytes of blocks that its memory holds, the rest on the bus."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

import kit
from kit.findings import reported
from kit.findings.live import Live
from kit.findings.n03_cache_variants.device import bounds, decode, matrices
from kit.findings.n04_attention.device import blocks_read, check_room, whole_blocks
from kit.lab import figures, tables
from kit.lab.device import Limits
from kit.units import format_bytes, format_seconds

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the matrices' blocks
CURVE = np.linspace(0, 1, 41)


@dataclass(frozen=True)
class Point:
    """A pinned set of ``held`` bytes of blocks in device memory: what a token takes by the bandwidths, and measured."""

    held: int
    predicted: float
    live: Live

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds of each token after the first."""
        return self.live.seconds[1:]

    @property
    def seconds(self) -> float:
        """Their median."""
        return float(np.median(self.samples))


def predict(total: int, held: float, gpu: Limits) -> float:
    """Seconds a token: all ``total`` bytes read from device memory while those not ``held`` there cross the bus."""
    return bounds(gpu, total, max(0.0, total - held))[0]


def measure(file, gpu: Limits, tokens: int, shares=SHARES) -> list[Point]:
    """A decode through a pinned set of each share, the next tensor prefetched; predicted by what that set really held."""
    check_room(file)
    total, points = sum(matrices(file).values()), []
    for share in shares:
        policy = kit.Pinned(round(share * total)) if 0 < share < 1 else kit.HashMap() if share else kit.NoCache()
        live = decode(file, policy, f"{share:.0%} of the blocks", tokens + 1)
        read = blocks_read(file)
        missing = live.accesses[(live.accesses["token"] == tokens) & (live.accesses["outcome"] != "hit")]["nbytes"].sum()
        points.append(Point(live.held_bytes, bounds(gpu, read, float(missing))[0], live))
    return points


def table(points: list[Point]) -> pd.DataFrame:
    """One row a share: bytes held, seconds predicted by the bandwidths and measured, the error, tokens a second."""
    rows = [(point.live.label, point.held / 2**20, point.predicted, point.seconds, point.predicted / point.seconds - 1,
             1 / point.seconds) for point in points]  # fmt: skip
    return tables.frame(rows, "in device memory", "MiB held", "predicted, s", "measured, s", "error", "tok/s")


def plane(file, points: list[Point], gpu: Limits):
    """Seconds a token against bytes held: the prediction as a line, what was measured as rings."""
    figure, axes = figures.new()
    total = blocks_read(file)
    axes.plot(CURVE * total / 2**20, [predict(total, share * total, gpu) for share in CURVE], color=figures.BLUE,
              label="predicted: the longer of device memory and bus")  # fmt: skip
    axes.plot([point.held / 2**20 for point in points], [point.seconds for point in points], "o", markersize=8,
              markerfacecolor="none", color=figures.VERMILION, label="measured")  # fmt: skip
    figures.bound(axes, gpu.seconds_to_read(total), f"all blocks read once at {gpu.read_gbps:,.0f} GB/s")
    figures.log(axes, "y")
    axes.set(xlabel="MiB of blocks in device memory", ylabel="seconds a token", title=f"The frontier of {gpu.name}")
    axes.legend()
    return figure


def answer(memory: int, gpu: Limits, geometry: str = "granite-3.3-8b") -> str:
    """What to do with ``memory`` bytes of device memory, for the model of the reports, in two sentences."""
    total, decoded = whole_blocks(geometry), reported.f32_bytes(geometry)
    held = min(memory, total)
    inside, streamed, everything = (predict(total, share, gpu) for share in (held, 0, total))
    return (
        f"{geometry} with {format_bytes(memory)} of {gpu.name}: {held / total:.0%} of its {format_bytes(total)} of blocks "
        f"stay, and a token takes at least {format_seconds(inside)}, {streamed / inside:.1f} times less than with none "
        f"there. With all of them there it is {format_seconds(everything)}; dequantized to f32 they would need "
        f"{format_bytes(decoded)} and take at least {format_seconds(gpu.seconds_to_read(decoded))}."
    )


def record(lab, points: list[Point]) -> None:
    """A record of every share, and one of the prediction's error."""
    for point in points:
        lab.record(
            quantity=f"a token on the device, {point.live.label} in its memory", unit="s", samples=list(point.samples),
            lower=point.predicted, lower_source="the longer of device memory and bus, at measured bandwidths",
            device=lab.device, reason=f"{format_bytes(point.held)} held; predicted {format_seconds(point.predicted)}",
        )  # fmt: skip
    lab.record(
        quantity="predicted over measured seconds a token, on the device", unit="x", device=lab.device,
        samples=[point.predicted / point.seconds for point in points], upper=1.0,
        upper_source="the prediction is a bound: launches and waiting come on top",
    )  # fmt: skip
