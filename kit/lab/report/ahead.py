"""What notebooks would make at their first use, made before they measure: compiled kernels and generated models.

Numba compiles in one thread of a process. So there is a process a core, and each takes what no other one has taken.
"""

import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

import kit
from kit.cpu import tasks
from kit.errors import ReportError, known
from kit.gguf.formats import DTYPES, FORMATS, described
from kit.lab import profiles
from kit.lab.measuring import child
from kit.lab.synthetic.geometry import geometry
from kit.lab.synthetic.write import FOLDER, cached_model, path_of
from kit.products import PRODUCTS
from kit.system import memory_available, usable_cores
from kit.system.files import made
from kit.system.paths import PACKAGE, models_folder

_STAND_IN = "granite-3.3-8b"  # what lab.file() gives
_DECODERS = ("scalar-linear", "scalar-binary", "scalar-table", "interleaved", "simd")
_FEW, _PROMPT = 5, 64  # tokens, for which other kernels multiply
_PROCESS = 448 << 20  # bytes of a process while it compiles
_KEPT = ("F32", "F16", "BF16")  # what a cache keeps
_ACTIVATIONS = tuple(PRODUCTS)

MAKES = {  # what a notebook may declare -> work beyond that of the formats of its model
    "tiles": [("tiles", coding) for coding in ("reported", "kit")],
    "loops": [("token", "strided", attention, "float32", "plain") for attention in ("strided", "loop")],
    "histories": [("token", "fused", "fused", kv, None) for kv in ("float16", "q8_0")],  # types of keys and values
    "formats": [],  # its weights are dequantized, and multiplied by a few tokens
    "tokens": [],  # the same, and the model runs, on prompts too
    "plain": [],  # dequantized without vectors as well
}


def work_of(declared: dict, profile: str, model: str = "", seed: int = 0) -> list[tuple]:
    """What a notebook will make, as its metadata declare it: names in WORK, each with its arguments.

    ``declared``: the notebook's metadata ``kit``: ``models``, names of the profile's that it opens, and ``makes``, names in
    MAKES. ReportError for another name; a notebook that declares nothing compiles at its first use.
    """
    models, makes = profiles.get(profile).models, set(declared.get("makes", ()))
    names = [known("metadata kit.models: model", name, models, ReportError) and name for name in declared.get("models", ())]
    for name in makes:
        known("metadata kit.makes:", name, MAKES, ReportError)
    work = [each for name in MAKES if name in makes for each in MAKES[name]]
    work += [("generated", profile, name, seed) for name in names if not model]
    if makes & {"formats", "tokens"}:
        work += _of_formats(model, *models[_STAND_IN], runs="tokens" in makes, plain="plain" in makes)
    return work


def _of_formats(model: str, stand_in: str, layers: int | None, **how) -> list[tuple]:
    if not model:
        return kernels(geometry(stand_in).tensors(layers=layers), **how)
    with kit.open(model) as file:
        return kernels(file.tensors.values(), **how)


def kernels(tensors, runs=True, plain=False, prompts=_ACTIVATIONS) -> list[tuple]:
    """Work items that compile every kernel that these tensors need: dequantizers and products; with ``runs``, also the other
    kernels of a model of them, for prompts with these activations (none: no prompts); with "plain", also those of that tier."""
    usable = [tensor for tensor in tensors if tensor.qtype in FORMATS and described(FORMATS[tensor.qtype])]
    formats = sorted({tensor.qtype for tensor in usable}, reverse=True)
    matrices = sorted({tensor.qtype for tensor in usable if len(tensor.shape) > 1}, reverse=True)
    work = [("token" if prompts else "first token", "fused", "fused", "float32", None)] if runs else []
    few = dict.fromkeys([*formats, *(_KEPT if runs else ())])
    work += [("multiplied", qtype, _FEW, activations) for qtype in few for activations in _ACTIVATIONS]
    work += [("multiplied", qtype, _PROMPT, activations) for qtype in matrices if runs for activations in prompts]
    return work + [("dequantized", qtype, tier) for tier in (None, "plain")[: 1 + bool(plain)] for qtype in formats]


# ---- what the processes do; what only they need they import


def _dequantized(qtype, tier):
    from kit.cpu import simd

    with simd.using(tier):
        for dtype in ("float32",) if tier else DTYPES:
            kit.dequantize(_blocks(qtype), qtype, dtype, "cpu")


