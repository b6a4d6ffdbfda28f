"""llama.cpp after many positions that no prompt made: the state of a sequence of one position, with as many as are wanted.

A layout is that of the version of the wheel; where a state's is another, that is an error.
"""

import ctypes
import itertools
import struct
from collections.abc import Callable

import numpy as np

import kit
from kit.errors import ModelError
from kit.lab.engines.llama_cpp import Llama
from kit.model.hyperparameters import read_config

ROOM = 1024  # positions after the depth, as many tokens as may be timed: a recurrent layer cannot go back
_F16 = 1  # ggml_type


def theirs(path: str, depth: int) -> Callable:
    """A function that runs the next token, the first after ``depth`` positions with random keys and values of float16."""
    with kit.open(path) as file:
        sections = sections_of(read_config(file))
    model = Llama(path, depth + ROOM, n_batch=1, n_ubatch=1)
    model.logits([5], 0, 1)
    set_state(model, grown(state_of(model), depth, sections))
    place = itertools.count(depth)
    return lambda: model.logits([7], next(place), 1)


def sections_of(config) -> list[tuple[int, int, int]]:
    """What a state holds, (bytes that a cell has beside its position and sequence, whether it has values, 0), or of recurrent
    layers (0, 0, tensors). ModelError for layers whose caches are not known here."""
    kinds = {layer.mixer.named for layer in config.layers}
    if kinds == {"sparse latent"}:
        return [(0, 0, 0), (0, 0, 0)]  # latents, index keys
    if kinds == {"delta net", "sparse attention"}:
        recurrent = sum(layer.mixer.named == "delta net" for layer in config.layers)
        return [(12, 1, 0), (0, 0, 2 * recurrent), (0, 0, 0)]
    raise ModelError(f"caches of llama.cpp for {', '.join(sorted(kinds))} are not known")


def grown(state: bytes, depth: int, sections) -> bytes:
    """The state of ``depth`` positions from that of one. ModelError if it is laid out otherwise."""
    random, out, at = np.random.default_rng(0), [state[:8]], 8

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(state):
            raise ModelError("llama.cpp's state has an unknown layout: install the version of xllamacpp that is named")
        return state[at - size : at]

    def tensor(rows: int) -> None:
        out.append(take(12))
        kind, size = struct.unpack("<iQ", out[-1])
        out.append(row := take(size))
        if rows > 1:
            if kind != _F16:
                raise ModelError("llama.cpp's state has an unknown layout: its cache should be of float16")
            out[-1] = b"".join([row, random.standard_normal((rows - 1) * size // 2, np.float32).astype("<f2").tobytes()])

    for more, values, tensors in sections:
        if tensors:
            count, _, sequences = struct.unpack("<3i", take(12))
            out += [struct.pack("<3i", count, depth - 1, sequences), take(8)]
            for _ in range(tensors):
                tensor(1)
            continue
        streams, count = struct.unpack("<2i", take(8))
        if (streams, count) != (1, 1):
            raise ModelError("llama.cpp's state has an unknown layout: it should be of one sequence and one position")
        cells = np.empty(depth, [("position", "<i4"), ("rest", f"V{8 + more}")])
        cells["position"], cells["rest"] = np.arange(depth), np.void(take(12 + more)[4:])
        out += [struct.pack("<2i", 1, depth), cells.tobytes(), take(16)]
        for _ in range(struct.unpack("<4i", out[-1])[1] * (1 + values)):
            tensor(depth)
    if at != len(state):
        raise ModelError(f"llama.cpp's state has an unknown layout: {len(state) - at} bytes are left")
    return b"".join(out)


def state_of(model: Llama) -> bytes:
    """All that the model's context holds of its sequence."""
    size = _function(model, "get_size")(model._context, 0)
    room = (ctypes.c_uint8 * size)()
    return bytes(room[: _function(model, "get_data")(model._context, room, ctypes.c_size_t(size), 0)])


def set_state(model: Llama, state: bytes) -> None:
    """Replace it. ModelError when llama.cpp does not take it."""
    if _function(model, "set_data")(model._context, state, ctypes.c_size_t(len(state)), 0) != len(state):
        raise ModelError("llama.cpp does not take a state of so many positions")


def _function(model: Llama, name: str):
    function = getattr(model._lib, f"llama_state_seq_{name}")
    function.restype = ctypes.c_size_t
    return function
