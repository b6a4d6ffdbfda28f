"""One plan of a process: what `kit generate` takes without weights, as every command and page says it.

It is what such a process holds of its own once its libraries are loaded, measured on this machine, and what running adds
(kit.model.footprint).
"""

from kit.errors import KitError
from kit.lab.measuring import child, machine, measurements
from kit.model.footprint import LIBRARIES, RUNNING, added_by

LOADED = "bytes of its own of kit generate with its libraries"  # the way of a reading in the store, unit "B"
_ASSUMED = 175 << 20  # where no other process can be started


def process_bytes(file=None) -> int:
    """Bytes of a process that runs an open file (None: one without a vocabulary whose kernels are compiled) without its weights
    and the history of its context."""
    store = measurements.shared()
    settings = ", ".join(f"{name} {machine.library_version(name)}" for name in ("gguf-kit", "torch", "numba"))
    known = store.known(LOADED, "", settings, "B")
    if known is None:
        try:
            loaded = _of_a_process()
        except (KitError, OSError, TimeoutError):
            loaded = float(_ASSUMED)
        known = store.add(measurements.Reading(LOADED, "", (loaded,), "B", settings, by="kit generate"))
    return int(known.median) + LIBRARIES + RUNNING + (0 if file is None else added_by(file))


def _of_a_process() -> float:
    return float(child.call(_loaded, timeout=300))


def _loaded() -> int:
    import kit.cpu.linear
    import kit.lab.measuring.busy
    import kit.lab.progress
    import kit.model.slots
    import kit.model.tokenizer
    import kit.model.transformer  # noqa: F401
    from kit.system import own_memory

    return own_memory()
