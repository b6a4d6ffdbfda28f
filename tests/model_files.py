"""Small F32 model files for tests, one for each family and feature, written by the kit."""

from dataclasses import replace
from pathlib import Path

import numpy as np

import kit
from kit.gguf import writer
from kit.synthetic.geometry import GEOMETRIES, Scaling, TensorSpec
from kit.synthetic.write import synthesize

_LLAMA, _QWEN2, _GRANITE = (GEOMETRIES[name] for name in ("tiny-llama", "tiny-qwen2", "tiny-granite"))


def _scaled(geometry, name, **keys):
    extra = {key.replace("__", "."): value for key, value in keys.items()}
    return replace(geometry, name=name, more=geometry.more | extra)


_LINEAR = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
_YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64}
MODELS = {
    name: GEOMETRIES[name]
    for name in GEOMETRIES
    if name.startswith("tiny-")
} | {
    "linear": _scaled(_LLAMA, "linear", **_LINEAR),
    "linear-old-key": _scaled(_LLAMA, "linear-old-key", rope__scale_linear=2.0),
    "llama3": replace(_LLAMA, name="llama3", rope_scaling=Scaling(8.0, 1.0, 4.0, 64)),
    "yarn": _scaled(_LLAMA, "yarn", **_YARN),
    "yarn-neox": _scaled(_QWEN2, "yarn-neox", **_YARN),
    "olmo3": _scaled(GEOMETRIES["tiny-olmo2"], "olmo3", attention__sliding_window=16, **_YARN),
    "gemma3-linear": _scaled(GEOMETRIES["tiny-gemma3"], "gemma3-linear", **_LINEAR),
    "internlm2": replace(_LLAMA, name="internlm2", architecture="internlm2"),
    "ernie4_5": replace(_LLAMA, name="ernie4_5", architecture="ernie4_5"),
    "seed_oss": replace(_LLAMA, name="seed_oss", architecture="seed_oss"),
    "gemma": replace(_LLAMA, name="gemma", architecture="gemma", tied=True),
    "minicpm": replace(
        _scaled(_LLAMA, "minicpm", embedding_scale=2.0, residual_scale=0.5, logit_scale=4.0), architecture="minicpm"
    ),
    "exaone": replace(_LLAMA, name="exaone", architecture="exaone"),
    "partial": _scaled(_LLAMA, "partial", rope__dimension_count=32),
    "granitemoe": replace(
        _scaled(_GRANITE, "granitemoe", expert_count=4, expert_used_count=2), architecture="granitemoe"
    ),
}  # fmt: skip


def write(folder: Path, name: str, mix: str = "F32") -> Path:
    """The file of ``MODELS[name]`` in ``folder``, written once."""
    path = folder / f"{name}-{mix}.gguf"
    return path if path.exists() else synthesize(path, MODELS[name], mix)


def rewrite(source: Path, target: Path, change) -> Path:
    """Copy a model file as float32; ``change(metadata, tensors)`` edits dicts of its plain values and F32 arrays."""
    file = kit.open(source)
    metadata = {key: value if isinstance(value, (str, int, float)) else value.tolist() for key, value in file.metadata.items()}
    weights = kit.Weights(file)
    tensors = {key: weights[key].numpy() for key in file.tensors}
    change(metadata, tensors)
    specs = [TensorSpec(key, "F32", array.shape) for key, array in tensors.items()]
    return writer.write(target, metadata, specs, tensors.values())


def plain(path: Path) -> tuple[dict, dict]:
    """(metadata, tensors as float64) of a file, for the reference."""
    file = kit.open(path)
    weights = kit.Weights(file)
    return dict(file.metadata.items()), {name: weights[name].numpy().astype(np.float64) for name in file.tensors}
