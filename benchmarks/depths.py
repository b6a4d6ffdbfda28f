"""A token by its depth in models that choose positions: index, choosing, attention and the rest, each beside its least.

Layers have the sizes of the published models; there is one of each kind, few experts and few words, and no prompt is run: keys
and values are random, and as many as the depth. What choosing costs does not depend on which they are. The whole token is timed
in turn with llama.cpp, whose cache of float16 gets as many positions.
"""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd

import kit
from benchmarks import _deep
from benchmarks._files import cached_model
from benchmarks._turns import alternately, running, serve, times
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.engines import llama_cpp
from kit.lab.explaining import depth
from kit.lab.measuring import machine
from kit.lab.predicting.attention import DecodeStep
from kit.lab.synthetic.geometry import GEOMETRIES, Geometry
from kit.model.hyperparameters import read_config
from kit.system.paths import models_folder

DEPTHS = (4096, 32768, 131072)
_FEW = replace(GEOMETRIES["qwen3.5-2b"].vocabulary, size=4096, special={0: "<|endoftext|>", 1: "<|im_end|>"}, bos=0, eos=1)
_GLM = {  # zai-org/GLM-5: one of its leading dense layers, which has an index
    "rope.dimension_count": 64, "attention.q_lora_rank": 2048, "attention.kv_lora_rank": 512, "attention.key_length": 576,
    "attention.value_length": 512, "attention.key_length_mla": 256, "attention.value_length_mla": 256,
    "attention.indexer.head_count": 32, "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
    "attention.indexer.types": [1], "leading_dense_block_count": 1, "expert_count": 256, "expert_used_count": 8,
    "expert_shared_count": 1, "expert_feed_forward_length": 2048, "expert_gating_func": 2, "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}  # fmt: skip
# Qwen/Qwen3.8-Flash-Next: a delta net, without which llama.cpp ends, and one of its layers that attend, with 16 of 512 experts.
# The rank of its streams is not known here; it touches the rest alone.
_QWEN = {
    "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 2,
    "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.time_step_rank": 32, "ssm.group_count": 16,
    "attention.indexer.head_count": 4, "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
    "attention.compress_ratios": [0, 4], "hyper_connection.count": 4, "hyper_connection.low_rank": 64,
    "expert_count": 16, "expert_used_count": 10, "expert_feed_forward_length": 640, "expert_shared_feed_forward_length": 640,
}  # fmt: skip
MODELS = {
    "glm-dsa": Geometry("glm-5-one", "glm-dsa", 1, 6144, 12288, 64, 1, 576, 202752, _FEW, 1e6, 1e-5, more=_GLM),
    "qwen4exp": Geometry("qwen3.8-two", "qwen4exp", 2, 2560, 640, 24, 2, 256, 262144, _FEW, 1e7, 1e-6, more=_QWEN),
}
WAYS = {"kit, exact": "fused", "kit, int8": "fused-int8", "llama.cpp": ""}
ROUNDS, HOPED = 5, {32768: 1.5}  # of turns; times llama.cpp's speed at a depth


def side(way: str, path: str, depth: str):
    """What a process of this benchmark runs: the token after so many positions, the same one each time but in llama.cpp."""
    if way == "llama.cpp":
        return _deep.theirs(path, int(depth))
    step = DecodeStep(kit.Weights(kit.open(path)), WAYS[way], "fused", int(depth), kv="float16")

    def token():
        step.model.trace.clear()
        step.cache.back_to(step.mark)
        step.model.step([0], step.cache)

    return token


def _in_turn(name: str, path, depth: int) -> list[dict]:
    """A row a way: milliseconds of a token, the median of the rounds, and the median of llama.cpp's time over it."""
    own = {way: {} if way.startswith("kit") else llama_cpp.ENVIRONMENT for way in WAYS}
    with running({way: (("-m", "benchmarks.depths", way, str(path), str(depth)), own[way]) for way in WAYS}) as sides:
        seconds = alternately(sides, ROUNDS)
    rows = []
    for way, taken in seconds.items():
        row = {"what": f"{name} at {depth:,}, token, {way}", "ms": 1e3 * float(np.median(taken))}
        row["times llama.cpp"] = times(seconds["llama.cpp"], taken)["ratio"]
        rows.append(row | {"hoped, times llama.cpp": HOPED.get(depth) if way.startswith("kit") else None})
    return rows


def run(only: str = "", depths=DEPTHS) -> pd.DataFrame:
    """Milliseconds of a token a model, depth and part, as measured and the least at this machine's bandwidth, and their ratio;
    at most 2 is hoped for of index and choosing together. Of the whole token also the speed of each way over llama.cpp's, where
    that is installed. ``only``: models whose name holds this."""
    rows, gbps = [], machine.probe(("copy_gbps", "f32_gflops")).read_gbps
    for name in filter(lambda name: only in name, MODELS):
        path = cached_model(MODELS[name], folder=models_folder())
        with kit.open(path) as file:
            bounds = depth.least(read_config(file), bytes_used(uses_of(file)), gbps, "float16", depths)
            for least, taken in zip(bounds, depth.measured(file, kv="float16", depths=depths), strict=True):
                parts = {part: (taken[part], least[part]) for part in taken if part not in ("positions", "by")}
                choosing = [part for part in parts if part.endswith(tuple(depth.CHOOSING.values()))]
                parts["index and choosing"] = tuple(sum(parts[part][side] for part in choosing) for side in (0, 1))
                for part, (seconds, bound) in parts.items():
                    row = {"what": f"{name} at {taken['positions']:,}, {part}", "ms": 1e3 * seconds, "least ms": 1e3 * bound}
                    row["times the least"] = seconds / bound if bound else float("nan")
                    rows.append(row | ({"hoped": 2.0} if part == "index and choosing" else {}))
        for positions in depths if llama_cpp.available() else ():
            rows += _in_turn(name, path, positions)
    return pd.DataFrame(rows).set_index("what")


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
