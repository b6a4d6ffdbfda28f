"""The text of a record of routes as people's tools write it: gzipped or not, any Unicode, with commas, semicolons or tabs."""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from kit.errors import TraceError
from kit.system.files import read_bytes
from kit.units import printable

_MARKS = {  # the longer first: UTF-32's mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
LARGEST = 2**48  # bytes of one expert or layer: more is a mistake, and sums of it would overflow


def shown(text, most: int = 60) -> str:
    """A part of a record for a message: of at most ``most`` characters, harmless on a terminal."""
    text = str(text)
    return printable(text[:most]) + " ..." * (len(text) > most)


def lines_of(path: Path) -> list[str]:
    """The lines of a text, also gzipped, in UTF-8, or in UTF-16 or UTF-32 as PowerShell writes it; TraceError for none."""
    data = read_bytes(path, TraceError)
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: the gzip data is damaged ({error}): copy or record the file again") from None
    pair = data[:2].count(0) == 1 and ("utf-16-be" if data[0] == 0 else "utf-16-le")  # without a mark
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), pair or "utf-8")
    try:
        return data.decode(encoding).splitlines()
    except UnicodeDecodeError as error:
        raise TraceError(
            f"cannot read {path}: expected text or gzip ({error.reason} at byte {error.start} of {encoding.upper()})"
        ) from None


def cells_of(line: str, separator: str) -> list[str]:
    """The cells of a line without spaces and quotes around them."""
    return [cell.strip(' \t"') for cell in line.split(separator)]


def columns_of(line: str) -> tuple[list[str], str]:
    """(names of the columns, what sets them apart) of a table's first line: a comma, a semicolon or a tab."""
    separator = max(",;\t", key=line.count)
    return cells_of(line, separator), separator


def numbers(path: Path, lines: Iterable[str], head: str, wanted: Sequence[str], start: int) -> np.ndarray:
    """The ``wanted`` columns of a table as int64 (len(wanted), rows). ``head``: the line with their names, number ``start``."""
    columns, separator = columns_of(head)
    if missing := [name for name in wanted if name not in columns]:
        has = shown(", ".join(columns), 100)
        raise TraceError(f"{path}: line {start}: lacks the column {', '.join(missing)}; it has {has}")
    places, rows = [columns.index(name) for name in wanted], []
    for number, line in enumerate(lines, start=start + 1):
        if not line.strip():
            continue
        cells = cells_of(line, separator)
        try:
            row = [int(cells[place]) for place in places]
        except (ValueError, IndexError):
            row = []
        if not row or not possible(row[wanted.index("layer")], *row):
            raise TraceError(
                f"{path}: line {number}: '{shown(line)}' does not have the columns {shown(', '.join(columns), 100)}"
            )
        rows.append(row)
    return np.array(rows, np.int64).reshape(-1, len(wanted)).T


def possible(layer: int, *others: int) -> bool:
    """Whether a model can have that layer (their names have four digits) and such numbers of tokens or experts."""
    return 0 <= layer < 10_000 and all(0 <= number < 2**31 for number in others)


def above(found: np.ndarray) -> int:
    """The first number above all of them; 0 where there are none."""
    return int(found.max(initial=-1)) + 1


def count(value) -> int:
    """A number of tokens or experts; ValueError for none."""
    if type(value) is not int or not possible(0, value):
        raise ValueError(f"{value!r} is not a number of tokens or experts")
    return value


def sizes(values: Sequence) -> np.ndarray:
    """Bytes by layer as int64; ValueError for what no expert and no layer can have."""
    for value in values:
        if type(value) is not int or not 0 <= value < LARGEST:
            raise ValueError(f"{value!r} bytes per layer: give a whole number from 0 to {LARGEST:,}")
    return np.array(values, np.int64)
