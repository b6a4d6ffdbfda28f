"""What a model remembers of a sequence, by kind of layer: bytes that are held, and that a token reads and writes."""

from kit.errors import KitError
from kit.model.config import Config
from kit.model.layers import Memory
from kit.model.layers.kind import KV_TYPES

_QK8_0 = 32


def kind_of(mixer) -> str:
    """The kind of a layer in words: "attention", "attention, window 512", "delta net"."""
    window, every = mixer.memory.window, mixer.memory.every
    return mixer.named + f", window {window}" * bool(window) + f", a row for {every}" * bool(every)


def by_kind(config: Config) -> dict[str, list[Memory]]:
    """Kind -> what each of its layers remembers, in order of the layers."""
    kinds: dict[str, list[Memory]] = {}
    for layer in config.layers:
        if any(layer.mixer.memory):
            kinds.setdefault(kind_of(layer.mixer), []).append(layer.mixer.memory)
    return kinds


def held(config: Config, positions: int) -> dict:
    """Bytes after so many positions: "states", and "kv" by type of the KV cache; None where heads have no such type."""
    memories = [layer.mixer.memory for layer in config.layers]
    states = sum(memory.held(0) for memory in memories)
    whole = all(layer.mixer.head_dim % _QK8_0 == 0 for layer in config.layers if layer.mixer.memory.position)
    kv = {kind: sum(memory.held(positions, width) for memory in memories) - states for kind, width in KV_TYPES.items()}
    return {"positions": positions, "states": states, "kv": kv if whole else kv | {"q8_0": None}}


def held_by(file, positions: int) -> float:
    """Bytes of float16 keys and values and of states that a token reads of an open file after so many positions; 0 where the
    kit has no pass for the architecture."""
    from kit.model.hyperparameters import read_config

    try:
        row = held(read_config(file), positions)
    except KitError:
        return 0.0
    return row["states"] + row["kv"]["float16"]


def contexts_of(file) -> list[dict]:
    """``contexts`` of an open file, or of its header; [] where the kit has no pass for the architecture."""
    from kit.model.hyperparameters import read_config

    try:
        return contexts(read_config(file))
    except (KitError, MemoryError):  # the second where addresses are too few to import torch
        return []


def contexts(config: Config, some=(4096, 32768)) -> list[dict]:
    """``held`` at ``some`` lengths and at the model's whole context."""
    return [held(config, length) for length in [*(length for length in some if length < config.context), config.context]]
