"""Properties of this machine: cores, memory, libraries, and the measured limits that figures draw."""

import json
import platform
import subprocess
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil

from kit.errors import KitWarning, library
from kit.lab.measuring import sound, state
from kit.lab.measuring.identity import cpu_features, machine_id, processor
from kit.system import cpu_facts, cpu_name, last_level_cache, memory_available, memory_limit, usable_cores
from kit.system.files import read_yaml, write_whole
from kit.system.paths import ROOT, data_file

ENVIRONMENT = "environment.json"  # in the folder of a run
_ROW = 4096  # weights of a row of what is probed
_FRESH = 3  # times that memory is allocated, written and freed: a hypervisor may have to provide what is written first
_FRESH_METHOD = f"torch.Tensor.zero_ over a new torch.empty, float32, the best of {_FRESH}: pages that the system has already"
LIBRARIES = ("gguf-kit", "numpy", "torch", "numba", "llvmlite", "pandas", "matplotlib", "gguf", "papermill", "triton")


@dataclass(frozen=True)
class Machine(state.Bandwidths):
    """A measured machine. Bandwidths in GB/s (10^9 bytes; copy counts read + write), GFLOP/s of float32; None: not measured."""

    id: str
    cpu: str
    cores: int
    memory_bytes: int
    memory_limit_bytes: int
    read_gbps: float
    write_gbps: float
    copy_gbps: float | None
    f32_gflops: float | None
    fresh_gbps: float  # writing newly allocated memory: the kernel provides and clears pages that it has, not a hypervisor
    samples: dict[str, list[float]] = field(repr=False, default_factory=dict)
    methods: dict[str, str] = field(repr=False, default_factory=dict)
    gpu: dict | None = None
    system: dict = field(repr=False, default_factory=dict)
    map_gbps: float | None = None

    def best(self, other: "Machine") -> "Machine":
        """``other`` with the better of both of each limit, and its samples."""
        ours = [name for name in LIMITS if getattr(self, name) > getattr(other, name)]
        merged = {kind: getattr(other, kind) | {name: getattr(self, kind)[name] for name in ours if name in getattr(self, kind)}
                  for kind in ("samples", "methods")}  # fmt: skip
        return replace(other, **{name: getattr(self, name) for name in ours}, **merged)

    @property
    def told(self) -> str:
        """Its name in texts: "AMD Zen 5, 2 cores"."""
        return f"{processor(self.cpu, self.system.get('cpu_facts', {}))}, {self.cores} core{'s' * (self.cores != 1)}"

    def seconds_to_compute(self, flops: float) -> float:
        """The least time for ``flops`` operations in float32."""
        return flops / (self.f32_gflops * 1e9)


LIMITS = {  # a field of Machine that is measured -> what it is, for tables
    "read_gbps": "reading memory, GB/s",
    "write_gbps": "writing memory, GB/s",
    "copy_gbps": "copying memory, GB/s",
    "fresh_gbps": "writing fresh memory, GB/s",
    "f32_gflops": "float32 arithmetic, GFLOP/s",
}


def of_run(folder: Path | None) -> Machine:
    """The machine of a run: read from ``folder/environment.json`` if this machine wrote it, else measured and written.

    When memory is now much faster than in the file, measurements would exceed its bounds: it is measured anew, and of each
    limit the best is kept. `kit reproduce` then runs the pages again that rest on a lower one.
    """
    known = kept(folder) if folder else None
    known = known if known and known.id == machine_id() else None
    if known and (state.in_caches() or state.probe_state().read_gbps < state.NEAR * known.read_gbps):
        return known
    machine = known.best(probe()) if known else probe()
    if folder:
        keep(folder, machine)
    return machine


