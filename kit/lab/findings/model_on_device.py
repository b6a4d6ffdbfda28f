"""A model on a GPU: seconds to its first token, and tokens per second by context and KV cache type, compared with the limit of
its memory bandwidth. The file's blocks cross the bus once and stay quantized; every token reads them from GPU memory."""

import gc
import time
from itertools import product

import numpy as np
import pandas as pd
import torch

import kit
from kit.errors import ModelError, ReportError
from kit.gguf import pagecache
from kit.gguf.uses import bytes_used, uses_of
from kit.lab import figures, tables
from kit.lab.claims import table as claims
from kit.lab.findings import reported
from kit.lab.findings.live import relative_rms
from kit.lab.measuring.gpu import Limits, synchronize
from kit.lab.on_device.device_kvcache import KV_DTYPES
from kit.lab.on_device.device_weights import DeviceWeights
from kit.lab.on_device.on_gpu import DeviceTransformer
from kit.lab.predicting.attention import attention_flops
from kit.model.config import Config
from kit.model.hyperparameters import read_config
from kit.system import memory_available
from kit.units import format_bytes

CONTEXTS = (1, 512, 4096, 32768, 131071)
_SHARE = 0.8  # of the free memory that a KV cache may take; masks and activations need some, too


def blocks_read(file) -> int:
    """Bytes of blocks that one token of an open file reads."""
    return int(bytes_used(uses_of(file)))


def kv_room(config: Config, context: int, kv: str) -> int:
    """Bytes of memory for the keys and values of ``context`` positions."""
    return sum(layer.mixer.memory.held(context, KV_DTYPES[kv].itemsize) for layer in config.layers)


def free_bytes() -> int:
    """Free memory of the GPU, after freeing what earlier models left; of this machine if kernels are interpreted."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else memory_available()


def check_room(file) -> None:
    """ModelError if the blocks of ``file`` do not fit into the GPU's free memory."""
    need, have = sum(tensor.nbytes for tensor in file.tensors.values()), _SHARE * free_bytes()
    if need > have:
        raise ModelError(
            f"{file.path}: its blocks take {format_bytes(need)} and the device has {format_bytes(have)} for them: "
            "choose a smaller profile or model, or --device cpu"
        )


def on_cpu(file, prompt: list[int]) -> torch.Tensor:
    """The logits after ``prompt`` from the CPU's fused products."""
    check_room(file)
    return kit.Transformer(kit.Weights(file), linear="fused").logits(prompt)[-1]


def check_equal(what: str, logits: torch.Tensor, right: torch.Tensor) -> None:
    """ReportError if the GPU's logits differ from the CPU's by more than rounding."""
    if (off := relative_rms(logits, right)) > 1e-4:
        raise ReportError(f"{what}: the device's logits differ from the CPU's by {off:.1e} of their spread")


def speeds(file, samples: int, contexts=CONTEXTS, kinds=tuple(KV_DTYPES)) -> pd.DataFrame:
    """Decode after a random context of each length that the model knows, by KV cache type: ``samples`` (seconds per token, its
    logits on the host) and their median, the ``bytes`` read and ``flops`` of a token; ``missing``: why there are no samples.
    With a GPU each token is a replayed CUDA graph, captured before the first that counts."""
    config, weights = read_config(file), DeviceWeights(file)
    blocks, elements, rows = blocks_read(file), bytes_used(uses_of(file), 1), []
    for context, kv in product((n for n in contexts if n < config.context), kinds):
        flops = 2 * elements + sum(attention_flops(config, context, layer) for layer in range(len(config.layers)))
        read = blocks + sum(layer.mixer.memory.read(context, KV_DTYPES[kv].itemsize) for layer in config.layers)
        need, have = kv_room(config, context + 1, kv), _SHARE * free_bytes()
        missing = f"{format_bytes(need)} of keys and values, {format_bytes(have)} to have" if need > have else ""
        taken = [] if missing else _tokens(weights, context, kv, samples)
        rows.append((context, kv, taken, np.median(taken) if taken else np.nan, read, flops, missing))
    return pd.DataFrame(rows, columns=["context", "KV cache", "samples", "seconds", "bytes", "flops", "missing"])


def _tokens(weights: DeviceWeights, context: int, kv: str, samples: int) -> list[float]:
    model = DeviceTransformer(weights, max_context=context + 1, kv_dtype=kv)
    cache, taken = model.new_cache(), []
    cache.reserve(context + 1)
    for stored in (*cache.keys, *cache.values):
        stored.normal_(generator=torch.Generator(stored.device).manual_seed(0))
    cache.advance(context)
    for _ in range(samples + 2):  # the first compiles and captures, the second warms up
        cache.truncate(context)
        start = time.perf_counter()
        model.step([0], cache)  # ends with the logits on the host: the device has finished
        taken.append(time.perf_counter() - start)
    return taken[2:]


def table(points: pd.DataFrame, gpu: Limits) -> pd.DataFrame:
    """One row per context and KV type: tokens per second, the limit of read bandwidth, the share of it, GB/s; or the reason why
    not."""
    least = points["bytes"].map(gpu.seconds_to_read)
    told = {
        "tok/s": 1 / points["seconds"], "limit tok/s": 1 / least, "of the limit": least / points["seconds"],
        "GB/s": points["bytes"] / points["seconds"] / 1e9, "left out": points["missing"],
    }  # fmt: skip
    return points[["context", "KV cache"]].assign(**told).set_index(["context", "KV cache"])


