"""The models on this machine as rows: name, size, types, whether it fits, and the most tokens per second here."""

import warnings
from pathlib import Path

import kit
from kit.errors import KitError
from kit.gguf import stores
from kit.gguf.foreign import no_language_model
from kit.gguf.sources import file_id, model_bytes
from kit.gguf.trained import TRAINED
from kit.lab.predicting.beforehand import Reads, header_facts
from kit.system import memory_available, memory_limit
from kit.system.paths import models_folder
from kit.units import format_bytes, format_rate, printable

_FITS = {True: "yes", False: "no", None: ""}
_MOST = 60  # characters of a name; a longer one has a line of its own


def rows(memory: Reads | None) -> list[dict]:
    """``name``: as every command takes it; ``path``, ``bytes``, ``types`` (share of bytes by type), ``fits`` (in memory),
    ``fits_now`` (in what is free), ``tokens_per_second`` (the limit where ``memory`` is known), ``problem``: why the rest is
    empty, or what else is to be known."""
    trained = {str(models_folder() / model.file): name for name, model in TRAINED.items()}
    whole, free = memory_limit(), memory_available()
    found = [_row(trained.get(name, name), path, memory, whole, free) for name, path in stores.everywhere().items()]
    first: dict[tuple, str] = {}  # file -> its first name
    for row in found:
        if row["problem"] == "" and (same := first.setdefault(file_id(Path(row["path"])), row["name"])) != row["name"]:
            row["problem"] = f"the same file as {same}"
    return found


def _row(name: str, path: Path, memory, whole: int, free: int) -> dict:
    row = {"name": name, "path": str(path), "bytes": None, "types": {}, "fits": None, "fits_now": None, "label": None}
    row |= {"bits_per_weight": None, "tokens_per_second": None, "problem": ""}
    try:
        row["bytes"] = size = model_bytes(path)
        row |= {"fits": size <= whole, "fits_now": size <= free}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            file = kit.open(path)
        with file:
            by_type: dict[str, int] = {}
            for info in file.tensors.values():
                by_type[info.qtype] = by_type.get(info.qtype, 0) + info.nbytes
            total = sum(by_type.values()) or 1
            row["types"] = {kind: by_type[kind] / total for kind in sorted(by_type, key=by_type.get, reverse=True)}
            row["problem"] = no_language_model(file) or "; ".join(str(each.message) for each in said)
            facts = header_facts(file, memory)
        row |= {"label": facts["label"] and facts["label"]["name"], "bits_per_weight": facts["bits_per_weight"]}
        if not no_language_model(file):
            row["tokens_per_second"] = facts["limit"] and facts["limit"]["tokens_per_second"]
    except (KitError, OSError) as error:
        row |= {"fits": None, "fits_now": None, "problem": str(error)}  # of what cannot be opened, a size says nothing
    return row


def table(rows: list[dict]) -> list[str]:
    """The rows as lines of text."""
    if not rows:
        return ["No models here: `kit fetch` lists those that kit can get; Ollama, LM Studio, Jan and llama.cpp have none."]
    wide = min(_MOST, max(len(printable(row["name"])) for row in rows))
    lines = [f"{'name':<{wide}}{'size':>11}  {'types':<22}{'fits':>5}{'at most, tok/s':>16}"]
    for row in rows:
        name = printable(row["name"])
        types = ", ".join(f"{kind} {share:.0%}" for kind, share in list(row["types"].items())[:2])
        speed = format_rate(row["tokens_per_second"]) if row["tokens_per_second"] else ""
        size = format_bytes(row["bytes"]) if row["bytes"] is not None else ""
        lines += [name] if len(name) > wide else []
        first = "" if len(name) > wide else name
        lines.append(f"{first:<{wide}}{size:>11}  {types:<22}{_FITS[row['fits']]:>5}{speed:>16}".rstrip())
        if row["problem"]:
            lines.append(f"    {printable(row['problem'])}")
    return lines
