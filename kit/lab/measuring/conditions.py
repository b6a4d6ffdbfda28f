"""The conditions of a measurement: whatever a speed depends on beside the file, the machine and the way, as ``name=value``.

A key that lacks one of them gives a value of other conditions for this one. So all variables of a family count, not those that
somebody thought of, and a test holds docs/environment.md to this list.
"""

import hashlib
import os
import platform
from functools import cache
from pathlib import Path

from kit.lab.measuring.machine import library_version
from kit.system import usable_cores
from kit.system.groups import text_of
from kit.system.paths import PACKAGE

CODE = (  # folders of what computes and reads, and of what runs a peer; other code changes no speed
    "cache", "codec", "cpu", "gguf", "model", "quants", "system", "lab/engines",
)  # fmt: skip
LIBRARIES = ("numba", "llvmlite", "torch", "xllamacpp")
BUILDS = ("LLAMA_CPP", "IK_LLAMA_CPP")  # variables that name a library to run
FAMILIES = (  # variables that begin so change what Numba, torch, OpenMP, the allocator, the loader or llama.cpp do
    "ATEN_", "CUDA_", "DNNL_", "GGML_", "GLIBC_TUNABLES", "GOMP_", "GOTO_", "KMP_", "LD_BIND_NOW", "LD_PRELOAD", "LLAMA_",
    "MALLOC_", "MKL_", "NUMBA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "THP_", "TORCHINDUCTOR_", "TRITON_",
)  # fmt: skip
NO_SPEED = (  # of a family, and no speed follows from them: places, messages, what libraries set by themselves as they load
    "CUDA_CACHE_PATH", "CUDA_MODULE_LOADING", "LLAMA_CACHE", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "NUMBA_CACHE_DIR",
    "NUMBA_COLOR_SCHEME", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", *BUILDS,
)  # fmt: skip
_SYSTEM = {  # a choice of the system's that changes speeds -> its file
    "large_pages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
}


def settings() -> str:
    """All of them and the code that computes, as one text without blanks in a value."""
    return " ".join(f"{name}={'_'.join(str(value).split())}" for name, value in ({"code": code()} | conditions()).items())


def conditions() -> dict[str, object]:
    """What is known of them: cores, threads, vectors, libraries, variables that are set, builds of peers, the system's."""
    cores = usable_cores()
    found = {"cores": cores, "threads": os.environ.get("KIT_THREADS") or cores}  # as kit.cpu.threads has it
    found["vectors"] = os.environ.get("KIT_SIMD") or "auto"
    found |= {"python": platform.python_version()} | {name: library_version(name) for name in LIBRARIES}
    found |= {name: os.environ[name] for name in sorted(os.environ) if name.startswith(FAMILIES) and name not in NO_SPEED}
    found |= {name: build(Path(os.environ[name])) for name in BUILDS if os.environ.get(name)}
    for name, path in _SYSTEM.items():
        told = text_of(path)
        found[name] = told.partition("[")[2].partition("]")[0] or told.strip()
    return {name: value for name, value in found.items() if value not in (None, "")}


def check_variables() -> None:
    """KitError for a variable of kit's own that nothing can follow: before any work, and not on the tenth page."""
    if not any(map(os.environ.get, ("KIT_THREADS", "KIT_SIMD", "KIT_PATIENCE"))):
        return
    from kit.cpu import simd
    from kit.lab.measuring import state
    from kit.system.cores import threads_asked

    threads_asked()
    state.patience()
    if (asked := os.environ.get("KIT_SIMD")) and asked not in simd.available():
        with simd.using(asked) as tier:
            tier()  # says what this CPU can run


def computing() -> dict[str, object]:
    """Those of them on which computed values may depend, by their last bits: not the system's."""
    return {name: value for name, value in conditions().items() if name not in _SYSTEM}


def build(library: Path) -> str:
    """A digest of a peer's build: names, sizes and times of the libraries in its folder, which are built together. A build that
    is made again in one place has another."""
    digest = hashlib.sha256()
    together = (path for kind in ("*.so*", "*.dylib", "*.dll") for path in library.parent.glob(kind))
    for path in sorted({library, *together}):
        facts = path.stat() if path.exists() else None
        digest.update(repr((path.name, facts and (facts.st_size, facts.st_mtime_ns))).encode())
    return digest.hexdigest()[:12]


@cache
def code() -> str:
    """A digest of the code that computes."""
    digest = hashlib.sha256()
    for source in sorted(path for part in CODE for path in (PACKAGE / part).rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
