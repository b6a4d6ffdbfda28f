"""How a file was written decides how fast its map reads: the same bytes, written in pieces of several sizes, then read again.

Each file is read through its map and from a copy in memory in turn, as it came from being written and after the page cache
got it again from the disk by pages of 2 MiB (kit.gguf.large_pages). So every ratio is of one minute.
"""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kit.gguf import large_pages
from kit.gguf.mapped import MappedFile
from kit.lab.measuring import pages
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.measure import interval_of
from kit.system import advise, last_level_cache
from kit.units import format_bytes

PIECES = (4 << 10, 16 << 10, 64 << 10, 1 << 20)  # bytes of one write
WRITTEN, AGAIN, COPY = "as written, GB/s", "read again, GB/s", "a copy, GB/s"
LARGE, LARGE_AGAIN, GAIN, COST = "by 2 MiB", "then by 2 MiB", "read again, times as fast", "of a copy's speed"


def size(most: int = 128 << 20) -> int:
    """Bytes of a file that the CPU's caches do not hold, where ``most`` allows that: whole MiB."""
    return min(most, 4 * last_level_cache()) >> 20 << 20


@once_a_run
def measure(folder: Path, nbytes: int, pieces: Sequence[int] = PIECES, count: int = 7) -> pd.DataFrame:
    """A row for each size of a piece: GB/s of the map as written and once read again, and of a copy (medians of ``count``
    passes); the share of 2 MiB pages before and after (None: not known); ``of a copy's speed`` as written; ``GAIN``: its ratio
    after to that before, with ``low`` and ``high``, its 95 % interval; ``samples``; ``outcome`` of the reading."""
    rows = {format_bytes(piece): _one(folder, nbytes, piece, count) for piece in pieces}
    return pd.DataFrame.from_dict(rows, "index").rename_axis("written in pieces of")


def write(folder: Path, nbytes: int, piece: int):
    """A file of so many bytes in a folder, deleted when it is closed, on the disk: each write had ``piece`` bytes."""
    file = tempfile.NamedTemporaryFile(dir=folder, buffering=0)
    data = memoryview(np.random.default_rng(0).standard_normal(1 << 18, np.float32)).cast("B")  # 1 MiB, over and over
    for start in range(0, nbytes, piece):
        file.write(data[start % len(data) : start % len(data) + min(piece, nbytes - start)])
    return file


def _one(folder: Path, nbytes: int, piece: int, count: int) -> dict:
    with write(folder, nbytes, piece) as file:
        data = MappedFile(Path(file.name)).data
        before, large = _passes(data, count), large_pages.share(data)
        if advise(data, "unmap"):
            outcome = large_pages.read_again(data, file)[1]
        else:
            outcome = "this system cannot"
        after = _passes(data, count)
        then = large_pages.share(data)
    gains = [(late[0] / late[1]) / (early[0] / early[1]) for early, late in zip(before, after, strict=True)]
    low, high = interval_of(gains)
    middle = np.median(before, axis=0)
    return {
        WRITTEN: middle[0], AGAIN: np.median(after, axis=0)[0], COPY: middle[1], LARGE: large, LARGE_AGAIN: then,
        COST: float(np.median([one / copy for one, copy in before])), GAIN: float(np.median(gains)), "low": low, "high": high,
        "samples": gains, "outcome": outcome,
    }  # fmt: skip


def _passes(data: np.ndarray, count: int) -> list[tuple[float, float]]:
    with warnings.catch_warnings():  # torch: the array is not writable
        warnings.simplefilter("ignore")
        return pages.passes([torch.from_numpy(data).view(torch.float32)], count)


def told(table: pd.DataFrame, nbytes: int, cache: int | None = None) -> str:
    """The verdict in words. ``cache``: bytes of the CPU's caches; None: this machine's."""
    cache = last_level_cache() if cache is None else cache
    whole = f"a file of {format_bytes(nbytes)}"
    slow, edge = table[table["low"] > 1 / pages.SMALL], f"{table[COST].min():.0%} to {table[COST].max():.0%}"
    if table[LARGE].isna().all():
        text = f"Not known: this system does not tell by which pages it maps {whole}"
    elif (table["outcome"] != "done").all():
        text = f"Not decided here: {whole} is not read again by larger pages ({table['outcome'].iloc[0]})"
    elif nbytes < large_pages.LEAST:
        text = f"Not decided here: {whole} is too small to time how memory is read"
    elif len(slow):
        worst = slow.loc[slow[GAIN].idxmax()]
        text = (
            f"Yes: {whole}, written in pieces of {worst.name}, is read {worst[GAIN]:.2f} times as fast ({worst['low']:.2f} to "
            f"{worst['high']:.2f}) once it is read again by pages of 2 MiB. As written its map had {worst[COST]:.0%} of the "
            f"speed of a copy, and {worst[LARGE]:.0%} of it was by pages of 2 MiB"
        )
        if rest := ", ".join(name for name in table.index if name not in slow.index):
            text += f". For pieces of {rest} the difference is within its spread or below {1 / pages.SMALL - 1:.0%}"
    elif table["high"].max() > 1 / pages.SMALL:
        text = (
            f"Undecided here: {whole} is read {table['low'].min():.2f} to {table['high'].max():.2f} times as fast once it is "
            f"read again by pages of 2 MiB, a spread that holds 1; as written its map had {edge} of the speed of a copy"
        )
    else:
        text = (
            f"No: here {whole} is read {table[GAIN].min():.2f} to {table[GAIN].max():.2f} times as fast once it is read again "
            f"by pages of 2 MiB, whatever the size of the pieces; as written its map had {edge} of the speed of a copy"
        )
    held = f"; the CPU's caches of {format_bytes(cache)} hold {'a part of ' * (nbytes > cache)}it, so memory may differ"
    return text + held * (nbytes < 4 * cache) + "."
