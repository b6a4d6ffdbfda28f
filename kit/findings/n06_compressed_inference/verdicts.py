"""The verdicts on report 004's caches and times. Speeds are scaled to the 15,784 tiles of the report's model."""

import timeit
from typing import NamedTuple

import numpy as np

import kit.codec
from kit.claims import table as claims
from kit.claims.judge import times
from kit.codec.container import CompressedFile
from kit.findings.n06_compressed_inference.hits import ENTRIES, INNER, LAYERS, reported_layers
from kit.findings.n06_compressed_inference.passes import LAZY, Outcome, packed_bytes
from kit.units import format_seconds

REPORTED = claims.get("tile-295-5").before  # seconds a tile
SPED_UP = {"token-time": (1, "a token"), "five-tokens": (5, "five tokens, the first one cold")}  # claim -> tokens


class SlowLayer(NamedTuple):
    """One real layer unpacked the reported way, interpreted: its tiles, and for each sample its seconds and their ``scaling``:
    over its tiles times a tile alone, 1 where time grows with the tiles."""

    name: str
    tiles: int
    seconds: list[float]
    scaling: list[float]


def slow_layer(file: CompressedFile, samples: int = 2, largest: bool = False) -> SlowLayer:
    """The smallest layer of several tiles (or the largest) under the reported profile, and its first tile, in turn."""
    sizes = {name: matrix.shape[0] * matrix.shape[1] for name, matrix in file.matrices.items()}
    several = [name for name, size in sizes.items() if size >= 4 << 16] or list(sizes)
    name = (max if largest else min)(several, key=sizes.__getitem__)
    values = kit.codec.decode(file.matrices[name].tiles, "simd")
    layer, tile = (kit.codec.encode(matrix, "reported") for matrix in (values, np.ascontiguousarray(values[:256, :256])))
    kit.codec.decode(tile, "python")  # warms up
    pairs = [[timeit.timeit(lambda at=at: kit.codec.decode(at, "python"), number=1) for at in (layer, tile)]
             for _ in range(samples)]  # fmt: skip
    return SlowLayer(name, len(layer), [whole for whole, _ in pairs], [whole / (len(layer) * one) for whole, one in pairs])


def scale_of(file: CompressedFile) -> float:
    """Tiles of the report's model over those of a file."""
    return sum(reported_layers().values()) / sum(len(matrix.tiles) for matrix in file.matrices.values())


def verdicts(lab, outcomes: dict[str, Outcome], curve, slow: list[float], layer: SlowLayer, starts) -> None:
    """Write the verdicts of double-cache, hit-rate-85, token-time, five-tokens, cold-token and layer-50s. ``slow``: seconds for
    one tile as reported; ``layer``: for a real layer; ``starts``: seconds of each token without a cache, from the start as
    often as there are."""
    _caches(lab, outcomes, curve)
    _times(lab, outcomes[LAZY].weights.file, slow, layer, starts)
    _layers(lab, slow)


def _caches(lab, outcomes, curve):
    double, unlimited, fixed = (outcomes[name] for name in ("double", "unlimited", "fixed"))
    layers = len(double.weights.layers)
    lab.judge(
        "double-cache", "hit rate after the first token, inner LRU of 50 and outer LRU of 20 for 155 layers, in ratio", "%",
        [100 * rate for rate in double.hit_rates], accept=(0, 0), at_most=(100 * INNER / LAYERS, "inner entries over layers"),
        how="counted", in_ratio=True, cure="a pinned set, not one cache fewer",
        tolerance="every layer on every pass, as reported",
        text=f"{double.label.partition(': ')[2]} unpack {double.decodes[-1]} of {layers} matrices a token, and one LRU alone "
        f"{fixed.decodes[-1]}: two caches are not the cause. An inner one without limit unpacks {unlimited.decodes[-1]}",
    )  # fmt: skip
    lab.record("double-cache", quantity="hits that the outer cache reports behind an inner one without limit", unit="hits",
               samples=[unlimited.weights.store.stats.hits], how="counted")  # fmt: skip
    bound, needed = ENTRIES / LAYERS, (curve >= 0.85).idxmax()
    lab.judge(
        "hit-rate-85", "hit rate after the first token, LRU of 20 entries for 155 layers, in ratio", "%",
        [100 * rate for rate in fixed.hit_rates], accept=(80, 90), how="counted", tolerance="five points",
        at_most=(100 * bound, "entries over layers: a cyclic scan, any policy without prefetch"),
        text=f"LRU hits {np.mean(fixed.hit_rates):.0%}, no policy more than {bound:.1%}; 85% needs {needed['Pinned']} entries "
        f"pinned, {needed['LRU']} with LRU",
    )  # fmt: skip


