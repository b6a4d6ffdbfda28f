"""Predictions for a Mac that you do not have, from the maker's bandwidth and from guesses that are marked as guesses.

Only the file is measured. `kit explain --machine` and notebook 07 use the same functions.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from kit.errors import ReportError, known
from kit.gguf.uses import Use, beyond, bytes_used
from kit.lab.exactness import sample
from kit.lab.measuring.machine import peaks
from kit.lab.tables import frame, number
from kit.quants import dequantize
from kit.units import format_bytes, format_seconds

MAPPED, LOCKED, READ = "blocks, mapped", "blocks, mapped and locked", "blocks, read into memory"
KEPT, LAZY = "float32, all kept", "float32, dequantized each time"
GUESS = "a guess: "
FIGURES = {  # figure of a machine -> its value in words
    "read_gbps": "The maker's memory bandwidth is {} GB/s",
    "cpu_gbps": "Its cores read {} GB/s of that",
    "disk_gbps": "The disk reads {} GB/s",
    "fault_gbps": "Page faults of a mapped file read {} GB/s",
    "dequantize_gbps": "The cores dequantize to float32 at {} GB/s",
    "compress_gbps": "The system compresses memory at {} GB/s",
    "room_gib": "{} GiB are left for weights",
}


@dataclass(frozen=True)
class Elsewhere:
    """A machine of data/devices.yaml; ``name`` as in ``machines``. ``figures``: name -> (value, source), where the source of a
    guess begins with GUESS. In 10^9 bytes per second: read_gbps, memory bandwidth according to the maker; cpu_gbps, what the
    cores reach of it; disk_gbps; fault_gbps, page faults of a mapped file; dequantize_gbps, float32 written; compress_gbps,
    the system's memory compressor. room_gib: GiB for weights."""

    name: str
    figures: dict[str, tuple[float, str]]

    def __getattr__(self, figure: str) -> float:
        try:
            return self.__dict__["figures"][figure][0]
        except KeyError:
            raise AttributeError(figure) from None

    @property
    def room(self) -> int:
        """Bytes for weights."""
        return round(self.room_gib * 2**30)

    def basis(self) -> list[str]:
        """One line per figure: name, value and source."""
        return [f"{FIGURES[figure].format(number(value))} ({why})" for figure, (value, why) in self.figures.items()]


@cache
def machines() -> dict[str, pd.Series]:
    """Name (chip and GiB of memory, apple-m4-16gb) -> its row of data/devices.yaml."""
    rows = peaks().dropna(subset="memory_gib")
    return {f"{row.id}-{gib}gb": row for _, row in rows.iterrows() for gib in row.memory_gib}


def chips() -> list[str]:
    """A line for each chip: its name in front of the GiB of memory that a machine's name ends with."""
    rows = peaks().dropna(subset="memory_gib")
    return [f"{row.id:<16}{', '.join(f'{gib}gb' for gib in row.memory_gib)}" for _, row in rows.iterrows()]


def machine(name: str, room: int | None = None) -> Elsewhere:
    """The machine of that name, with ``room`` bytes for weights instead of a guess. ReportError with all names."""
    row = known("machine", name, machines(), ReportError)
    memory = int(name.rpartition("-")[2].removesuffix("gb")) << 30
    if room is not None and room > memory:
        raise ReportError(f"--memory {format_bytes(room)} is more than {name} has: give at most {format_bytes(memory)}")
    guess = {figure: (value, GUESS + why) for figure, (value, why) in row.guesses.items()}
    share, of_cores = guess.pop("cpu_share")
    taken, why = guess.pop("system_share")
    figures = {
        "read_gbps": (row.read_gbps, row.source),
        "cpu_gbps": (row.read_gbps * share, of_cores) if pd.isna(row.cpu_gbps) else (row.cpu_gbps, row.cpu_source),
        **guess,
        "room_gib": ((1 - taken) * memory / 2**30, f"{GUESS}without {taken:.0%} {why.removeprefix(GUESS)}"),
    }
    if room is not None:
        figures["room_gib"] = room / 2**30, "as given"
    return Elsewhere(name, figures)


def ways(there: Elsewhere, uses: list[Use], compressed: tuple[float, float]) -> pd.DataFrame:
    """Ways to hold the weights that a token uses (``uses``). ``compressed``: the result of ``compressibility``.

    Columns: held (bytes), fits, comes in (seconds, once), predicted and least (seconds per token). "least" is a lower bound:
    the maker's bandwidth, and the disk for bytes that cannot stay in memory. If the weights do not fit, memory behaves as an
    LRU cache, so each token replaces all of them: mapped pages are dropped and read again through page faults; locked pages
    stay; copies are compressed, and the rest is written to swap and read back.
    """
    uses = [use for use in uses if not use.is_rows]
    floats = [use._replace(nbytes=4 * use.elements) for use in uses]
    blocks, token, out, turned = _sizes(uses, there.room)
    wide, token_wide, *_ = _sizes(floats, there.room)
    cpu, disk, fault = there.cpu_gbps, there.disk_gbps, there.fault_gbps
    least = max(token / there.read_gbps, out / disk)
    seconds = {  # to load once; predicted per token; lower bound per token
        MAPPED: (blocks / fault, token / cpu + turned / fault, least),
        LOCKED: (blocks / disk, token / cpu + out / fault, least),
        READ: (blocks / disk, *_copied(there, uses, compressed[0])),
        KEPT: (blocks / disk + wide / there.dequantize_gbps, *_copied(there, floats, compressed[1])),
        LAZY: (blocks / fault, token_wide / there.dequantize_gbps + turned / fault, least),
    }
    held = dict.fromkeys(seconds, blocks) | {LOCKED: min(blocks, there.room), KEPT: wide}
    rows = [(way, held[way], (wide if way == KEPT else blocks) <= there.room, *(1e-9 * each for each in taken))
            for way, taken in seconds.items()]  # fmt: skip
    return frame(rows, "way", "held", "fits", "comes in", "predicted", "least")


