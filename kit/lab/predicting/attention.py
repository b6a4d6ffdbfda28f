"""The cost of attention per token: arithmetic, bytes of keys and values, and its share of a token's time."""

import functools
from collections.abc import Collection

import numpy as np
import pandas as pd
import torch

import kit
from kit.lab.measuring.kept import once_a_run
from kit.lab.tables import frame
from kit.model.config import Config
from kit.model.kvcache import KV_TYPES

PARTS = ["attention", "projections", "norms"]
_SPANS = ["attention", "linear", "norm"]  # what the parts are called in a trace


def attention_flops(config: Config, context: int, layer: int = 0) -> int:
    """Multiplications and additions per token of one layer's scores and weighted values."""
    mixer = config.layers[layer].mixer
    return 4 * mixer.heads * mixer.head_dim * mixer.memory.seen(context)


class DecodeStep:
    """A token after ``positions`` positions with random keys and values; can be run repeatedly.

    ``linear``, ``attention``, ``kv``: as in kit.Transformer. ``times``: how many layers each layer of the model represents.
    """

    _warm = False

    def __init__(self, weights, linear: str, attention: str, positions: int, times: float = 1.0, kv="float32", seed: int = 0):
        self.model, self.times = kit.Transformer(weights, linear=linear, attention=attention, kv_dtype=kv), times
        self.kept_as = weights.file, linear, attention, positions, times, kv, seed
        c, self.positions, self.cache = self.model.config, positions, self.model.new_cache(positions + 1)
        drawn = functools.cache(
            lambda *shape: torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32, device="cpu")
        )
        for layer, kinds in enumerate(c.layers):
            if kinds.mixer.memory.position:
                self.cache.write(layer, *drawn(2, positions, kinds.mixer.kv_heads, kinds.mixer.head_dim))
            if every := kinds.mixer.memory.every:
                self.cache.states[layer].write_rows(0, drawn(positions // every, 1, kinds.mixer.head_dim))
            if units := kinds.mixer.index_size and kinds.mixer.choice.units(positions):
                self.cache.states[layer].index.write(0, drawn(units, 1, kinds.mixer.index_size))
        self.cache.advance(positions)
        self.mark = self.cache.mark()

    def parts(self) -> list[float]:
        """Seconds of a token by PARTS, after one token that dequantizes, compiles and warms up."""
        if not self._warm:  # not before it is asked: a page that is rendered again has its seconds already
            self._warm = True
            self.parts()
        self.model.trace.clear()
        self.cache.back_to(self.mark)
        self.model.step([0], self.cache)
        spans = self.model.trace.frame()
        spans["seconds"] *= np.where(spans["layer"] >= 0, self.times, 1.0)
        return spans.groupby("what")["seconds"].sum().reindex(_SPANS).fillna(0).tolist()

    def seconds(self) -> float:
        """Seconds of a token."""
        return sum(self.parts())


@once_a_run
def in_turn(steps: dict[str, DecodeStep], rounds: int, slow: Collection[str] = ()) -> pd.DataFrame:
    """Seconds of a token by part, one row per round and step: "way", "round", the parts and "total". Every other round runs in
    reverse order; ``slow`` steps run only in the first round."""
    rows = [
        (way, number, *steps[way].parts())
        for number in range(rounds)
        for way in list(steps)[:: 1 if number % 2 == 0 else -1]
        if number == 0 or way not in slow
    ]
    table = pd.DataFrame(rows, columns=["way", "round", *PARTS])
    return table.assign(total=table[PARTS].sum(axis=1))


def by_history_type(weights, positions: int, times: float, weight_bytes: float, machine, rounds: int, seed: int = 0):
    """A token with fused attention from the blocks after ``positions``, for each type of keys and values (KV_TYPES), compared
    with the time in which ``machine`` reads the token's ``weight_bytes`` and its history once."""
    rows = {}
    for kv in KV_TYPES:
        step = DecodeStep(weights, "fused", "fused", positions, times, kv, seed)
        middling = _median_seconds(kv, step, rounds)
        nbytes = weight_bytes + times * positions * step.cache.bytes_per_position
        rows[kv] = middling, 1 / middling, nbytes, 1 / machine.seconds_to_read(nbytes)
    table = frame(rows, "keys and values", "token, s", "tok/s", "bytes read", "at most")
    return table.assign(**{"of the limit": table["tok/s"] / table["at most"]})


@once_a_run
def _median_seconds(kv: str, step: DecodeStep, rounds: int) -> float:
    return float(np.median([step.seconds() for _ in range(rounds)]))
