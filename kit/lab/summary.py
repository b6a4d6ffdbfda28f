"""The contents of a GGUF file as plain data for `kit inspect`: types, sizes, working sets, what fits in memory."""

from typing import Any

from kit.gguf.foreign import NO_WEIGHTS, TILES, no_language_model
from kit.gguf.formats import DTYPES, FORMATS
from kit.gguf.metadata import MetadataArray
from kit.gguf.reader import GGUFFile


def summarize(file: GGUFFile, memory_total: int, memory_available: int) -> dict[str, Any]:
    """Everything that `kit inspect --json` prints; sizes in bytes.

    ``working_sets``: the size of the weights as blocks and dequantized, and whether it fits in memory. ``no_language_model``:
    what it is instead.
    """
    infos = list(file.tensors.values())
    parameters = sum(info.elements for info in infos)
    held = "tiles" if any(info.qtype.endswith(TILES) for info in infos) else "blocks"
    sizes = {held: sum(info.nbytes for info in infos)}
    sizes |= {dtype: parameters * DTYPES[dtype] for dtype in ("float32", "float16")}
    prefix, original = file.architecture + ".", getattr(file, "original_shapes", {})  # a compressed file has none
    return {
        "path": str(file.path),
        "parts": [{"path": str(path), "bytes": size} for path, size in zip(file.paths, file.sizes, strict=True)],
        "version": file.version,
        "byteorder": file.byteorder,
        "alignment": file.alignment,
        "architecture": file.architecture,
        "hyperparameters": {
            key.removeprefix(prefix): _plain(value) for key, value in file.metadata.items() if key.startswith(prefix)
        },
        "tensors": len(infos),
        "layers": len({info.layer for info in infos} - {-1}),
        "parameters": parameters,
        "types": _types(infos),
        "working_sets": {
            name: {"bytes": nbytes, "fits_in_free_memory": nbytes <= memory_available, "fits_in_memory": nbytes <= memory_total}
            for name, nbytes in sizes.items()
        },
        "memory": {"total": memory_total, "available": memory_available},
        "metadata": {key: _plain(value) for key, value in file.metadata.items()},
        "no_language_model": no_language_model(file) if infos else NO_WEIGHTS,
        "tensor_table": [
            info._asdict() | {"elements": info.elements, "original_shape": original.get(info.name)} for info in infos
        ],
    }


def _plain(value: Any) -> Any:
    """A short array as a list, a long one as text with its length and type, so that no vocabulary is read."""
    if isinstance(value, MetadataArray):
        return value.tolist() if len(value) <= 8 else repr(value)
    return value


def _types(infos) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for info in infos:
        row = rows.setdefault(info.qtype, {"qtype": info.qtype, "tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += info.elements
        row["bytes"] += info.nbytes
    for row in rows.values():
        known = FORMATS.get(row["qtype"])
        bits = 8 * row["bytes"] / row["parameters"] if row["qtype"].endswith(TILES) else None
        row["bits_per_weight"] = known.bits_per_weight if known else bits
    return sorted(rows.values(), key=lambda row: -row["bytes"])
