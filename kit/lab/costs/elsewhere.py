"""What a Mac that is not here would take: by its maker's bandwidth, and by guesses that are said to be guesses.

Nothing here is measured but the file. `kit explain --machine` and notebook 07 ask the same functions.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from kit.errors import ReportError, known
from kit.lab.costs.uses import Use, beyond, bytes_used
from kit.lab.machine import peaks
from kit.lab.tables import frame, number
from kit.quants import dequantize
from kit.quants.exactness import sample
from kit.units import format_bytes, format_seconds

MAPPED, LOCKED, READ = "blocks, mapped", "blocks, mapped and locked", "blocks, read into memory"
KEPT, LAZY = "float32, all kept", "float32, dequantized each time"
GUESS = "a guess: "
FIGURES = {  # figure of a machine -> its value in words
    "read_gbps": "The maker's memory bandwidth is {} GB/s",
    "cpu_gbps": "Its cores read {} GB/s of that",
    "disk_gbps": "The disk reads {} GB/s",
    "fault_gbps": "Page faults of a map bring {} GB/s",
    "dequantize_gbps": "The cores dequantize to float32 at {} GB/s",
    "compress_gbps": "The system compresses memory at {} GB/s",
    "room_gib": "{} GiB are left for weights",
}


@dataclass(frozen=True)
class Elsewhere:
    """A row of data/devices.yaml by the ``name`` that ``machines`` gives it. ``figures``: name -> (value, its source, or GUESS
    and why), in 10^9 bytes a second: read_gbps by the maker, cpu_gbps of that by the cores, disk_gbps, fault_gbps by page
    faults of a map, dequantize_gbps of float32 written, compress_gbps of the system's compressor; room_gib for weights."""

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
        """A line for each figure: what it is, its value, and where it is from."""
        return [f"{FIGURES[figure].format(number(value))} ({why})" for figure, (value, why) in self.figures.items()]


@cache
def machines() -> dict[str, pd.Series]:
    """Name (chip and GiB of memory, apple-m4-16gb) -> its row of data/devices.yaml."""
    rows = peaks().dropna(subset="memory_gib")
    return {f"{row.id}-{gib}gb": row for _, row in rows.iterrows() for gib in row.memory_gib}


def machine(name: str, room: int | None = None) -> Elsewhere:
    """The machine of that name, with ``room`` bytes for weights instead of a guess. ReportError with all names."""
    row = known("machine", name, machines(), ReportError)
    memory = int(name.rpartition("-")[2].removesuffix("gb")) << 30
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
        figures["room_gib"] = room / 2**30, "as asked"
    return Elsewhere(name, figures)


def ways(there: Elsewhere, uses: list[Use], compressed: tuple[float, float]) -> pd.DataFrame:
    """Ways to hold the weights of which a token uses ``uses``; ``compressed``: as ``compressibility`` says.

    Columns: held (bytes), fits, comes in (seconds, once), predicted and least (seconds a token). Least takes the maker's
    bandwidth and, for what cannot stay, the disk. What does not fit goes round as in an LRU, all that a token uses where that
    is more than the room: mapped pages are dropped and come again by faults; what is locked stays; copies are compressed as
    far as they can be, and what then does not fit is written to the swap and read back.
    """
    uses = [use for use in uses if not use.is_rows]
    floats = [use._replace(nbytes=4 * use.elements) for use in uses]
    blocks, token, out, turned = _sizes(uses, there.room)
    wide, token_wide, *_ = _sizes(floats, there.room)
    cpu, disk, fault = there.cpu_gbps, there.disk_gbps, there.fault_gbps
    least = max(token / there.read_gbps, out / disk)
    seconds = {  # to come in; of a token predicted; at least
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
    """Bytes of all, of a token, of a token that ``room`` cannot hold, and of a token that an LRU of it does not hold."""
    token, out = bytes_used(uses), beyond(uses, room)
    return sum(use.nbytes for use in uses), token, out, token if token > room else out


def _copied(there: Elsewhere, uses: list[Use], share: float) -> tuple[float, float]:
    """1e9 times the seconds of a token from copies that compress to a ``share``: predicted, and at least."""
    _, token, _, turned = _sizes(uses, there.room)
    *_, out, swapped = _sizes([use._replace(nbytes=int(share * use.nbytes)) for use in uses], there.room)
    predicted = token / there.cpu_gbps + turned / there.compress_gbps + 2 * swapped / there.disk_gbps  # written and read
    return predicted, max(token / there.read_gbps, out / there.disk_gbps)


def compressibility(file) -> tuple[float, float]:
    """Shares of their bytes to which the blocks, and the float32, of an open file compress by WKdm, the first of macOS's
    two codecs (its LZ4 is not tried); from the first eight rows of every tensor, by the bytes of each format."""
    found = []
    for qtype, blocks in sample(file, 8).items():
        nbytes = sum(info.nbytes for info in file.tensors.values() if info.qtype == qtype)
        found.append((nbytes, wkdm(blocks), wkdm(dequantize(blocks, qtype).numpy())))
    weights, of_blocks, of_floats = np.array(found, float).T
    return float(np.average(of_blocks, weights=weights)), float(np.average(of_floats, weights=weights))


def wkdm(data: np.ndarray) -> float:
    """Share of its bytes to which an array compresses, page by page: Wilson, Kaplan and Smaragdakis, USENIX 1999.

    A word of 32 bits takes 2 bits if it is zero, 6 if the dictionary has it, 16 if it has its upper 22 bits, else 34. The
    dictionary of a page of 1,024 words has 16 places, here by the upper bits' remainder, and keeps in each the last word.
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


def says(there: Elsewhere, found: pd.DataFrame, compressed: tuple[float, float]) -> str:
    """The Mac question in sentences: mapped, locked or read, and float32 beyond memory."""
    kept, comes, held = found.loc[KEPT], found["comes in"].map(format_seconds), found["held"].map(format_bytes)
    token, to_blocks, to_floats = found["predicted"].map(format_seconds), *map("{:.0%}".format, compressed)
    text = f"On {there.name} {format_bytes(there.room)} are left for weights"
    if found.loc[MAPPED, "fits"]:
        text += (
            f"; the blocks ({held[MAPPED]}) fit, and once they are in memory it does not matter how they came there: "
            f"{token[MAPPED]} a token. At {there.fault_gbps:g} GB/s by the page faults of a map they come in {comes[MAPPED]}, "
            f"at {there.disk_gbps:g} GB/s by reading in {comes[READ]}, as a map does whose pages are asked for ahead; what is "
            "mapped and not locked the system may drop again."
        )
    else:
        text += (
            f"; the blocks ({held[MAPPED]}) do not fit. Mapped pages are dropped and come again by faults: {token[MAPPED]} a "
            f"token; what is locked stays, if macOS lets so much be wired: {token[LOCKED]}; copies that were read compress to "
            f"{to_blocks}, are written to the swap and read back: {token[READ]}."
        )
    if kept.fits:
        return f"{text} Float32 ({held[KEPT]}) fits as well: {token[KEPT]} a token."
    swaps = ", and goes to the swap" if compressed[1] * kept.held > there.room else ""
    return f"{text} Float32 ({held[KEPT]}) does not fit: the compressor brings it to {to_floats}{swaps}, {token[KEPT]} a token."


def explain(name: str, uses, compressed, room: int | None = None) -> tuple[Elsewhere, pd.DataFrame, str]:
    """The machine of that ``name``, the ``ways`` there, and what they say."""
    there = machine(name, room)
    found = ways(there, uses, compressed)
    return there, found, says(there, found, compressed)
