"""Models that other programs have on this machine: where each keeps them, and the names by which kit takes them.

Layouts: Ollama's manifests and blobs (its docs/faq.md), LM Studio's and Jan's folders of publisher and model, llama.cpp's cache
(fs_get_cache_directory of its common/common.cpp, hf_cache of common/hf-cache.cpp), the cache of huggingface_hub.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import platformdirs

from kit.errors import GGUFError, nearest
from kit.gguf.parts import begins_model
from kit.system.paths import models_folder
from kit.units import from_json

_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_HOME, _LIBRARY = "registry.ollama.ai", "library"  # what Ollama leaves out of a name


class Store(NamedTuple):
    """``program``: whose it is. ``folders()``: where its models may be; ``named(folder)``: (name after the prefix, file) of
    each model there, of a split model its first part."""

    program: str
    folders: Callable[[], list[Path]]
    named: Callable[[Path], Iterator[tuple[str, Path]]]


def _home(*parts: str) -> Path:
    return Path.home().joinpath(*parts)


def _given(folder: str | None, *rest: str) -> list[Path]:
    """The folder that a variable of the environment names; no folder where it is not set."""
    return [Path(folder).expanduser().joinpath(*rest)] if folder else []


def _ollama_folders() -> list[Path]:
    system = [Path(root, ".ollama", "models") for root in ("/usr/share/ollama", "/var/lib/ollama", "/root")]
    return _given(os.environ.get("OLLAMA_MODELS")) or [_home(".ollama", "models"), *system]


def _lm_studio_folders() -> list[Path]:
    moved = []
    with suppress(OSError, ValueError, AttributeError, TypeError):  # the user may have chosen another folder in its settings
        told = from_json(_home(".lmstudio", "settings.json").read_text(encoding="utf-8")).get("downloadsFolder")
        moved = [Path(told)] if told else []
    return [*moved, _home(".lmstudio", "models"), _home(".cache", "lm-studio", "models")]


def _jan_folders() -> list[Path]:
    data = [_home(".local", "share", "Jan", "data"), _home(".config", "Jan", "data"),
            _home("Library", "Application Support", "Jan", "data"), _home("jan")]  # fmt: skip
    roots = _given(os.environ.get("JAN_DATA_FOLDER")) or data
    return [root.joinpath(*parts) for root in roots for parts in (("llamacpp", "models"), ("models",))]


def _hub_folders() -> list[Path]:
    return (
        _given(os.environ.get("HF_HUB_CACHE"))
        or _given(os.environ.get("HF_HOME"), "hub")
        or [next(iter(_given(os.environ.get("XDG_CACHE_HOME"))), _home(".cache")) / "huggingface" / "hub"]
    )


def _ollama(folder: Path) -> Iterator[tuple[str, Path]]:
    """A manifest is manifests/<registry>/<namespace>/<model>/<tag>; its layer of a model is the digest of a blob."""
    root = folder / "manifests"
    for path in sorted(_files(root)):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
            layers = from_json(path.read_text(encoding="utf-8"))["layers"]
            digest = next(each["digest"] for each in layers if each["mediaType"] == _MODEL)
            *where, model, tag = path.relative_to(root).parts
            space = [part for part, usual in zip(where, (_OLLAMA_HOME, _LIBRARY), strict=False) if part != usual]
            yield "/".join([*space, f"{model}:{tag}"]), folder / "blobs" / digest.replace(":", "-")


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Each GGUF file by its path in the folder."""
    for path in sorted(_files(folder)):
        if path.suffix == ".gguf" and begins_model(path.name):
            yield path.relative_to(folder).as_posix(), path


def _hub(folder: Path) -> Iterator[tuple[str, Path]]:
    """models--<owner>--<repo>/snapshots/<commit>/<file>, of the commit that a branch was at last (refs/main) or of any."""
    for repository in sorted(folder.glob("models--*--*")):
        _, owner, repo = repository.name.split("--", 2)
        snapshots = {path.name: path for path in sorted(repository.glob("snapshots/*")) if path.is_dir()}
        refs = {}
        for ref in _files(repository / "refs"):
            with suppress(OSError):
                refs[ref.read_text(encoding="utf-8").strip()] = ref.relative_to(repository / "refs").as_posix()
        for commit, snapshot in snapshots.items():
            revision = refs.get(commit, commit)
            at = "" if revision == "main" else f"@{revision}"
            for name, path in _below(snapshot):
                yield f"//{owner}/{repo}{at}/{name}", path