def _blocks(qtype, rows=16):
    return np.zeros((rows, 64 * FORMATS[qtype].block_bytes), np.uint8)


def _multiplied(qtype, tokens, activations):
    import torch

    from kit.cpu.linear import linear

    linear(
        _blocks(qtype),
        qtype,
        torch.ones(tokens, 64 * FORMATS[qtype].block_elements, dtype=torch.float32, device="cpu"),
        activations,
    )


def _token(linear, attention, kv, tier, prompt=(1, 2, 3)):
    from kit.cpu import simd

    name, layers = profiles.get("smoke").models[_STAND_IN]
    path = cached_model(name, "F32", layers, folder=models_folder())  # of formats others have made what there is
    with kit.open(path) as file, simd.using(tier):
        model = kit.Transformer(kit.Weights(file), linear=linear, attention=attention, kv_dtype=kv)
        cache = model.new_cache(8)
        for tokens in (prompt, [1], [1]):  # the last one is recorded as a program
            model.step(list(tokens), cache)


def _tiles(coding):
    import torch

    tiles = kit.codec.encode(torch.arange(300 * 300, dtype=torch.int64, device="cpu").view(300, 300).to(torch.int8), coding)
    for decoder in _DECODERS[: None if coding == "kit" else 3]:
        kit.codec.decode(tiles, decoder)


def _generated(profile, stands_for, seed):
    name, layers = profiles.get(profile).models[stands_for]
    cached_model(name, layers=layers, seed=seed, folder=models_folder())


def check_folder(work: Iterable[tuple]) -> None:
    """ReportError where work generates a model that is not there, and the folder of models may not be written."""
    for profile, stands_for, seed in (arguments for name, *arguments in work if name == "generated"):
        name, layers = profiles.get(profile).models[stands_for]
        if not path_of(name, layers=layers, seed=seed, folder=models_folder()).exists():
            made(models_folder(), ReportError, FOLDER)


# the longest first
WORK = {
    "tiles": _tiles,
    "token": _token,
    "first token": partial(_token, prompt=[1]),
    "generated": _generated,
    "multiplied": _multiplied,
    "dequantized": _dequantized,
}


@contextmanager
def making(work: Iterable[tuple], helping: bool = False) -> Iterator[None]:
    """Do the work in processes, one a core as far as memory goes, nothing twice, beside the ``with``, whose end waits for them.

    What fails is left to what needs it. ``helping``: this process, which imports the same for itself, is one of them from the
    end of the ``with``."""
    order = sorted(dict.fromkeys(work), key=lambda each: [*WORK].index(each[0]))
    left = [each for each in order if not _done(each).exists()]
    with tempfile.TemporaryDirectory(prefix="kit-") as taken:
        count = min(usable_cores(), memory_available() // _PROCESS)
        children = [_child(left, taken) for _ in left[helping:count]]
        try:
            yield
            if helping:
                main(left, Path(taken))
            while any(each.poll() is None for each in children):
                time.sleep(0.05)
        finally:
            for each in children:
                each.kill()
                each.wait()


def make(work: Iterable[tuple]) -> None:
    """The same, and nothing beside it."""
    with making(work):
        pass


def _child(work: list[tuple], taken: str) -> subprocess.Popen:
    none = subprocess.DEVNULL
    return subprocess.Popen(child.command(_alone, work, taken), stdin=none, stdout=none, stderr=none, start_new_session=True)


def _alone(work: list[list], taken: str) -> None:
    with kit.no_collection():
        from kit.model import transformer  # noqa: F401  and torch, which nearly all work needs
    main(work, Path(taken))


def _done(each: tuple) -> Path:
    """The file that says so, beside the kernels."""
    name = "-".join(map(str, each))
    return tasks.beside(name, *(PACKAGE / folder for folder in ("codec", "model", "quants", "lab/synthetic")))


def main(work: list[list], taken: Path) -> None:
    """Do what is not ``taken``: each with a file in that folder, which the process that comes first makes."""
    for number, (name, *arguments) in enumerate(work):
        with suppress(Exception):
            (taken / str(number)).touch(exist_ok=False)
            WORK[name](*arguments)
            _done((name, *arguments)).touch()
