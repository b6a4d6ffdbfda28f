"""Which machine this is: the name that records, runs and measurements are compared by."""

import hashlib
from functools import cache

from kit.system import cpu_facts, cpu_name, memory_limit, usable_cores

_WIDEST = {"amx-int8": "amx", "avx512vnni": "avx512", "avx512f": "avx512", "avx2": "avx2", "neon": "neon"}  # -> word of an id
FEATURES = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512vbmi2", "avx512vnni", "amx-int8", "f16c", "neon")

_ZEN = {  # AMD's microarchitectures: (family, models) -> name, as Linux has them (arch/x86/kernel/cpu/amd.c)
    (23, (*range(0x30), *range(0x50, 0x60))): "Zen",
    (23, (*range(0x30, 0x50), *range(0x60, 0x80), 0x90, 0x91, *range(0xA0, 0xB0))): "Zen 2",
    (25, (*range(0x10), *range(0x20, 0x60))): "Zen 3",
    (25, (*range(0x10, 0x20), *range(0x60, 0xB0))): "Zen 4",
    (26, (*range(0x30), *range(0x40, 0x50), *range(0x60, 0x80))): "Zen 5",
}


def processor(name: str, facts: dict[str, str]) -> str:
    """The one name that a CPU has in texts: "AMD Zen 5", its microarchitecture where ``facts`` (kit.system.cpu_facts) tell it,
    because a virtual machine calls all of AMD's servers "AMD EPYC"; else its model ``name``."""
    family, model = (int(facts.get(key) or -1) for key in ("cpu family", "model"))
    found = (zen for (of, models), zen in _ZEN.items() if name.startswith("AMD") and of == family and model in models)
    return next((f"AMD {zen}" for zen in found), name)


@cache
def machine_id() -> str:
    """A short stable name of the machine, such as ``amd-epyc-avx2-2c-24g-5f1c``: CPU, its widest vectors, cores, GiB of memory,
    and a hash of these with its family, model, stepping, features and caches, which two CPUs of one name differ in."""
    cores, gib = usable_cores(), round(memory_limit() / 2**30)
    words = "-".join(cpu_name().lower().replace("(r)", "").replace("(tm)", "").split()[:3])
    words = "".join(c for c in words if c.isalnum() or c == "-")
    widest = next((name for name in _WIDEST if name in cpu_features()), "")
    facts = (cpu_name(), cores, gib, *cpu_facts().items(), *cpu_features())
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:4]
    return f"{words}{f'-{_WIDEST[widest]}' if widest else ''}-{cores}c-{gib}g-{digest}"


@cache
def cpu_features() -> list[str]:
    """Those of FEATURES that this CPU has."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return [name for name in FEATURES if features.get(name)]
