"""Where fewer bytes win: weights that come over a link at every pass, as tiles and as plain INT8."""

import numpy as np
import pandas as pd

import kit.codec
from kit.lab import figures, measure
from kit.lab.machine import usable_cores

LINKS = {"SATA disk": 0.55, "NVMe disk, PCIe 4.0 x4": 7.0, "PCIe 5.0 x16": 55.0}  # usable GB/s, rounded


def decoder_gbps(file) -> float:
    """GB/s of INT8 values that the simd decoder gives on all cores, over the largest matrix of a compressed model."""
    largest = max(file.matrices.values(), key=lambda matrix: matrix.nbytes)
    out = np.empty(largest.shape, np.int8)
    timed = measure.time(lambda: kit.codec.decode(largest.tiles, "simd", out, usable_cores()), samples=5)
    return out.nbytes / timed.median / 1e9


def passes(total: int, ratio: float, decoder: float) -> pd.DataFrame:
    """Seconds for one pass over ``total`` INT8 bytes that come over a link, plain and compressed to ``ratio``. Compressed, a
    pass takes the longer of the bytes over the link and unpacking at ``decoder`` GB/s: the two overlap."""
    speeds = np.geomspace(0.1, 100, 61)
    plain = total / (speeds * 1e9)
    packed = np.maximum(ratio * plain, total / (decoder * 1e9))
    table = pd.DataFrame({"plain INT8, s": plain, "compressed, s": packed, "gain": plain / packed})
    return table.set_index(pd.Index(speeds, name="GB/s"))


def figure(table: pd.DataFrame, ratio: float, decoder: float):
    """How much faster compressed weights stream than plain ones, by the speed of the link."""
    drawn, axes = figures.new()
    axes.plot(table.index, table["gain"], label="compressed over plain INT8")
    figures.bound(axes, 1 / ratio, f"bytes saved: at most {1 / ratio:.2f}x")
    axes.axhline(1, color="#888888", linewidth=0.8)
    figures.bound(axes, decoder, f"unpacking one matrix, all cores: {decoder:.1f} GB/s", vertical=True)
    for color, (name, speed) in zip((figures.ORANGE, figures.GREEN, figures.PURPLE), LINKS.items(), strict=True):
        axes.axvline(speed, color=color, linewidth=1.5, label=f"{name}, {speed:g} GB/s")
    figures.log(axes, "x")
    axes.set(title="Fewer bytes pay where the link is slower than the decoder", xlabel="link, GB/s")
    axes.set(ylabel="speed-up", ylim=(0, 1.3))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    return drawn
