"""A token by its depth in models that choose positions: index, choosing, attention and the rest, each beside its least.

Layers have the sizes of the published models; there is one of them, few experts and few words, and no prompt is run: keys and
values are random, and as many as the depth. What choosing costs does not depend on which they are.
"""

from dataclasses import replace

import pandas as pd

import kit
from benchmarks._files import cached_model
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.explaining import depth
from kit.lab.measuring import machine
from kit.lab.synthetic.geometry import GEOMETRIES, Geometry
from kit.model.hyperparameters import read_config
from kit.system.paths import models_folder

DEPTHS = (4096, 32768, 131072)
_FEW = replace(GEOMETRIES["qwen3.5-2b"].vocabulary, size=4096, special={0: "<|endoftext|>", 1: "<|im_end|>"}, bos=0, eos=1)
_GLM = {  # zai-org/GLM-5: one of its leading dense layers, which has an index
    "rope.dimension_count": 64, "attention.q_lora_rank": 2048, "attention.kv_lora_rank": 512, "attention.key_length": 576,
    "attention.value_length": 512, "attention.key_length_mla": 256, "attention.value_length_mla": 256,
    "attention.indexer.head_count": 32, "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
    "attention.indexer.types": [1],
}  # fmt: skip
# Qwen/Qwen3.8-Flash-Next: one of its layers that attend, with 16 of 512 experts. The rank of its streams is not known here; it
# touches the rest alone.
_QWEN = {
    "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 1,
    "attention.indexer.head_count": 4, "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
    "attention.compress_ratios": [4], "hyper_connection.count": 4, "hyper_connection.low_rank": 64,
    "expert_count": 16, "expert_used_count": 10, "expert_feed_forward_length": 640, "expert_shared_feed_forward_length": 640,
}  # fmt: skip
MODELS = {
    "glm-dsa": Geometry("glm-5-few", "glm-dsa", 1, 6144, 12288, 64, 1, 576, 202752, _FEW, 1e6, 1e-5, more=_GLM),
    "qwen4exp": Geometry("qwen3.8-few", "qwen4exp", 1, 2560, 640, 24, 2, 256, 262144, _FEW, 1e7, 1e-6, more=_QWEN),
}


def run(only: str = "", depths=DEPTHS) -> pd.DataFrame:
    """Milliseconds of a token a model, depth and part, as measured and the least at this machine's bandwidth, and their ratio;
    at most 2 is hoped for of index and choosing together. ``only``: models whose name holds this."""
    rows, gbps = [], machine.probe(("copy_gbps", "f32_gflops")).read_gbps
    for name in filter(lambda name: only in name, MODELS):
        with kit.open(cached_model(MODELS[name], folder=models_folder())) as file:
            bounds = depth.least(read_config(file), bytes_used(uses_of(file)), gbps, "float16", depths)
            for least, taken in zip(bounds, depth.measured(file, kv="float16", depths=depths), strict=True):
                parts = {part: (taken[part], least[part]) for part in taken if part not in ("positions", "by")}
                choosing = [part for part in parts if part.endswith(tuple(depth.CHOOSING.values()))]
                parts["index and choosing"] = tuple(sum(parts[part][side] for part in choosing) for side in (0, 1))
                for part, (seconds, bound) in parts.items():
                    row = {"what": f"{name} at {taken['positions']:,}, {part}", "ms": 1e3 * seconds, "least ms": 1e3 * bound}
                    row["times the least"] = seconds / bound if bound else float("nan")
                    rows.append(row | ({"hoped": 2.0} if part == "index and choosing" else {}))
    return pd.DataFrame(rows).set_index("what")
