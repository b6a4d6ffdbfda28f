"""The limits of this machine: as measured now, and the best that quiet measurements have shown before."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kit.lab.measuring import machine, measurements, state
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
        text = f"memory reads at {self.machine.read_gbps:.1f} GB/s"
        if self.at:
            text += f" (the best known of this machine, of {self.at}; now {self.now:.1f})"
        busy = f"; other processes use {self.others:.1f} cores, so this probe is a busy one"
        return text + busy * (self.others > state.BUSY)


def known(probe: Callable[[], Machine], by: str) -> KnownLimits:
    """Measure the machine; a quiet probe is added to the shared store, and the best of all quiet ones is the limit. ``by``: the
    command or page that asks."""
    measured, others, disturbed = state.watched(probe)
    others = others if disturbed else 0.0
    samples = tuple(measured.samples.get("read_gbps") or [measured.read_gbps])
    store = measurements.shared()
    store.add(measurements.Reading(measurements.READ, "", samples, "GB/s", others=others, by=by, machine=measured.id))
    return best(measured, others)


def best(measured: Machine, others: float = 0.0) -> KnownLimits:
    """A measured machine with the best bandwidth that the shared store has of it."""
    row = measurements.shared().best(measurements.READ, "GB/s", machine=measured.id)
    if row is None or max(row.samples) <= measured.read_gbps:
        return KnownLimits(measured, measured.read_gbps, others)
    at = row.at[:10]
    how = measured.methods | {"read_gbps": f"the best known of this machine: {row.by} on {at}"}
    limit = replace(measured, read_gbps=max(row.samples), samples=measured.samples | {"read_gbps": [*row.samples]}, methods=how)
    return KnownLimits(limit, measured.read_gbps, others, at)


def of_run(folder: Path, by: str) -> KnownLimits:
    """A run's machine (measuring.machine.of_run) with the best bandwidth that is known of it, which the run then keeps."""
    fresh = not (Path(folder) / machine.ENVIRONMENT).exists()
    limits = known(lambda: machine.of_run(folder), by) if fresh else best(machine.of_run(folder))
    if limits.at:
        machine.keep(folder, limits.machine)
    return limits
