"""What the CUDA device can do, measured: the limits beside which its kernels are shown; and how device work is timed."""

from collections.abc import Callable

import numpy as np
import torch

_FLUSH_BYTES = 256 << 20  # larger than any L2 so far
_BUFFER_BYTES = 2 << 30
_LAUNCHES = 200


def time_on_device(work: Callable[[], object], samples: int = 20) -> list[float]:
    """Seconds of each sample by CUDA events, after three warm-up calls; before each, writes flush the L2 cache."""
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
    """Bandwidths in GB/s (10^9 bytes; copy counts read + write) and microseconds a launch: samples, methods, medians.

    Takes 4 GiB of device memory, or half of what is free, and about two seconds.
    """
    count = min(_BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 4) // 4
    source = torch.rand(count, device="cuda")
    target = torch.empty_like(source)
    host = torch.empty(min(count, 1 << 26), pin_memory=True)
    tiny = torch.zeros(1, device="cuda")

    def launches():
        for _ in range(_LAUNCHES):
            tiny.add_(1)

    nbytes = source.nbytes
    work = {
        "read_gbps": ("torch.sum over f32", source.sum, nbytes),
        "write_gbps": ("torch.Tensor.zero_ over f32", target.zero_, nbytes),
        "copy_gbps": ("torch.Tensor.copy_ over f32, read + write", lambda: target.copy_(source), 2 * nbytes),
        "host_to_device_gbps": ("copy_ from pinned memory", lambda: target[: len(host)].copy_(host, True), host.nbytes),
    }
    seconds = {name: time_on_device(function) for name, (_, function, _) in work.items()}
    samples = {name: [work[name][2] / second / 1e9 for second in taken] for name, taken in seconds.items()}
    samples["launch_us"] = [second / _LAUNCHES * 1e6 for second in time_on_device(launches)]
    methods = {name: text for name, (text, _, _) in work.items()}
    methods["launch_us"] = f"{_LAUNCHES} additions to one number, one after another"
    medians = {name: float(np.median(values)) for name, values in samples.items()}
    return medians | {"samples": samples, "methods": methods}
