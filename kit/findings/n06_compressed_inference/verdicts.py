"""The verdicts on report 004's caches and times. Speeds are scaled to the 15,784 tiles of the report's model."""

import timeit
from dataclasses import dataclass

import numpy as np

import kit.codec
from kit.claims import table as claims
from kit.claims.judge import judge, times
from kit.claims.records import Record
from kit.codec.container import CompressedFile
from kit.findings.n06_compressed_inference.hits import ENTRIES, INNER, LAYERS, reported_layers
from kit.findings.n06_compressed_inference.passes import LAZY, Outcome
from kit.units import format_seconds

REPORTED = 0.295  # seconds a tile, report 004
COUNTS = {"token-time": 1, "five-tokens": 5}  # claimed speed-up -> tokens


@dataclass(frozen=True)
class SlowLayer:
    """One real layer unpacked the reported way, interpreted: its tiles, seconds of each sample, and a tile alone as often."""

    name: str
    tiles: int
    seconds: list[float]
    tile_seconds: list[float]

    @property
    def scaling(self) -> list[float]:
        """Seconds of the layer over its tiles times a tile alone: 1 where time grows with the tiles."""
        return [layer / (self.tiles * tile) for layer, tile in zip(self.seconds, self.tile_seconds, strict=True)]


def slow_layer(file: CompressedFile, samples: int = 2, largest: bool = False) -> SlowLayer:
    """The smallest layer of several tiles (or the largest) under the reported profile, and its first tile, in turn."""
    sizes = {name: matrix.shape[0] * matrix.shape[1] for name, matrix in file.matrices.items()}
    several = [name for name, size in sizes.items() if size >= 4 << 16] or list(sizes)
    name = (max if largest else min)(several, key=sizes.__getitem__)
    values = kit.codec.decode(file.matrices[name].tiles, "simd")
    layer, tile = (kit.codec.encode(matrix, "reported") for matrix in (values, np.ascontiguousarray(values[:256, :256])))
    kit.codec.decode(tile, "python")  # warms up
    taken = [[timeit.timeit(lambda at=at: kit.codec.decode(at, "python"), number=1) for at in (layer, tile)]
             for _ in range(samples)]  # fmt: skip
    seconds, alone = (list(column) for column in zip(*taken, strict=True))
    return SlowLayer(name, len(layer), seconds, alone)


def scale_of(file: CompressedFile) -> float:
    """Tiles of the report's model over those of a file."""
    return sum(reported_layers().values()) / sum(len(matrix.tiles) for matrix in file.matrices.values())


def scaled(starts, scale: float) -> dict[str, list[float]]:
    """Claim -> ``scale`` times the seconds of a token after the first, of five tokens with the first, and of the first alone.

    ``starts``: seconds of each token, from the start as often as there are.
    """
    return {
        "token-time": [scale * seconds for start in starts for seconds in start[1:]],
        "five-tokens": [scale * sum(start) * 5 / len(start) for start in starts],
        "cold-token": [scale * start[0] for start in starts],
    }


def verdicts(lab, outcomes: dict[str, Outcome], curve, slow: list[float], layer: SlowLayer, starts) -> None:
    """Write the verdicts of double-cache, hit-rate-85, token-time, five-tokens, cold-token and layer-50s.

    ``slow``: seconds for one tile as reported; ``layer``: for a real layer; ``starts``: see ``scaled``, without a cache.
    """
    _caches(lab, outcomes, curve)
    _times(lab, outcomes[LAZY].weights, slow, layer, starts)
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


def _times(lab, weights, slow, layer, starts):
    tiles, scale = sum(reported_layers().values()), scale_of(weights.file)
    before, taken = tiles * float(np.median(slow)), scaled(starts, scale)
    least = lab.machine.seconds_to_read(scale * weights.compressed_bytes), "compressed bytes at this machine's read bandwidth"
    lab.record(
        "token-time", quantity=f"{layer.name} as reported, interpreted, over its {layer.tiles} tiles times one", unit="x",
        samples=layer.scaling, reason="1: the slow end may be scaled by tiles",
    )  # fmt: skip
    for name, quantity in (("token-time", "a token"), ("five-tokens", "five tokens, the first one cold")):
        count, after = COUNTS[name], taken[name]
        lab.record(name, quantity=f"{quantity}, as reported, scaled by tiles", unit="s",
                   samples=[count * seconds * tiles for seconds in slow])  # fmt: skip
        lab.record(name, quantity=f"{quantity}, simd without a cache, scaled by tiles", unit="s", samples=after,
                   lower=count * least[0], lower_source=least[1])  # fmt: skip
        lab.record(faster(
            name, f"{quantity}: as reported over simd without a cache", before, after, least,
            f"{format_seconds(count * before)} -> {format_seconds(float(np.median(after)))}; at 295 ms a tile a pass is "
            f"{REPORTED * tiles / 60:.1f} min, 96 min are {claims.get('token-time').before / tiles * 1e3:.0f} ms a tile, and "
            "35 s for five tokens would need both 1.4 ms a tile and 85% hits",
        ))  # fmt: skip
    arithmetic, first = 0.005 * tiles, float(np.median(taken["cold-token"]))
    lab.judge(
        "cold-token", "a pass that unpacks all tiles at 5 ms", "s", accept=(8, 10), how="computed",
        at_least=(arithmetic, f"{tiles:,} tiles at 5 ms"), tolerance="as reported",
        text=f"{tiles:,} tiles at 5 ms are {arithmetic:.1f} s; measured here, all unpacked, the first token takes "
        f"{format_seconds(first)}, {1e6 * first / tiles:.0f} us a tile with all else in it",
    )  # fmt: skip
    lab.record("cold-token", quantity="first token, every tile unpacked by simd, scaled by tiles", unit="s",
               samples=taken["cold-token"], lower=least[0], lower_source=least[1])  # fmt: skip


def faster(name: str, quantity: str, before: float, after: list[float], least: tuple[float, str], text: str) -> Record:
    """The verdict on a claim of COUNTS: ``before`` seconds a token as reported, ``after`` measured; ``least``: of a token."""
    claim, count = claims.get(name), COUNTS[name]
    return judge(
        name, quantity, "x", [count * before / seconds for seconds in after], accept=(claim.before / claim.after, None),
        at_most=(before / least[0], least[1]), in_ratio=True, cure="a faster decoder, no cache at all",
        tolerance="the reported factor or more", text=text,
    )  # fmt: skip


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
    five = float(np.median(scaled(starts, scale_of(file))["five-tokens"]))
    hits = [f"{np.mean(outcomes[name].hit_rates):.0%}" for name in ("double", "fixed")]
    return (
        f"Neither the two caches nor the one that is left hit anything on a cyclic scan ({' and '.join(hits)}), and 20 entries "
        f"for 155 layers can hit {ENTRIES / LAYERS:.1%} at most, not 85%. Five tokens go from "
        f"{format_seconds(5 * float(np.median(slow)) * tiles)} to {format_seconds(five)} by a faster decoder alone; plain "
        "INT8 that fits in memory is faster still, and tiles pay only over a slow link."
    )
