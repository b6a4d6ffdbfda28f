"""What runs of one machine differ by, by kind of quantity: `kit verify RUN... --keep` measured it (data/drift.yaml).

A machine has its own rows there, or borrows those of the machine with the most runs, and a run says so.
"""

import re
from functools import cache
from typing import NamedTuple

from kit.errors import ReportError
from kit.lab.measuring.identity import machine_id
from kit.system.files import read_yaml
from kit.system.paths import data_file

KINDS = {"ratio": "x", "time": "([num]?s|min|h)( an? .+)?", "rate": ".+/s"}  # kind -> its units, as a pattern


class Spread(NamedTuple):
    """What the medians of nine of ten quantities (``factor``), and of all (``most``), stay within around the middle of several
    ``runs`` of a ``machine``."""

    factor: float
    most: float
    runs: int
    machine: str


@cache
def table() -> dict[str, dict[str, Spread]]:
    """Machine -> kind of quantity -> its spread."""
    path, found = data_file("drift.yaml"), {}
    try:
        for row in read_yaml(path):
            numbers = float(row["factor"]), float(row["most"]), int(row["runs"])
            found.setdefault(row["machine"], {})[row["id"]] = Spread(*numbers, row["machine"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{path}: expected rows with id, factor, most, runs and machine ({error}): write the file with kit verify --keep"
        ) from None
    whole = all(set(kinds) == set(KINDS) for kinds in found.values())
    if not found or not whole or not all(1 <= row.factor <= row.most for kinds in found.values() for row in kinds.values()):
        raise ReportError(f"{path}: {', '.join(KINDS)} need 1 <= factor <= most: write the file with kit verify --keep")
    return found


def spreads(machine: str = "") -> dict[str, Spread]:
    """Kind of quantity -> the spread that a machine (empty: this one) has, or borrows."""
    known = table()
    return known.get(machine or machine_id()) or max(known.values(), key=lambda kinds: min(row.runs for row in kinds.values()))


def source(machine: str = "") -> str:
    """Whose runs the spreads of a machine (empty: this one) are from, in words."""
    machine, of = machine or machine_id(), next(iter(spreads(machine).values()))
    return f"{of.runs} runs of {of.machine}" + f", borrowed: there are none of {machine}" * (of.machine != machine)


def kind_of_unit(unit: str) -> str | None:
    """The kind of a unit; None where no spread between runs is known of it."""
    return next((kind for kind, units in KINDS.items() if re.fullmatch(units, unit)), None)


def factor(unit: str, machine: str = "") -> float:
    """What nine of ten quantities in such a unit stay within; of a unit that no kind has, the largest of the kinds."""
    kind, known = kind_of_unit(unit), spreads(machine)
    return known[kind].factor if kind else max(row.factor for row in known.values())


def most(unit: str, machine: str = "") -> float:
    """The most by which a quantity in such a unit was ever seen to leave the middle of several runs."""
    kind, known = kind_of_unit(unit), spreads(machine)
    return known[kind].most if kind else max(row.most for row in known.values())