def roofline(points: pd.DataFrame, gpu: Limits):
    """GFLOP/s against FLOPs per byte of every token, one color per KV type, one marker per context; the roof is the GPU's
    measured bandwidth and float32 peak."""
    measured = points.dropna()
    intensity, gflops = measured["flops"] / measured["bytes"], measured["flops"] / measured["seconds"] / 1e9
    figure, axes = figures.roof(gpu, intensity.min() / 2, intensity.max() * 2, height=4.8)
    axes.set(xlabel="FLOPs per byte read", ylabel="GFLOP/s")
    kinds, contexts = list(measured["KV cache"].unique()), list(measured["context"].unique())
    for row, (kind, context) in measured[["KV cache", "context"]].iterrows():
        color, marker = figures.PALETTE[kinds.index(kind)], "osv^D"[contexts.index(context) % 5]
        label = f"{kind} keys and values, context {context:,}"
        axes.plot(intensity[row], gflops[row], marker, color=color, markersize=8, label=label)
    share = (measured["bytes"].map(gpu.seconds_to_read) / measured["seconds"]).median()
    axes.set_title(f"A decoded token on {gpu.name} takes {1 / share:.1f}x as long as its memory allows at least")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5)
    return figure


def judge(lab, file, points: pd.DataFrame, stands_for: str) -> None:
    """Records of every point, and what the shortest context says of blas-500 and variance-45-1100. A file of fewer layers than
    ``stands_for`` is scaled by the bytes of its blocks."""
    for point in points.to_dict("records"):
        what = f"decode of {stands_for} on the device, context {point['context']}, {point['KV cache']} KV cache"
        if point["missing"]:
            lab.record(quantity=what, unit="tok/s", status="skipped", reason=point["missing"], device=lab.device)
            continue
        lab.record(
            quantity=what, unit="tok/s", samples=[1 / seconds for seconds in point["samples"]], device=lab.device,
            upper=1 / lab.gpu.seconds_to_read(point["bytes"]), upper_source="blocks, keys and values at read bandwidth",
        )  # fmt: skip
    whole, share = reported.block_bytes(stands_for), reported.elements(stands_for) / reported.elements()
    here = [blocks_read(file) / whole / seconds for seconds in points.dropna()["samples"].iloc[0]]
    for name in ("blas-500", "variance-45-1100") if stands_for == reported.MODEL else ("variance-45-1100",):
        claim = claims.get(name)
        lab.judge(
            claim.id, f"tokens a second for the weights of {stands_for}, from blocks on the device", "tok/s", here,
            accept=(claim.after, None), in_ratio=True,
            at_most=(1 / lab.gpu.seconds_to_read(whole), f"{format_bytes(whole)} of blocks at {lab.gpu.read_gbps:,.0f} GB/s"),
            text=f"batch 1 on {lab.gpu.name}, a CUDA graph a token, of a model with {share:.0%} of the reports' weights",
            device=lab.device,
        )  # fmt: skip


def run(lab, samples: int) -> list[pd.DataFrame]:
    """Decode granite and TinyLlama (or the run's model) on the device: equality, records, verdicts, a figure; their tables."""
    tables, prompt = [], [1, 5, 9]
    for stands_for in (reported.MODEL, "tinyllama-1.1b")[: 1 if lab.model else 2]:
        with lab.file(stands_for) as file:
            right, model = on_cpu(file, prompt), DeviceTransformer(DeviceWeights(file), max_context=len(prompt))
            check_equal(file.path, model.step(prompt, model.new_cache()), right)
            points = speeds(file, samples)
            judge(lab, file, points, stands_for)
        roofline(points, lab.gpu)
        tables.append(table(points, lab.gpu))
    return tables


# --- the first token ---------------------------------------------------------------------------------------------------

FIRST = {
    "uploaded": "from the closed file: the blocks to the device, then the prompt",
    "second": "the second request, everything on the device",
    "graph": "the prompt's last token by a CUDA graph, those before it in the KV cache",
}


def first_token(path, way: str, prompt: list[int]) -> tuple[float, torch.Tensor]:
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


def first_tokens(lab, path, prompt: list[int], repeats: int, disk_gbps: float) -> pd.DataFrame:
    """Every way of FIRST ``repeats`` times, in turn, after one that compiles: equality, records, the verdict; a row a way.

    The bound: the blocks read once on the device, and before an upload the longer of reading the file and the bus.
    """
    with kit.open(path) as file:
        right, nbytes = on_cpu(file, prompt), sum(tensor.nbytes for tensor in file.tensors.values())
        least = dict.fromkeys(FIRST, lab.gpu.seconds_to_read(blocks_read(file)))
        least["uploaded"] += max(nbytes / disk_gbps / 1e9, lab.gpu.seconds_from_host(nbytes))
        scale = reported.elements() / sum(tensor.elements for tensor in file.tensors.values())
    seconds: dict[str, list[float]] = {way: [] for way in FIRST}
    for number in range(repeats + 1):
        for way in FIRST:
            took, logits = first_token(path, way, prompt)
            check_equal(f"{path}: {way}", logits, right)
            seconds[way] += [took] * (number > 0)
    for way, what in FIRST.items():
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
    rows = {what: (np.median(seconds[way]), least[way], np.median(seconds[way]) / least[way]) for way, what in FIRST.items()}
    return tables.frame(rows, "way", "total, s", "limit, s", "times the limit")