def _times(lab, file, slow, layer, starts):
    tiles = sum(reported_layers().values())
    lab.record(
        "token-time", quantity=f"{layer.name} as reported, interpreted, over its {layer.tiles} tiles times one", unit="x",
        samples=layer.scaling, reason="1: the slow end may be scaled by tiles",
    )  # fmt: skip
    for name, (count, what) in SPED_UP.items():
        lab.record(name, quantity=f"{what}, as reported, scaled by tiles", unit="s",
                   samples=[count * tiles * seconds for seconds in slow])  # fmt: skip
    arithmetic, first = 0.005 * tiles, scale_of(file) * float(np.median([start[0] for start in starts]))
    lab.judge(
        "cold-token", "a pass that unpacks all tiles at 5 ms", "s", accept=(8, 10), how="computed",
        at_least=(arithmetic, f"{tiles:,} tiles at 5 ms"), tolerance="as reported",
        text=f"{tiles:,} tiles at 5 ms are {arithmetic:.1f} s; measured here, all unpacked, the first token takes "
        f"{format_seconds(first)}, {1e6 * first / tiles:.0f} us a tile with all else in it",
    )  # fmt: skip
    least = lab.machine.seconds_to_read(packed_bytes(file)), "compressed bytes at this machine's read bandwidth"
    speed_ups(lab, file, slow, starts, least, "simd without a cache")


def speed_ups(lab, file: CompressedFile, slow, starts, least: tuple[float, str], how: str, device: str = "cpu") -> None:
    """Judge token-time and five-tokens, and record what was measured and the first token, scaled to the report's model.
    ``slow``: seconds of a tile as reported; ``starts``: as for ``verdicts``, measured ``how``; ``least``: seconds that a token
    of ``file`` cannot pass, and why."""
    tiles, scale = sum(reported_layers().values()), scale_of(file)
    before, bound, source = float(np.median(slow)) * tiles, scale * least[0], least[1]
    measured = {
        "token-time": [scale * seconds for start in starts for seconds in start[1:]],
        "five-tokens": [scale * sum(start) * 5 / len(start) for start in starts],
    }
    for name, after in measured.items():
        claim, (count, what) = claims.get(name), SPED_UP[name]
        lab.record(name, quantity=f"{what}, {how}, scaled by tiles", unit="s", samples=after, lower=count * bound,
                   lower_source=source, device=device)  # fmt: skip
        lab.judge(
            name, f"{what}: as reported over {how}", "x", [count * before / seconds for seconds in after], device=device,
            accept=(claim.before / claim.after, None), at_most=(before / bound, source), in_ratio=True,
            cure="a faster decoder, no cache at all", tolerance="the reported factor or more",
            text=f"{format_seconds(count * before)} -> {format_seconds(float(np.median(after)))}; at 295 ms a tile a pass is "
            f"{REPORTED * tiles / 60:.1f} min, 96 min are {claims.get('token-time').before / tiles * 1e3:.0f} ms a tile, and "
            "35 s for five tokens would need both 1.4 ms a tile and 85% hits",
        )  # fmt: skip
    lab.record("cold-token", quantity=f"first token, {how}, scaled by tiles", unit="s", device=device, lower=bound,
               lower_source=source, samples=[scale * start[0] for start in starts])  # fmt: skip


def _layers(lab, slow):
    claim, counts = claims.get("layer-50s"), list(reported_layers().values())
    mean = REPORTED * sum(counts) / len(counts)
    lab.judge(
        claim.id, "seconds a layer at the reported 295 ms a tile, mean of all 155", "s", [mean], how="computed",
        accept=times(claim.after, 1.25), tolerance="about 50 s: a quarter",
        text=f"176 tiles at 295 ms are {REPORTED * 176:.1f} s, which {counts.count(176)} of {len(counts)} layers have; the "
        f"mean layer takes {mean:.0f} s, the output {REPORTED * max(counts):.0f} s",
    )  # fmt: skip
    lab.record(claim.id, quantity="an ffn layer of 176 tiles, as reported, interpreted", unit="s",
               samples=[176 * seconds for seconds in slow])  # fmt: skip


def answer(outcomes: dict[str, Outcome], slow: list[float], starts) -> str:
    """The notebook's answer, filled from the run."""
    tiles, file = sum(reported_layers().values()), outcomes[LAZY].weights.file
    five = scale_of(file) * float(np.median([sum(start) * 5 / len(start) for start in starts]))
    hits = [f"{np.mean(outcomes[name].hit_rates):.0%}" for name in ("double", "fixed")]
    return (
        f"Neither the two caches nor the one that is left hit anything on a cyclic scan ({' and '.join(hits)}), and 20 entries "
        f"for 155 layers can hit {ENTRIES / LAYERS:.1%} at most, not 85%. Five tokens go from "
        f"{format_seconds(5 * float(np.median(slow)) * tiles)} to {format_seconds(five)} by a faster decoder alone; plain "
        "INT8 that fits in memory is faster still, and tiles pay only over a slow link."
    )
