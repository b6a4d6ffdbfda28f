"""The limits of this machine: as measured now, and the best that quiet measurements have shown before."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kit.lab.measuring import kept, machine, measurements, state
from kit.lab.measuring.machine import Machine


class KnownLimits(NamedTuple):
    """``machine``: its ``read_gbps`` is the best known. ``now``: what the probe read, GB/s; ``others``: cores that other
    processes used meanwhile. ``at``: the date of the best known, "" where it is the probe's."""

    machine: Machine
    now: float
    others: float = 0.0
    at: str = ""

    @property
    def told(self) -> str:
        """The bandwidth in words; a busy probe is said to be one."""
        text = f"memory reads at {self.now if self.at else self.machine.read_gbps:.1f} GB/s"
        if self.at:
            text += f" now, and read at {self.machine.read_gbps:.1f} on {self.at}, the best so far"
        busy = f"; other processes use {self.others:.1f} cores, so this probe is a busy one"
        return text + busy * (self.others > state.BUSY)


def _kept_as(name: str) -> tuple[str, str]:
    """(way, unit) of one of machine.LIMITS in the store of measurements."""
    what, unit = machine.LIMITS[name].rsplit(", ", 1)
    return measurements.READ if name == "read_gbps" else f"limit: {what}", unit


def known(probe: Callable[[], Machine], by: str) -> KnownLimits:
    """Measure the machine; a quiet probe is added to the shared store, and the best of all quiet ones is the limit: one rule
    for each of machine.LIMITS. ``by``: the command or page that asks."""
    measured, others, disturbed = state.watched(probe)
    others, store = others if disturbed else 0.0, measurements.shared()
    for name in machine.LIMITS:
        if samples := tuple(measured.samples.get(name) or filter(None, [getattr(measured, name)])):
            way, unit = _kept_as(name)
            store.add(measurements.Reading(way, "", samples, unit, others=others, by=by, machine=measured.id))
    return best(measured, others)


def best(measured: Machine, others: float = 0.0) -> KnownLimits:
    """A measured machine with the best of each limit that the shared store has of it."""
    limit, at, store = measured, "", measurements.shared()
    for name in machine.LIMITS:
        way, unit = _kept_as(name)
        row = store.best(way, unit, machine=measured.id)
        if row is None or max(row.samples) <= (getattr(measured, name) or 0.0) or getattr(measured, name) is None:
            continue
        limit = folded(limit, name, row.samples, f"the best known of this machine: {row.by} on {row.at[:10]}")
        at = row.at[:10] if name == "read_gbps" else at
    return KnownLimits(limit, measured.read_gbps, others, at)


def folded(limit: Machine, name: str, samples: Sequence[float], how: str) -> Machine:
    """The machine with another value of one of its limits, and where that is from."""
    told = {"samples": limit.samples | {name: [*samples]}, "methods": limit.methods | {name: how}}
    return replace(limit, **{name: max(samples)}, **told)


SEEN = {"read_gbps": "read_gbps", "fill_gbps": "write_gbps"}  # field of a State -> the limit that it is a probe of


def seen(folder: Path, found: state.State, quiet: bool = True) -> None:
    """Count a probe of the machine's state as one of the run's limits, and of the machine's where it is ``quiet``: nothing that
    is measured in a run passes them. A page that rests on a lower one is executed again before it is drawn."""
    for field, name in SEEN.items():
        raised(folder, name, getattr(found, field), "a probe of the machine's state between measurements", quiet)


def raised(folder: Path, name: str, value: float, how: str, quiet: bool = True) -> None:
    """Count what was read or written somewhere in a run as its limit ``name``, if it is more (``seen``)."""
    known = None if state.in_caches() else machine.kept(folder)
    if known is None or known.id != machine.machine_id() or value <= getattr(known, name):
        return
    machine.keep(folder, folded(known, name, [value], how))
    if quiet:
        way, unit = _kept_as(name)
        measurements.shared().add(measurements.Reading(way, "", (value,), unit, by="a run", machine=known.id))


def of_run(folder: Path, by: str) -> KnownLimits:
    """A run's machine (measuring.machine.of_run) with the best bandwidth that is known of it, which the run then keeps. After
    the last probe of a run it is what the run has."""
    if kept.drawing() and (last := machine.kept(folder)):
        return KnownLimits(last, last.read_gbps)
    fresh = not (Path(folder) / machine.ENVIRONMENT).exists()
    measured = machine.of_run(folder) if not fresh else None
    limits = best(measured) if measured else known(lambda: machine.of_run(folder), by)
    written = machine.kept(folder)
    if written is not None and limits.machine != written:
        machine.keep(folder, limits.machine)
    return limits
