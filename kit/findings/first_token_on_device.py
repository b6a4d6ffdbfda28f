"""First token on a device: the file's blocks cross the bus once, as they are, and every token reads them where they lie."""

import time

import numpy as np
import pandas as pd
import torch

import kit
from kit.claims import table as claims
from kit.errors import ReportError
from kit.findings import reported
from kit.findings.decode_on_device import blocks_read, check_room
from kit.findings.live import relative_rms
from kit.gguf import pagecache
from kit.lab.device import Limits, synchronize
from kit.model.device import DeviceTransformer
from kit.model.device_weights import DeviceWeights

WAYS = {
    "uploaded": "from the closed file: the blocks to the device, then the prompt",
    "second": "the second request, everything on the device",
    "graph": "the prompt's last token by a CUDA graph, those before it in the KV cache",
}


def measure(path, way: str, prompt: list[int]) -> tuple[float, torch.Tensor]:
    """(seconds, logits) of one way to the first token of ``prompt`` (two tokens or more); the clock stops with the logits
    on the host. Dequantized weights do not exist."""
    pagecache.drop(path)
    start = time.perf_counter()
    with kit.open(path) as file:
        weights = DeviceWeights(file)
        weights.resident(name for name, tensor in file.tensors.items() if len(tensor.shape) < 3)  # experts: when used
        model = DeviceTransformer(weights, max_context=len(prompt))
        synchronize()
        cache, kept = model.new_cache(), len(prompt) - 1 if way == "graph" else 0
        asked = prompt[kept:]
        earlier = {"uploaded": [], "second": [prompt], "graph": [prompt, asked]}[way]  # the graph is captured by its second
        for tokens in earlier:
            model.step(tokens, cache)
            cache.truncate(kept)
        start = time.perf_counter() if earlier else start
        logits = model.step(asked, cache)
        return time.perf_counter() - start, logits


def least_seconds(way: str, file, gpu: Limits, disk_gbps: float) -> float:
    """The bound of a way: the blocks read once on the device, and before it the longer of reading the file and the bus."""
    nbytes = sum(tensor.nbytes for tensor in file.tensors.values())
    brought = max(nbytes / disk_gbps / 1e9, gpu.seconds_from_host(nbytes))
    return gpu.seconds_to_read(blocks_read(file)) + (brought if way == "uploaded" else 0.0)


def run(lab, path, prompt: list[int], repeats: int, disk_gbps: float) -> pd.DataFrame:
    """Every way ``repeats`` times, in turn, after one that compiles: equality, records, the verdict; a row a way."""
    with kit.open(path) as file:
        check_room(file)
        right = kit.Transformer(kit.Weights(file), linear="fused").logits(prompt)[-1]
        least = {way: least_seconds(way, file, lab.gpu, disk_gbps) for way in WAYS}
        scale = reported.elements() / sum(tensor.elements for tensor in file.tensors.values())
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(repeats + 1):
        for way in WAYS:
            took, logits = measure(path, way, prompt)
            if (off := relative_rms(logits, right)) > 1e-4:
                raise ReportError(f"{path}: {way}: the device's logits differ from the CPU's by {off:.1e} of their spread")
            seconds[way] += [took] * (number > 0)
    for way, what in WAYS.items():
        lab.record(
            quantity=f"first token on the device, {what}", unit="s", samples=seconds[way], device=lab.device, lower=least[way],
            lower_source="the blocks' bytes at the measured bandwidths they pass",
        )  # fmt: skip
    claim = claims.get("first-token-preload")
    lab.judge(
        claim.id, f"second request on the device, for the weights of {reported.MODEL}", "s",
        [scale * value for value in seconds["second"]], accept=(None, claim.after), in_ratio=True,
        at_least=(scale * least["second"], f"blocks read once at {lab.gpu.read_gbps:,.0f} GB/s"),
        text=f"{scale:.3g} times these weights, from blocks on {lab.gpu.name}, no preload of float32", device=lab.device,
    )  # fmt: skip
    rows = {what: (np.median(seconds[way]), least[way], np.median(seconds[way]) / least[way]) for way, what in WAYS.items()}
    return pd.DataFrame.from_dict(rows, "index", columns=["total, s", "bound, s", "times the bound"]).rename_axis("way")
