"""First token on a device: the file's blocks cross the bus once, as they are, and every token reads them where they lie."""

import pandas as pd

import kit
from kit.claims import table as claims
from kit.findings import reported
from kit.findings.n01_first_token.results import by_phase, ratios, samples, typical_runs
from kit.findings.n01_first_token.ways import Run, phases
from kit.findings.n04_attention.device import blocks_read, check_room
from kit.gguf import pagecache
from kit.lab import tables
from kit.lab.device import Limits, synchronize
from kit.model.device import DeviceTransformer
from kit.model.device_weights import DeviceWeights
from kit.units import format_bytes

WAYS = {
    "uploaded": "from the closed file: the blocks to the device, then the prompt",
    "second": "the second request, everything on the device",
    "graph": "the prompt's last token by a CUDA graph, those before it in the KV cache",
}
PHASES = ("open", "read", "upload", "compute")


def measure(path, way: str, prompt: list[int]) -> Run:
    """Run one way to the first token of ``prompt`` (two tokens or more); the clock stops with the logits on the host. Phases:
    "read" fills pinned memory from the file, "upload" is the part of the copy to the device that it does not hide. Dequantized
    weights do not exist; ``held_bytes`` counts blocks in device memory."""
    trace, cold = kit.Trace(), pagecache.drop(path)
    with trace.span("open"):
        file = kit.open(path)
        weights = DeviceWeights(file)
        reading = weights.host_store.trace = kit.Trace()
    with trace.span("upload"):
        weights.resident(name for name, tensor in file.tensors.items() if len(tensor.shape) < 3)  # experts: when used
        model = DeviceTransformer(weights, max_context=len(prompt))
        synchronize()
    trace.spans += [span._replace(what="read") for span in reading.spans]
    cache, kept = model.new_cache(), len(prompt) - 1 if way == "graph" else 0
    asked = prompt[kept:]
    for earlier in {"uploaded": [], "second": [prompt], "graph": [prompt, asked]}[way]:  # the graph is captured by its second
        model.step(earlier, cache)
        cache.truncate(kept)
        trace.clear()
    before = weights.store.stats
    with trace.span("compute"):
        logits = model.step(asked, cache)
    after, frame = weights.store.stats, trace.frame()
    file.close()
    counts = after.resident_bytes, after.hits - before.hits, after.misses - before.misses
    return Run(way, WAYS[way], frame, phases(frame, PHASES), logits, *counts, cold)


def measure_all(path, prompt: list[int], repeats: int) -> list[Run]:
    """Every way ``repeats`` times, in turn, after one round that is not counted: kernels compile in it."""
    with kit.open(path) as file:
        check_room(file)
    for way in WAYS:
        measure(path, way, prompt)
    return [measure(path, way, prompt) for _ in range(repeats) for way in WAYS]


def predict(file, gpu: Limits, disk_gbps: float) -> pd.DataFrame:
    """The least seconds of each phase: bytes of all blocks over the disk's, the bus's and the device's bandwidth."""
    nbytes, used = sum(tensor.nbytes for tensor in file.tensors.values()), blocks_read(file)
    rows = {
        "read": (nbytes, f"{disk_gbps:.1f} GB/s from disk, measured here", nbytes / disk_gbps / 1e9),
        "upload": (nbytes, f"{gpu.host_to_device_gbps:.1f} GB/s from pinned host memory", gpu.seconds_from_host(nbytes)),
        "compute": (used, f"{gpu.read_gbps:,.0f} GB/s of device memory, blocks read once", gpu.seconds_to_read(used)),
    }
    return tables.frame(rows, "phase", "bytes", "bound", "seconds")


def least_seconds(way: str, predicted: pd.DataFrame) -> float:
    """The bound of a way; reading and the copy over the bus overlap."""
    least = predicted["seconds"]
    return least["compute"] + (max(least["read"], least["upload"]) if way == "uploaded" else 0.0)


def table(runs: list[Run], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row a way: seconds by phase, in all, and the least possible; bytes on the device."""
    typical = typical_runs(runs)
    held = [format_bytes(run.held_bytes) for run in typical.values()]
    return by_phase(runs).assign(bound=[least_seconds(way, predicted) for way in typical], held=held)


def judge(lab, file, on_cpu: list[Run], runs: list[Run], predicted: pd.DataFrame) -> None:
    """Records of every way, and the verdicts of first-token-preload that a device can give; ``on_cpu`` has "reported"."""
    claim = claims.get("first-token-preload")
    for way, what in WAYS.items():
        lab.record(
            quantity=f"first token on the device, {what}", unit="s", samples=samples(runs, way), device=lab.device,
            lower=least_seconds(way, predicted), lower_source="the blocks' bytes at the measured bandwidths it passes",
        )  # fmt: skip
    lab.judge(
        claim.id, "first token as reported (CPU) over a token from blocks on the device", "x",
        ratios(on_cpu + runs, "reported", "graph"), accept=(100, None), in_ratio=True,
        tolerance="hundreds to thousands, as 2,600x is",
        text=f"on {lab.gpu.name} nothing is dequantized ahead; the blocks are read where they lie", device=lab.device,
    )  # fmt: skip
    scale = reported.elements() / sum(tensor.elements for tensor in file.tensors.values())
    whole = [scale * seconds for seconds in samples(runs, "second")]
    lab.judge(
        claim.id, f"second request on the device, for the weights of {reported.MODEL}", "s", whole, accept=(None, claim.after),
        in_ratio=True,
        at_least=(scale * least_seconds("second", predicted), f"blocks read once at {lab.gpu.read_gbps:,.0f} GB/s"),
        text=f"{scale:.3g} times these weights, from blocks in {lab.gpu.read_gbps:,.0f} GB/s of device memory, no preload of "
        "f32", device=lab.device,
    )  # fmt: skip
