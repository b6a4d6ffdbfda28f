"""Tables for a terminal: plain text of at most 100 columns, whatever a file's names hold."""

import textwrap

import pandas as pd

from kit.units import printable

WIDTH = 100


def table(frame: pd.DataFrame, width: int = WIDTH) -> str:
    """A frame of text as columns, the index first; the first column gives way when the lines would be too long."""
    index = frame.index.name or ""
    rows = [[index, *map(str, frame.columns)]]
    rows += [[printable(key), *map(printable, values)] for key, values in zip(frame.index, frame.to_numpy(), strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1))
    return "\n".join(_line(row, widths) for row in rows)


def _line(row, widths) -> str:
    first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 3] + "..."
    return "  ".join([first.ljust(widths[0]), *(cell.rjust(room) for cell, room in zip(row[1:], widths[1:], strict=True))])


def paragraph(text: str, width: int = WIDTH) -> str:
    """Text wrapped at ``width`` columns."""
    return textwrap.fill(printable(text), width)
