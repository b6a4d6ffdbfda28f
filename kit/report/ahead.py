"""What notebooks would make at their first use, made before they measure: compiled kernels and generated models.

Numba compiles in one thread of a process. So there is a process a core; each goes through the work from another end and
finds on disk what another one has done.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import kit
from kit.cpu import tasks
from kit.lab import profiles
from kit.lab.paths import PACKAGE, models_folder
from kit.lab.system import usable_cores
from kit.quants import reference
from kit.synthetic.geometry import geometry
from kit.synthetic.write import cached_model

_STAND_IN = "granite-3.3-8b"  # what lab.file() gives
_DECODERS = ("scalar-linear", "scalar-binary", "scalar-table", "interleaved", "simd")


def work_of(code: str, profile: str, model: str = "", seed: int = 0) -> list[tuple]:
    """What cells will make, by what they mention: names in WORK, each with its arguments."""
    models, uses = profiles.get(profile).models, lambda pattern: re.search(pattern, code)
    named = [name for name in models if uses(r"lab\.(file|path)\(\)" if name == _STAND_IN else name)]
    found = [("tiles", coding) for coding in ("reported", "kit") if uses(r"codec\.")]
    found += [("token", "strided", attention, "float32", "plain") for attention in ("strided", "loop") if uses("strided")]
    found += [("generated", profile, name, seed) for name in named if not model]
    found += [("token", "fused", "fused", kv, None) for kv in ("float16", "q8_0") if uses("by_history_type")]
    if uses(r"exactness|Transformer|Decode|live\.|ways\."):
        found += _of_formats(model, *models[_STAND_IN], plain=uses("strided|dequantizers"))
    return found


def _of_formats(model: str, stand_in: str, layers: int | None, plain) -> list[tuple]:
    if not model:
        return kernels(geometry(stand_in).tensors(layers=layers), plain)
    with kit.open(model) as file:
        return kernels(file.tensors.values(), plain)


def kernels(tensors, plain=False) -> list[tuple]:
    """What a decode of these tensors uses, and what dequantizes them, on the "plain" tier as well if so."""
    formats = sorted({tensor.qtype for tensor in tensors} & reference.FORMATS, reverse=True)
    found = [("exact", qtype, backend, None) for backend in ("fused", "cpu") for qtype in formats]
    found += [("exact", qtype, "cpu", "plain") for qtype in formats if plain]
    return [*found, ("token", "fused", "fused", "float32", None)]


# ---- what the processes do; what only they need they import


def _exact(qtype, backend, tier):
    from kit.gguf.formats import DTYPES
    from kit.quants.exactness import exactness

    exactness([qtype], (backend,), ("float32",) if tier else tuple(DTYPES), (tier,))


def _token(linear, attention, kv, tier):
    from kit.cpu import simd

    with kit.open(_generated("smoke", _STAND_IN)) as file, simd.using(tier):
        model = kit.Transformer(kit.Weights(file), linear=linear, attention=attention, kv_dtype=kv)
        cache = model.new_cache(8)
        for tokens in ([1, 2, 3], [1], [1]):  # the last one is recorded as a program
            model.step(tokens, cache)


def _tiles(coding):
    import torch

    tiles = kit.codec.encode(torch.arange(300 * 300).view(300, 300).to(torch.int8), coding)
    for decoder in _DECODERS[: None if coding == "kit" else 3]:
        kit.codec.decode(tiles, decoder)


def _generated(profile, stands_for, seed=0):
    name, layers = profiles.get(profile).models[stands_for]
    return cached_model(name, layers=layers, seed=seed, folder=models_folder())


WORK = {"tiles": _tiles, "generated": _generated, "exact": _exact, "token": _token}  # a token uses what exact compiles


def make(work: Iterable[tuple]) -> None:
    """Do the work in processes, one a core, but nothing twice. What fails is left to the notebook that needs it."""
    left = {each: _done(each) for each in sorted(dict.fromkeys(work), key=lambda each: [*WORK].index(each[0]))}
    left = {each: path for each, path in left.items() if not path.exists()}
    order = [*left][::2] + [*left][1::2][::-1]  # both ends begin with the first
    children, count = [], min(usable_cores(), len(order))
    try:
        for number in range(count):
            start = number // 2 * 2 * len(order) // count
            children.append(_child((order[start:] + order[:start])[:: 1 - number % 2 * 2]))
        while any(child.poll() is None for child in children) and not all(path.exists() for path in left.values()):
            time.sleep(0.05)
    finally:
        for child in children:
            child.kill()
            child.wait()


def _child(work: list[tuple]) -> subprocess.Popen:
    command, none = [sys.executable, "-m", __name__, json.dumps(work)], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)


def _done(each: tuple) -> Path:
    """The file that says so, beside the kernels."""
    name = "-".join(map(str, each))
    return tasks.beside(name, *(PACKAGE / folder for folder in ("codec", "model", "quants", "synthetic")))


def main(work: list[list]) -> None:
    for name, *arguments in work:
        done = _done((name, *arguments))
        if not done.exists():
            with suppress(Exception):
                WORK[name](*arguments)
                done.touch()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
