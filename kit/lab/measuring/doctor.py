"""What works here, what does not, and what to do about it: the rows of `kit doctor`."""

import os
import platform
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kit import system
from kit.errors import KitError, ReportError, install
from kit.gguf import large_pages
from kit.gguf.mapped import MappedFile
from kit.lab.measuring import machine
from kit.lab.measuring.identity import processor
from kit.system.paths import models_folder, results_folder
from kit.units import format_bytes, printable

_QUICK_MEMORY = 8 * 2**30
_QUICK_DISK = 5 * 10**9  # the generated models; before most of them, float32 weights that do not fit (page 01)
VARIABLES = (  # that the kit reads or that change what it measures; docs/environment.md says how
    "KIT_RESULTS", "KIT_MODELS", "KIT_PATIENCE", "KIT_MEASURED", "KIT_THREADS", "KIT_SIMD", "LLAMA_CPP", "IK_LLAMA_CPP",
    "OMP_NUM_THREADS", "NUMBA_CACHE_DIR", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "TRITON_INTERPRET",
    "TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN",
    "HF_HUB_CACHE", "JAN_DATA_FOLDER", "KIT_SERVER_KEY", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME",
)  # fmt: skip


class Check(NamedTuple):
    """One row: ``state`` is "ok", "note" (something optional is missing) or "bad" (the kit cannot work so)."""

    subject: str
    state: str
    finding: str
    remedy: str = ""


def checks(tier: tuple[str, str], products: dict[str, list[str]], measure: bool = False) -> list[Check]:
    """All rows. ``tier``: state and finding of kit.cpu.simd.describe. ``products``: how which formats are multiplied
    (kit.cpu.strategies). ``measure``: also bandwidths and FLOP/s (about two seconds)."""
    python = Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    rows = [python, *_libraries(), _environment(), _cores(), Check("vector tier", *tier), _products(products)]
    rows += [_memory(), _pages(), gpu_check(), triton_check(), _peer()]
    rows += [_folder("generated models", models_folder(), _QUICK_DISK), _folder("results", results_folder(), _QUICK_DISK)]
    return rows + ([_speed()] if measure else [])


def _noted(subject: str, finding: str, remedy: str = "") -> Check:
    """A row that is a note where there is something to do."""
    return Check(subject, "note" if remedy else "ok", finding, remedy)


def _libraries() -> list[Check]:
    bare = dict.fromkeys(("numpy", "torch", "numba", "gguf"), ("bad", "pip install --editable . in the checkout"))
    extra = ("note", f"{install('notebooks')} in your checkout, for notebooks, tables and figures")
    versions = {name: machine.library_version(name) for name in (*bare, "papermill", "jupyterlab")}
    return [Check(name, "ok", version) if version else Check(name, state, "not installed", remedy)
            for name, version in versions.items() for state, remedy in [bare.get(name, extra)]]  # fmt: skip


def _environment() -> Check:
    variables = [
        f"{name}={os.environ[name] if name not in ('HF_TOKEN', 'KIT_SERVER_KEY') else '...'}"
        for name in VARIABLES
        if name in os.environ
    ]
    return Check("variables", "ok", printable(", ".join(variables)) or "none is set that the kit reads")


def _cores() -> Check:
    import torch

    cores, threads = system.usable_cores(), torch.get_num_threads()
    remedy = "" if threads == cores else f"unset OMP_NUM_THREADS, or set it to {cores}, to use every core"
    cpu = processor(system.cpu_name(), system.cpu_facts())
    return _noted("cores", f"{cores} usable ({cpu}); torch uses {threads} threads", remedy)


def _products(by_strategy: dict[str, list[str]]) -> Check:
    return Check("products", "ok", "; ".join(f"{how} for {' '.join(formats)}" for how, formats in by_strategy.items()))


def _memory() -> Check:
    free = system.memory_available()
    remedy = "the quick profile needs 8 GB free: close other programs, or --profile smoke" if free < _QUICK_MEMORY else ""
    return _noted("memory", f"{format_bytes(free)} free of {format_bytes(system.memory_limit())}", remedy)


