"""What can print between 45 and 1100 tokens a second: causes tried live, each beside the bandwidth that real tokens need."""

import pandas as pd

from kit.findings.live import Live
from kit.findings.n02_cache_mystery.load_test import Exchange
from kit.lab import tables

WANTED = 1100 / 45  # times that the reported speeds differ by


def tried(rungs: pd.DataFrame, honest: Exchange, early: Exchange, runs: list[Live], swept: pd.DataFrame) -> pd.DataFrame:
    """One row a cause: the slowest and fastest "tok/s" that it printed here, their factor, whether tokens were made for it.

    ``early``: an answer that stopped before all tokens were made; ``runs``: with a slow dequantizer, from too small a
    cache to one that is large enough; ``swept``: the same with the kit's dequantizer.
    """
    printed, slow = rungs['printed "tok/s"'], [run.tokens_per_second for run in runs]
    fast = swept.loc[swept["policy"] == "LRU", "tok/s"]
    rows = {
        "errors, answered after chosen times": (printed.min(), printed.max(), "no"),
        "answers that stop early, asked tokens counted": (honest.claimed, early.claimed, "some"),
        "a cache too small or large enough, gguf-py's dequantizer": (min(slow), max(slow), "all"),
        "the same, the kit's dequantizer": (fast.min(), fast.max(), "all"),
    }
    table = tables.frame(rows, "cause", "slowest tok/s", "fastest tok/s", "tokens made")
    factor = (table["fastest tok/s"] / table["slowest tok/s"]).astype(float)
    return table.assign(factor=factor, **{f"as much as {WANTED:.0f} times": factor >= 0.9 * WANTED})


def told(table: pd.DataFrame) -> str:
    """The causes with the factors that they gave, in a sentence."""
    return "; ".join(f"{cause} {row['factor']:.3g}x" for cause, row in table.iterrows())
