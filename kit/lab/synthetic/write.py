"""Write a GGUF file of any geometry with random but valid blocks, in pieces: the float32 model is never in memory.

Each matrix has a pool of blocks, quantized from normal numbers of standard deviation 0.02, and is filled with permutations
of that pool. The random numbers depend on the seed and the tensor's name alone: a tensor is the same at any layer count.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from kit.errors import GGUFError
from kit.gguf.reader import TensorInfo
from kit.gguf.writer import ALIGNMENT, header, padded
from kit.lab.synthetic.encode import encode
from kit.lab.synthetic.geometry import Geometry, geometry
from kit.model.layers import KINDS
from kit.system.files import made, replacing
from kit.system.note import doing

SIGMA = 0.02  # standard deviation of the weights, as in a freshly initialized transformer
_ROOM = "ask for fewer layers or write elsewhere"  # where the disk is too small
FOLDER = "name another folder by KIT_MODELS"  # where none may be written
REVISION = 2  # part of a cached file's name: raise it whenever the same arguments give other bytes
_DRAWN = {  # mean and standard deviation of other tensors, by how their names end
    ".bias": (0, SIGMA), "_norm.weight": (1, 0.05), **{end: drawn for kind in KINDS for end, drawn in kind.drawn.items()},
}  # fmt: skip
_UNIT = 256  # weights that stay together when a pool is permuted: a super-block, or 8 blocks of 32
_POOL = 512  # such units in a pool: 131,072 weights


def synthesize(
    path: str | os.PathLike,
    model: str | Geometry,
    mix: str = "Q4_K_M",
    layers: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Path:
    """Write ``path``: the geometry's tensors in the types of ``mix``, metadata and a minimal tokenizer.

    The same arguments give the same bytes. The file appears whole or not at all. Raises GGUFError when the disk is too
    small or cannot be written.
    """
    path, model = Path(path), geometry(model)
    specs = model.tensors(mix, layers)
    head = header(model.metadata(mix, layers), specs)
    size = len(head) + sum(padded(spec.nbytes) for spec in specs)
    bar = tqdm(total=size, desc=path.name, unit="B", unit_scale=True, unit_divisor=1024, disable=None if progress else True)
    with doing(f"generating {model.name}"), replacing(path, size, room=_ROOM) as handle, bar:
        for chunk in _stream(head, specs, model, seed):
            handle.write(chunk)
            bar.update(len(chunk))
    return path


def cached_model(
    model: str | Geometry,
    mix: str = "Q4_K_M",
    layers: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike = "data/models",
) -> Path:
    """The path of a synthesized file in ``folder``, written on the first call and reused afterwards."""
    path = path_of(model, mix, layers, seed, folder)
    if not path.exists():
        made(path.parent, GGUFError, FOLDER)
        synthesize(path, model, mix, layers, seed)
    return path


def path_of(model: str | Geometry, mix: str = "Q4_K_M", layers: int | None = None, seed: int = 0, folder="data/models") -> Path:
    """The path of ``cached_model`` with the same arguments, whether its file exists or not."""
    model = geometry(model)
    depth = model.layers if layers is None else layers
    return Path(folder) / f"{model.name}-{mix}-{depth}layers-seed{seed}-r{REVISION}.gguf"


def _stream(head: bytes, specs: list[TensorInfo], model: Geometry, seed: int) -> Iterator[bytes | memoryview]:
    yield head
    for spec in specs:
        left = spec.nbytes
        for chunk in _chunks(spec, model, seed):
            yield chunk.data[:left]
            left -= min(left, chunk.nbytes)
        yield bytes(-spec.nbytes % ALIGNMENT)


def _chunks(spec: TensorInfo, model: Geometry, seed: int) -> Iterator[np.ndarray]:
    """The bytes of a tensor in pieces of one pool, uint8; the last piece may be too long."""
    name = f"{seed}/{spec.name}".encode()
    random = np.random.Generator(np.random.SFC64(int.from_bytes(hashlib.sha256(name).digest())))
    if spec.name == "rope_freqs.weight":
        yield model.rope_scaling.factors(model.rope_base, model.head_dim).view(np.uint8)
        return
    draws = [drawn for ending, drawn in _DRAWN.items() if spec.name.endswith(ending)]
    if draws or len(spec.shape) == 1:
        mean, sigma = draws[0] if draws else (1, 0.05)
        numbers = mean + sigma * random.standard_normal(spec.shape, np.float32)
        yield (-np.exp(numbers) if spec.name.endswith("ssm_a") else numbers).view(np.uint8)
        return
    units = -(-spec.elements // _UNIT)
    values = SIGMA * random.standard_normal((min(units, _POOL), _UNIT), np.float32)
    pool = encode(values, spec.qtype).reshape(len(values), -1)
    for start in range(0, units, _POOL):
        yield pool[random.permutation(len(pool))[: units - start]].reshape(-1)
