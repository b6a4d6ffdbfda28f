"""Text for a terminal: at most its columns, and 80; without imports that a first answer would wait for."""

import shutil
import textwrap

from kit.units import printable

MOST = 80  # columns


def width() -> int:
    """Columns of the terminal, MOST at most."""
    return max(40, min(MOST, shutil.get_terminal_size((MOST, 24)).columns))


def paragraph(text: str) -> str:
    """Text wrapped at the terminal's columns."""
    return textwrap.fill(
        printable(text), width(), break_on_hyphens=False, break_long_words=False
    )  # a command is copied from it


def wrapped(line: str) -> str:
    """A paragraph; a command, which is one line to be copied, and a table stay as they are."""
    return line if line.startswith("    ") or "\n" in line else paragraph(line)