def _llama(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files in the folder itself, and since 2026 the layout of the Hub's cache."""
    for path in sorted(folder.glob("*.gguf")):
        if begins_model(path.name):
            yield path.name, path
    for name, path in _hub(folder):
        yield name.removeprefix("//"), path


def _llama_folders() -> list[Path]:
    return _given(os.environ.get("LLAMA_CACHE")) or [platformdirs.user_cache_path("llama.cpp")]


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder; those that may not be read are left out."""
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names)


STORES = {  # prefix of a name -> whose it is
    "ollama": Store("Ollama", _ollama_folders, _ollama),
    "lmstudio": Store("LM Studio", _lm_studio_folders, _below),
    "jan": Store("Jan", _jan_folders, _below),
    "llama.cpp": Store("llama.cpp", _llama_folders, _llama),
    "hf": Store("Hugging Face", _hub_folders, _hub),
}


def stored(prefix: str) -> dict[str, Path]:
    """Name, with its prefix -> file, of all models that a program has here; a name in two folders is the first one's."""
    models: dict[str, Path] = {}
    for folder in dict.fromkeys(STORES[prefix].folders()):
        with suppress(OSError):
            for name, path in STORES[prefix].named(folder):
                models.setdefault(f"{prefix}:{name}", path)
    return models


def names() -> list[str]:
    """The names of all models that other programs have."""
    return [name for prefix in STORES for name in stored(prefix)]


def everywhere() -> dict[str, Path]:
    """The same of all programs, and the GGUF files of kit's own folder of models by their paths."""
    own = {str(path): path for path in sorted(models_folder().glob("*.gguf")) if begins_model(path.name)}
    return own | {name: path for prefix in STORES for name, path in stored(prefix).items()}


def is_stored(name: str) -> bool:
    """Whether ``name`` begins with the prefix of a program and no file has this name; hf:// is the Hub's own."""
    prefix, colon, rest = name.partition(":")
    return bool(colon) and prefix in STORES and not rest.startswith("//") and not Path(name).exists()


def find(name: str) -> Path:
    """The file of ``ollama:qwen2.5-coder:1.5b``, ``lmstudio:owner/model/file.gguf`` and the like.

    Of Ollama a name without a tag is its latest. Of the others the last parts of a path are enough where only one model has
    them, with or without ".gguf". GGUFError says what the program has instead.
    """
    prefix, _, rest = name.partition(":")
    models, program = stored(prefix), STORES[prefix].program
    asked = f"{name}:latest" if prefix == "ollama" and ":" not in rest else name
    if asked in models:
        return _existing(asked, models[asked], program)
    end = f"/{rest.removesuffix('.gguf')}"
    ends = [known for known in models if rest and f"/{known.partition(':')[2].removesuffix('.gguf')}".endswith(end)]
    if len(ends) == 1:
        return _existing(ends[0], models[ends[0]], program)
    if ends:
        raise GGUFError(f"{name}: {len(ends)} models of {program} have this name: {', '.join(ends[:3])}; give the whole of one")
    if not models:
        places = ", ".join(str(folder) for folder in STORES[prefix].folders()[:2])
        raise GGUFError(f"{name}: {program} has no model on this machine (looked in {places}); kit models lists what there is")
    meant = "".join(f"; did you mean {near}?" for near in nearest(asked, models))
    raise GGUFError(f"{name}: {program} has no such model{meant}; kit models lists what there is")


def _existing(name: str, path: Path, program: str) -> Path:
    try:
        if path.stat().st_size:
            return path
        problem = "is empty"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise GGUFError(f"{name}: its file {path} {problem}; let {program} fetch the model again, or run as its user")
