"""One plan of a process: what `kit generate` takes without weights, as every command and page says it.

It is what such a process holds once its libraries are loaded, measured on this machine, and what running adds to that. A test
holds the plan to the peak that the command measures, within a seventh: a long prompt takes more than a token.
"""

import psutil

from kit.cpu import tasks
from kit.errors import KitError
from kit.lab.measuring import child, measurements

LOADED = "resident bytes of kit generate with its libraries"  # the way of a reading in the store, unit "B"
RUNNING = (
    70 << 20
)  # bytes that running adds: the kernels' code, buffers, threads; 30 to 36 MiB for a token, 62 for a prompt of 199
COMPILING = 72 << 20  # and those of a process that has to compile its kernels first: 40 to 80 MiB were measured
ENTRY = 128  # bytes of an entry of the vocabulary in a tokenizer
_ASSUMED = 300 << 20  # where no other process can be started


def process_bytes(file=None) -> int:
    """Bytes of a process that runs an open file (None: one without a vocabulary whose kernels are compiled) without its weights
    and the history of its context."""
    store, settings = measurements.shared(), measurements.settings()
    known = store.known(LOADED, "", settings, "B", busy=True)
    if known is None:
        try:
            loaded = float(child.call(_loaded, timeout=300))
        except (KitError, OSError, TimeoutError):
            loaded = float(_ASSUMED)
        known = store.add(measurements.Reading(LOADED, "", (loaded,), "B", settings, by="kit generate"))
    words = len(file.metadata.get("tokenizer.ggml.tokens", ())) if file is not None else 0
    return int(known.median) + RUNNING + ENTRY * words + (0 if file is None or _ran(file).exists() else COMPILING)


def has_run(file) -> None:
    """Note that the kernels of an open file's formats are compiled."""
    try:
        _ran(file).touch()
    except OSError:  # nowhere to note it: the next plan is larger than it needs to be
        return


def _ran(file):
    return tasks.beside("ran-" + "-".join(sorted({info.qtype for info in file.tensors.values()})))


def _loaded() -> int:
    import kit
    import kit.cpu.linear
    import kit.lab.measuring.busy
    import kit.lab.progress
    import kit.model.slots
    import kit.model.tokenizer
    import kit.model.transformer  # noqa: F401

    return psutil.Process().memory_info().rss