def keep(folder: Path, machine: Machine) -> None:
    """Write the environment.json of a run."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_whole(Path(folder) / ENVIRONMENT, json.dumps(asdict(machine), indent=1) + "\n")


def kept(folder: Path) -> Machine | None:
    """The machine of a run's environment.json. None where there is none; with a warning, where it is damaged: it is measured
    again then."""
    path = Path(folder) / ENVIRONMENT
    if not path.exists():
        return None
    try:
        return sound.row_of(Machine, sound.read_json(path))
    except ValueError as error:
        warnings.warn(f"{path} does not describe a machine ({error}): it is measured again", KitWarning, stacklevel=2)
        return None


def probe(leave_out: Iterable[str] = ()) -> Machine:
    """Measure this machine: one to five seconds, up to 1 GiB of memory, or eight times the CPU's caches. ``leave_out``:
    "copy_gbps", half of the memory, and "f32_gflops", where nobody reads them."""
    samples, methods = _measured_limits(leave_out)
    best = dict.fromkeys(leave_out) | {name: max(values) for name, values in samples.items()}
    device = gpu()
    if device is not None:
        from kit.lab.measuring.gpu import probe_device

        device |= probe_device()
    return Machine(
        id=machine_id(), cpu=cpu_name(), cores=usable_cores(), memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=memory_limit(), **best, samples=samples, methods=methods, gpu=device, system=describe(),
    )  # fmt: skip


def _measured_limits(leave_out) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(samples, methods) of each of LIMITS but some; bandwidths are measured over ``_probe_bytes``."""
    import torch

    import kit
    from kit.lab.measuring import measure

    small = torch.rand(256, 256, dtype=torch.float32, device="cpu")
    slow = min(measure.time(lambda: small @ small, samples=3).samples) > 0.01  # an emulated CPU, which would take minutes
    most, side = (64 << 20, 256) if slow else (_probe_bytes(last_level_cache()), 2048)
    count = min(most, memory_available() // 8) // (4 * _ROW) * _ROW
    nbytes = 4 * count
    fresh = [_fresh_gbps(count) for _ in range(_FRESH)]
    buffers = [state.numbers(count).zero_() for _ in range(1 if "copy_gbps" in leave_out else 2)]
    source, target = buffers[0], buffers[-1]
    matrix, vector = source.view(-1, _ROW), torch.ones(_ROW, dtype=torch.float32, device="cpu")
    blocks, rows = np.zeros((count // _ROW, _ROW // 32 * 18), np.uint8), target.view(-1, _ROW)
    a, b = torch.rand(2, side, side, dtype=torch.float32, device="cpu")
    ways = (
        ("read_gbps", "torch.sum over float32", source.sum, nbytes),
        ("read_gbps", "a float32 matrix times a vector", lambda: matrix @ vector, nbytes),
        ("write_gbps", "torch.Tensor.zero_ over float32", target.zero_, nbytes),
        ("write_gbps", "kit.dequantize of Q4_0, past the caches", lambda: kit.dequantize(blocks, "Q4_0", out=rows), nbytes),
        ("copy_gbps", "torch.Tensor.copy_ over float32, read + write", lambda: target.copy_(source), 2 * nbytes),
        ("f32_gflops", f"torch.matmul of two {side} x {side} float32 matrices", lambda: a @ b, 2 * side**3),
    )
    samples, methods = {"fresh_gbps": fresh}, {"fresh_gbps": _FRESH_METHOD}
    for name, method, function, amount in (way for way in ways if way[0] not in leave_out):
        rates = [amount / seconds / 1e9 for seconds in measure.time(function, samples=6, min_sample=0).samples]
        if max(rates) > max(samples.get(name, [0])):  # of two ways the faster one is the bound
            samples[name], methods[name] = rates, method
    return samples, methods


def _fresh_gbps(count: int) -> float:
    """GB/s of writing so many float32 to memory that is allocated for it and freed again."""
    import torch

    from kit.lab.measuring import measure

    new = torch.empty(count, dtype=torch.float32, device="cpu")
    return new.nbytes / measure.time(new.zero_, samples=0).first / 1e9


def _probe_bytes(cache: int) -> int:
    """Bytes of a probe of memory, on a CPU with so many of last-level cache: eight times as many, from 128 to 512 MiB, and four
    times as many at least. On 480 MiB of cache 512 MiB were read at 32.8 GB/s, which no model reached."""
    return max(4 * cache, min(512 << 20, max(128 << 20, 8 * cache)))


def describe() -> dict:
    """Versions of system and libraries, threads, CPU features and git commit, for a run's record."""
    import torch

    return {
        "os": platform.platform(),
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := library_version(name))},
        "torch_threads": torch.get_num_threads(),
        "cpu_features": cpu_features(),
        "cpu_facts": cpu_facts(),
        "commit": git_commit(),
    }


def gpu() -> dict | None:
    """Name, memory and compute capability of the first CUDA device, None when there is none."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "count": torch.cuda.device_count(),
    }


@cache
def library_version(name: str) -> str | None:
    """Version of an installed package, None when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def git_commit() -> str:
    """The checkout's commit, with ``+`` when the tree has uncommitted changes; empty without git."""
    try:
        run = lambda *args: subprocess.run(  # noqa: E731
            ("git", "-C", str(ROOT), *args), capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        return run("rev-parse", "--short=12", "HEAD") + ("+" if run("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def peaks():
    """A DataFrame of data/devices.yaml, a row a device: id, name, read_gbps (10^9 bytes a second), memory_bytes, source."""
    return library("pandas").DataFrame(read_yaml(data_file("devices.yaml")))
