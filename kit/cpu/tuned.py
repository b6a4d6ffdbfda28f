"""Numbers that were measured on one CPU and hold for its kind: the only place that asks which CPU this is.

The first row that matches is taken. A number for another CPU is a row, with what gave it and the commit that has the figures
(docs/speeds_records.md has them too).
"""

from collections.abc import Callable
from typing import NamedTuple

from kit.cpu.tasks import features
from kit.system import cpu_facts, cpu_name


class Tuned(NamedTuple):
    """``ahead``: bytes after which a row's lines are fetched; memory is a long way off, and a page begins without a wait.
    ``wide``: bytes of a row's int8 records from which on none are, because they push the records out of the first-level cache;
    0: no limit. ``why``: what was measured, and in which commit. ``dequantized``: as ``ahead``, of blocks that are dequantized;
    one number for all CPUs so far (d69fe60)."""

    cpus: str
    matches: Callable[[], bool]
    ahead: int
    wide: int
    why: str
    dequantized: int = 3072


_SMALL = "32K"  # of the first-level data cache
TUNED = (
    Tuned("Arm", lambda: "neon" in features(), 0, 0, "its CPUs follow a stream by themselves; not measured"),
    Tuned("Intel, 32 KiB of L1", lambda: _intel() and _small(), 2048, 6144, "as the two rows below"),
    Tuned("Intel", lambda: _intel(), 2048, 0, "Xeon: a token of granite-3.3-2b, 1.4 times as fast as with 8 KiB (e92a979)"),
    Tuned("32 KiB of L1", lambda: _small(), 4096, 6144,
          "Zen 4: rows of 8192 int8 columns took 0.83 to 0.93 of the time of 8 KiB. With a prefetch a Q6_K row of 8960 int8 "
          "columns took 1.2 to 1.5 times as long. An exact one took 0.8 times: it has three times the records, and the "
          "arithmetic between them (2adeaeb, adb3777)"),
    Tuned("others", lambda: True, 8192, 0, "Zen 5: granite's blocks took 0.6 to 0.9 of the time of 2 KiB (59483e4)"),
)  # fmt: skip


def tuned() -> Tuned:
    """The row of this CPU."""
    return next(row for row in TUNED if row.matches())


def _intel() -> bool:
    return cpu_name().startswith("Intel")


def _small() -> bool:
    return cpu_facts().get("L1 data") == _SMALL