def _sizes(uses: list[Use], room: float) -> tuple[float, float, float, float]:
    """Bytes of all uses, of one token, of one token beyond ``room``, and of one token that an LRU of that size misses."""
    token, out = bytes_used(uses), beyond(uses, room)
    return sum(use.nbytes for use in uses), token, out, token if token > room else out


def _copied(there: Elsewhere, uses: list[Use], share: float) -> tuple[float, float]:
    """Nanoseconds per token from copies that compress to a ``share`` of their bytes: (predicted, lower bound)."""
    _, token, _, turned = _sizes(uses, there.room)
    *_, out, swapped = _sizes([use._replace(nbytes=int(share * use.nbytes)) for use in uses], there.room)
    predicted = token / there.cpu_gbps + turned / there.compress_gbps + 2 * swapped / there.disk_gbps  # written and read
    return predicted, max(token / there.read_gbps, out / there.disk_gbps)


def compressibility(file) -> tuple[float, float]:
    """(blocks, float32): compressed bytes / bytes of an open file with WKdm, the first of macOS's two codecs (LZ4 is not
    tried). Measured on the first eight rows of every tensor and weighted with the bytes of each format."""
    sizes = []
    for qtype, blocks in sample(file, 8).items():
        nbytes = sum(info.nbytes for info in file.tensors.values() if info.qtype == qtype)
        sizes.append((nbytes, wkdm(blocks), wkdm(dequantize(blocks, qtype).numpy())))
    weights, of_blocks, of_floats = np.array(sizes, float).T
    return float(np.average(of_blocks, weights=weights)), float(np.average(of_floats, weights=weights))


def wkdm(data: np.ndarray) -> float:
    """Compressed bytes / bytes of an array, page by page: Wilson, Kaplan and Smaragdakis, USENIX 1999.

    A 32-bit word takes 2 bits if it is zero, 6 if it is in the dictionary, 16 if its upper 22 bits are, else 34. A page has
    1,024 words. Its dictionary has 16 entries, chosen with the upper bits modulo 16; each entry holds the last such word.
    """
    words = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
    words = words[: len(words) // 4096 * 4096].view(np.uint32)
    if not len(words):
        return 1.0
    page = np.arange(len(words)) // 1024
    place = np.where(words == 0, -1, 16 * page + (words >> 10) % 16)
    order = np.argsort(place, kind="stable")  # in each place the words one after another
    word, place = words[order], place[order]
    held = np.r_[False, place[1:] == place[:-1]]
    last = np.r_[word[:1], word[:-1]]
    bits = np.select([place < 0, held & (last == word), held & (last >> 10 == word >> 10)], [2, 6, 16], 34)
    return float(np.minimum(np.bincount(page[order], bits, page[-1] + 1) / 32768, 1).mean())


def says(there: Elsewhere, table: pd.DataFrame, compressed: tuple[float, float]) -> str:
    """The answer in sentences: blocks mapped, locked or read, and float32 larger than memory."""
    kept, comes, held = table.loc[KEPT], table["comes in"].map(format_seconds), table["held"].map(format_bytes)
    token, to_blocks, to_floats = table["predicted"].map(format_seconds), *map("{:.0%}".format, compressed)
    text = f"{there.name} has {format_bytes(there.room)} for weights."
    if table.loc[MAPPED, "fits"]:
        text += (
            f" The blocks ({held[MAPPED]}) fit. Once they are in memory, every way takes the same time: {token[MAPPED]} per "
            f"token. Page faults of a mapped file load them in {comes[MAPPED]} ({there.fault_gbps:g} GB/s); reads, or a map "
            f"with readahead, in {comes[READ]} ({there.disk_gbps:g} GB/s). The system may drop mapped pages, unless they are "
            "locked."
        )
    else:
        text += (
            f" The blocks ({held[MAPPED]}) do not fit. Mapped pages are dropped and read again through page faults: "
            f"{token[MAPPED]} per token. Locked pages stay, if macOS allows that many: {token[LOCKED]}. Copies in memory "
            f"compress to {to_blocks}, are written to swap and read back: {token[READ]}."
        )
    if kept.fits:
        return f"{text} Float32 ({held[KEPT]}) also fits: {token[KEPT]} per token."
    swaps = ", and the rest goes to swap" if compressed[1] * kept.held > there.room else ""
    return f"{text} Float32 ({held[KEPT]}) does not fit: it compresses to {to_floats}{swaps}, {token[KEPT]} per token."


def explain(name: str, uses, compressed, room: int | None = None) -> tuple[Elsewhere, pd.DataFrame, str]:
    """(the machine of that ``name``, its table of ``ways``, the answer in sentences)."""
    there = machine(name, room)
    table = ways(there, uses, compressed)
    return there, table, says(there, table, compressed)
