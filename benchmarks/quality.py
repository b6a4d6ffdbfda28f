"""What rounding costs trained models: KL divergence of the next token from float32's, the kit compared with llama.cpp.

The exact answer is llama.cpp's own: the same weights in float32, a float32 KV cache and no flash attention.
"""

import os
import tempfile
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import kit
from benchmarks import _records
from benchmarks._engines import ENGINES, IK
from benchmarks._files import fetch
from kit.cpu.simd.tiers import tier
from kit.cpu.tasks import source_stamp
from kit.gguf import writer
from kit.gguf.reader import TensorInfo
from kit.gguf.trained import TRAINED
from kit.lab.engines import llama_cpp
from kit.lab.engines.processes import Process
from kit.lab.explaining import peers
from kit.lab.measuring.machine import library_version
from kit.lab.predicting import divergence
from kit.lab.predicting.divergence import compare, recorded, window_of
from kit.lab.predicting.quality import quality
from kit.system.paths import models_folder

LONG, POSITIONS = "qwen2.5-coder-1.5b", 4096  # a model of a size that people run: every precision, on so many positions
TOKENS = 617  # of an English text: 600 positions are scored
FEW = 145  # for a benchmark of speeds, where no record says more: 128 positions
MOST = 1.05  # of llama.cpp's own KL divergence
PASSES = {"prompt": False, "token by token": True}
EXACT = {"kv": "float32", "exact": True}
WAYS = {  # a way -> its engine of peers.ENGINES and the engine's options: float32 attention where it has that
    "fused": ("kit", {}),
    "fused-int16": ("kit, int16 activations", {}),
    "fused-int8": ("kit, int8 activations", {}),
    "llama.cpp": ("llama.cpp, mmap", EXACT),
    "ik_llama.cpp": ("ik_llama.cpp", {"kv": "float16"}),
}


def run(only: str = "", tokens: int = TOKENS) -> pd.DataFrame:
    """One row a model, way and pass (the text as one prompt, or token by token): KL divergence from float32 in nats, the share
    of tokens with the same most probable one, perplexity, with standard errors, and the KL beside llama.cpp's on the same file
    in the same pass, which should be at most 1.05 of it. ``only``: the models whose name holds this."""
    rows = []
    for model in filter(lambda name: only in name, TRAINED):
        path, theirs = fetch(model), {}
        for way, (engine, options) in WAYS.items():
            if ENGINES[engine].missing():
                continue
            for name in PASSES:
                row = of(path, engine, name, tokens, **options)
                rows.append({"what": f"{model}, {way}, {name}", "kl key": key_of(path, engine, name, **options)} | row)
                theirs[way, name] = row["kl"]
        for row in rows[-len(theirs) :]:
            peer = theirs.get(("llama.cpp", row["what"].rpartition(", ")[2]), np.nan)
            row["of llama.cpp"], row["most"] = row["kl"] / peer, MOST
    if only in f"{LONG}, {POSITIONS} positions":
        rows += _long()
    return pd.DataFrame(rows).set_index("what")


def _long() -> list[dict]:
    """Every precision of kit.lab.predicting.quality, and llama.cpp as it is used, on POSITIONS positions of one text."""
    path, tokens = fetch(LONG), divergence.CONTEXT + POSITIONS + 1
    with kit.open(path) as file:
        peer = None if ENGINES[peers.PEER].missing() else Process(peers.PEER, path, tokens)
        try:
            others = {"llama.cpp": divergence.LogitSource(peer.read)} if peer else {}
            table = quality(file, tokens=tokens, progress=True, others=others)
        finally:
            if peer:
                peer.close()
    theirs = table["kl"].get("llama.cpp", np.nan)
    return [
        {"what": f"{LONG}, {POSITIONS} positions, {name}"} | row | {"of llama.cpp": row["kl"] / theirs}
        for name, row in table.drop(columns="command").to_dict("index").items()
    ]


def told(path: Path, engine: str, name: str, environment: tuple = (), **options) -> dict[str, object]:
    """Of ``of``: kl, kl_error, same and the positions scored (``tokens``), with the key by which a record of them is found;
    from the committed record of most positions with this key, else measured on FEW tokens."""
    key = key_of(path, engine, name, environment, **options)
    found = _records.quality(key) or of(path, engine, name, FEW, environment, **options)
    return {"kl key": key} | {column: found[column] for column in ("kl", "kl_error", "same", "tokens")}


def key_of(path: Path, engine: str, name: str, environment: tuple = (), **options) -> str:
    """What a KL divergence depends on, as a digest: the file, the engine's code and what it is told, the pass."""
    whole = next((model.sha256 for model in TRAINED.values() if model.file == path.name), None) or _digest(path)
    named = os.environ.get("IK_LLAMA_CPP" if engine == IK else "LLAMA_CPP", "") or dict(environment).get("LLAMA_CPP", "")
    if engine.startswith("kit"):
        code = source_stamp(Path(kit.cpu.__file__).parent), tier().value
    else:
        code = library_version("xllamacpp"), named and _digest(Path(named))
    return sha256(repr((whole, engine, name, sorted(environment), sorted(options.items()), code)).encode()).hexdigest()[:16]


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@cache
def of(path: Path, engine: str, name: str, tokens: int = TOKENS, environment: tuple = (), **options) -> dict[str, float]:
    """The columns of kit.lab.predicting.quality for an engine of peers.ENGINES in a pass of PASSES. ``environment``: pairs of
    a variable and its value, for the engine's process."""
    window, truth = _truth(path, tokens)
    logits = peers.logits_of(engine, path, window, PASSES[name], dict(environment), **options)
    return compare(window, recorded(truth), {name: recorded(logits)})[name]


@cache
def _truth(path, tokens) -> tuple[list[int], torch.Tensor]:
    """The token ids of a text, and the exact logits after each: (tokens, vocabulary) float32."""
    with kit.open(path) as file, tempfile.TemporaryDirectory(dir=models_folder()) as folder:
        model = kit.Transformer(kit.Weights(file), linear="matmul")
        window = window_of(model.tokenizer, model.config.context, tokens)
        if tokens <= FEW or not llama_cpp.available():  # its own file in float32 takes a minute and four times the disk
            return window, model.logits(window)
        weights, specs = kit.Weights(file), [TensorInfo.new(name, "F32", info.shape) for name, info in file.tensors.items()]
        plain = {key: value if isinstance(value, str | int | float) else value.tolist() for key, value in file.metadata.items()}
        whole = writer.write(Path(folder, path.name), plain, specs, (weights[spec.name].numpy() for spec in specs))
        return window, torch.from_numpy(peers.logits_of(peers.PEER, whole, window, alone=False, **EXACT))
