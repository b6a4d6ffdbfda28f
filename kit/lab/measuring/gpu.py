"""Measured limits of the CUDA device, which figures draw beside its kernels, and the timing of device work."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch

from kit.lab.measuring import measure
from kit.lab.measuring.state import Bandwidths

_FLUSH_BYTES = 256 << 20  # larger than any L2 cache
_BUFFER_BYTES = 2 << 30
_LAUNCHES = 200
_MATRIX = 4096


@dataclass(frozen=True)
class Limits(Bandwidths):
    """Limits of a CUDA device as probe_device measured them; GB/s are 10^9 bytes a second."""

    name: str
    memory_bytes: int
    read_gbps: float
    write_gbps: float
    copy_gbps: float
    host_to_device_gbps: float
    launch_us: float
    f32_gflops: float

    @classmethod
    def of(cls, measured: dict) -> "Limits":
        """From kit.lab.measuring.machine.Machine.gpu: the best sample of each limit, so that a bound is never too low."""
        best = {name: (min if name == "launch_us" else max)(values) for name, values in measured["samples"].items()}
        return cls(**{entry.name: (measured | best)[entry.name] for entry in fields(cls)})

    def seconds_from_host(self, nbytes: float) -> float:
        """The least time to copy ``nbytes`` of pinned host memory to the device."""
        return nbytes / (self.host_to_device_gbps * 1e9)


def synchronize() -> None:
    """Wait until the device has finished all its work; without a CUDA device (interpreted kernels) nothing is pending."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_on_device(work: Callable[[], object], samples: int = 20) -> list[float]:
    """Seconds of each sample by CUDA events, after three warm-up calls; the L2 cache is flushed before each sample.

    Without a CUDA device (interpreted kernels in tests) the CPU's clock is used.
    """
    if not torch.cuda.is_available():
        return list(measure.time(work, samples, min_sample=0).samples)
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        work()
    seconds = []
    for _ in range(samples):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds


def probe_device() -> dict:
    """Measure the device: {limit: median, "samples": {limit: list}, "methods": {limit: text}}.

    Limits: bandwidths in GB/s (10^9 bytes; copy counts read + write), GFLOP/s of float32, microseconds a launch.
    Takes 4 GiB of device memory, or half of the free memory, and about two seconds.
    """
    count = min(_BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 4) // 4
    source = torch.rand(count, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    host = torch.empty(min(count, 1 << 26), dtype=torch.float32, device="cpu", pin_memory=True)
    tiny = torch.zeros(1, dtype=torch.float32, device="cuda")

    def launches():
        for _ in range(_LAUNCHES):
            tiny.add_(1)

    square = torch.rand(_MATRIX, _MATRIX, dtype=torch.float32, device="cuda")
    samples, methods = {}, {}
    for name, amount, method, work in (
        ("read_gbps", source.nbytes, "torch.sum over float32", source.sum),
        ("write_gbps", source.nbytes, "torch.Tensor.zero_ over float32", target.zero_),
        ("copy_gbps", 2 * source.nbytes, "torch.Tensor.copy_ over float32, read + write", lambda: target.copy_(source)),
        ("host_to_device_gbps", host.nbytes, "copy_ from pinned memory", lambda: target[: len(host)].copy_(host, True)),
        ("f32_gflops", 2 * _MATRIX**3, f"torch.matmul of two {_MATRIX} x {_MATRIX} float32 matrices", lambda: square @ square),
    ):
        samples[name], methods[name] = [amount / second / 1e9 for second in time_on_device(work)], method
    samples["launch_us"] = [second / _LAUNCHES * 1e6 for second in time_on_device(launches)]
    methods["launch_us"] = f"{_LAUNCHES} additions to one number, one after another"
    medians = {name: float(np.median(values)) for name, values in samples.items()}
    return medians | {"samples": samples, "methods": methods}
