"""The one place that knows what a user may name a model by: a path, a trained model, one part of a split model, ``hf://...``,
and what other programs have on this machine (kit.gguf.stores). Models on a web server are kit.gguf.remote's."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kit.errors import GGUFError, nearest
from kit.gguf import hub, stores
from kit.gguf.foreign import name_of_others, url
from kit.gguf.parts import PART, part_names
from kit.gguf.trained import TRAINED, fetch


def part_paths(path: Path) -> list[Path]:
    """All parts beside ``path``, in order. Raises GGUFError naming the parts that are missing."""
    paths = [path.with_name(name) for name in part_names(path.name)] if path.name else [path]
    missing = [part.name for part in paths if not part.exists()]
    if missing and len(paths) > 1:
        raise GGUFError(
            f"{path}: {len(missing)} of the {len(paths)} parts are missing in {path.parent}: {missing[0]}"
            + (", ..." if missing[1:] else "")
        )
    return paths


def model_name(path: str | os.PathLike) -> str:
    """The name of a model's file; of a split one without the part: a-00001-of-00002.gguf is a.gguf."""
    match = PART.fullmatch(name := Path(path).name)
    return f"{match['stem']}.gguf" if match else name


def model_bytes(path: Path) -> int:
    """Bytes of a model's file, or of all parts of a split one."""
    return sum(map(os.path.getsize, part_paths(path)))


def models(paths: Iterable[Path]) -> list[Path]:
    """The first part of each model among files, without those that come twice: by another part, a link, another spelling."""
    first, seen = [], set()
    for path in paths:
        path = part_paths(Path(path))[0]
        if (key := file_id(path)) not in seen:
            first.append(path)
        seen.add(key)
    return first


def file_id(path: Path) -> tuple:
    """What is equal of two names of one file, by whatever link."""
    facts = path.stat() if path.exists() else None
    return (facts.st_dev, facts.st_ino) if facts else (os.path.abspath(path),)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """A name for each model's file, with as many of its folders as tell it from the others."""
    parts = [(*Path(os.path.abspath(path)).parts[:-1], model_name(path)) for path in paths]
    counts = [1] * len(parts)
    while True:
        names = [tuple(own[-count:]) for own, count in zip(parts, counts, strict=True)]
        longer = [count + (names.count(name) > 1 and count < len(own))
                  for own, count, name in zip(parts, counts, names, strict=True)]  # fmt: skip
        if longer == counts:
            return ["/".join(name) for name in names]
        counts = longer


def largest_part(path: Path) -> Path:
    """The file to measure a disk with: of a split model the largest, as the first may hold metadata alone."""
    return max(part_paths(path), key=os.path.getsize)


def resolve(path: str | os.PathLike) -> Path:
    """The local file for a path, the name of a trained model, ``ollama:name:tag`` and the like (kit.gguf.stores), or
    ``hf://owner/repo[@revision]/file.gguf``.

    Files of the Hub are downloaded by huggingface_hub into its cache (kit.gguf.hub).
    """
    if stores.is_stored(str(path)):
        return stores.find(str(path))
    if is_name(path):
        return fetch(str(path))
    refuse_misspelled(path)
    if remedy := url(str(path)):
        raise GGUFError(f"{path}: {remedy}")
    if not str(path).startswith("hf://"):
        if not os.path.lexists(path) and (remedy := name_of_others(str(path))):
            raise GGUFError(f"{path}: {remedy}")
        return Path(os.path.expanduser(path))  # pathlib raises RuntimeError for a user that does not exist
    return hub.downloaded(str(path))


def absolute(model: str) -> str:
    """``model`` with a path made absolute; "", URLs and names of models are kept."""
    if not model or "://" in model or is_name(model) or stores.is_stored(model):
        return model
    refuse_misspelled(model)
    return str(Path(model).absolute())


def is_name(model: str | os.PathLike) -> bool:
    """Whether ``model`` is the name of a trained model, and no file in this folder has that name."""
    return str(model) in TRAINED and not Path(model).exists()


def refuse_misspelled(path: str | os.PathLike, names: Iterable[str] = ()) -> None:
    """GGUFError where ``path`` is no file but looks like the name of a trained model, or like one of ``names``."""
    name, names = str(path), (*TRAINED, *names)
    if name not in names and os.path.basename(name) == name and not os.path.lexists(name):
        for near in nearest(name, names):
            raise GGUFError(f"{name}: no file and no model has this name; did you mean {near}? `kit fetch` lists the models")