def large_pages_in(folder: Path) -> bool | None:
    """Whether files in a folder can have pages of 2 MiB, by trying one of 4 MiB; None: the system does not tell."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=existing) as file:
        file.write(bytes(2 * large_pages.LARGE))
        file.flush()
        data = MappedFile(Path(file.name)).data
        if system.advise(data, "unmap") and system.forget(file) and system.advise(data, "populate"):
            large = large_pages.share(data)
            return None if large is None else large > large_pages.FEW
    return None


def _pages() -> Check:
    large = large_pages_in(models_folder())
    if large is None:
        return _noted("pages of files", "this system does not say in which page size it maps a file")
    if large:
        return _noted("pages of files", "2 MiB where a file is read again: kit generate does it by itself")
    remedy = "kit generate --pages copied may read faster, if there is memory for a copy of the file"
    return _noted("pages of files", f"4 KiB in {models_folder()}: its file system has no large folios", remedy)


def gpu_check() -> Check:
    """The CUDA device that torch sees, or why it sees none."""
    import torch

    device = machine.gpu()
    if device is not None:
        return _noted("GPU", f"{device['name']}, {format_bytes(device['memory_bytes'])}")
    if torch.version.cuda is None:
        remedy = "everything runs on the CPU; for a GPU install torch's CUDA build of the same version"
        return _noted("GPU", f"torch {torch.__version__} was built without CUDA", remedy)
    remedy = "everything runs on the CPU; for a GPU see that `nvidia-smi` lists one and CUDA_VISIBLE_DEVICES hides none"
    return _noted("GPU", f"torch has CUDA {torch.version.cuda} but finds no device or driver", remedy)


def triton_check() -> Check:
    """The compiler of the GPU kernels, or what keeps it from them."""
    version = machine.library_version("triton")
    if version is None:
        return _noted("Triton", "not installed", "pip install --editable '.[gpu]' (Linux) for the GPU kernels")
    if machine.gpu() is None:
        return _noted("Triton", f"{version}, without a GPU", "TRITON_INTERPRET=1 runs its kernels on the CPU")
    from triton import knobs

    if knobs.runtime.interpret:
        remedy = "unset TRITON_INTERPRET and restart Python to use the GPU"
        return _noted("Triton", f"{version}, told by TRITON_INTERPRET to run its kernels on the CPU", remedy)
    return _noted("Triton", version)


def _peer() -> Check:
    version = machine.library_version("xllamacpp")
    if version is None:
        return _noted("llama.cpp", "not installed", "pip install xllamacpp, to compare kit with it")
    return _noted("llama.cpp", f"xllamacpp {version} (a peer for tests and benchmarks)")


def _folder(subject, folder, needed) -> Check:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return Check(subject, "bad", f"{existing} is not writable", f"give yourself rights on {existing}, or move it")
    remedy = f"the quick profile needs {format_bytes(needed)}: free some space" if free < needed else ""
    return _noted(subject, f"{folder}: {format_bytes(free)} free", remedy)


def _speed() -> Check:
    try:
        probed = machine.probe()
    except (KitError, MemoryError) as error:
        return Check("speed", "bad", str(error), "free some memory and try again")
    text = f"read {probed.read_gbps:.1f}, write {probed.write_gbps:.1f}, copy {probed.copy_gbps:.1f} GB/s"
    text += f"; {probed.f32_gflops:.0f} GFLOP/s float32"
    if probed.gpu:
        text += "; GPU: read {read_gbps:.0f}, write {write_gbps:.0f}, copy {copy_gbps:.0f} GB/s".format(**probed.gpu)
        text += ", from the host {host_to_device_gbps:.0f} GB/s, {launch_us:.1f} us per launch".format(**probed.gpu)
    return Check("speed", "ok", text)


DEVICES = ("cpu", "cuda")


def check_device(name: str) -> str:
    """``name`` again, when this machine can use it. ReportError names what `kit doctor` finds missing, and its remedy."""
    if name not in DEVICES:
        raise ReportError(f"there is no device {name!r}; choose one of {', '.join(DEVICES)}")
    rows = (gpu_check(), triton_check()) if name == "cuda" else ()
    missing = next((row for row in rows if row.state != "ok"), None)
    if missing:
        raise ReportError(
            f"cannot use --device {name}: {missing.subject}: {missing.finding}; {missing.remedy}, or leave out --device"
        )
    return name
