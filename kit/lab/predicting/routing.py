"""Routes for a model: a record at its sizes, or drawn from a model of routing with two parameters, skew of popularity and
return, for mixtures that nobody has recorded.

A token chooses its experts in a layer without replacement, each with a weight that is ``back`` parts the layer's recent use
(fading by half every two tokens) and the rest popularity: the k-th most popular expert has k^-skew. Layers are independent.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np

import kit
from kit.gguf.sources import is_name, resolve
from kit.lab.predicting.routes import CAPTURES, Routes, geometry_of, read_routes, write_routes

FADE = 0.5**0.5  # of recent use, from token to token


class Fit(NamedTuple):
    """``skew``, ``back``: the parameters; ``hottest``, ``returned``: the two moments of the record that they reproduce."""

    skew: float
    back: float
    hottest: float
    returned: float


def unrecorded(file) -> Routes:
    """A record without tokens, of an open GGUF file's mixture."""
    return Routes("", *[np.zeros(0, np.int64)] * 3, 0, *geometry_of(file))


def draw(like: Routes, skew: float, back: float, used: int, tokens: int, seed: int = 0) -> Routes:
    """``tokens`` decoded tokens of a mixture with the layers, experts and bytes of ``like``, ``used`` experts in each layer."""
    random = np.random.default_rng(seed)
    places = np.flatnonzero(like.expert_bytes) if like.expert_bytes.any() else np.arange(like.layers)
    popular = np.arange(1, like.experts + 1, dtype=float) ** -skew
    popular = random.permuted(np.tile(popular / popular.sum(), (len(places), 1)), axis=1)
    recent, chosen = popular.copy(), np.empty((tokens, len(places), used), np.int64)
    for token in range(tokens):
        weight = np.log((1 - back) * popular + back * recent + 1e-300)
        noisy = weight + random.gumbel(size=weight.shape)  # the largest of such sums are draws without replacement
        chosen[token] = np.argsort(-noisy, axis=1)[:, :used]
        recent *= FADE
        np.put_along_axis(recent, chosen[token], np.take_along_axis(recent, chosen[token], 1) + (1 - FADE) / used, 1)
    numbers = np.broadcast_to(np.arange(tokens)[:, None, None], chosen.shape).ravel()
    layers = np.broadcast_to(places[None, :, None], chosen.shape).ravel()
    name = f"drawn: skew {skew:.2f}, return {back:.2f}"
    return Routes(name, numbers, layers, chosen.ravel(), 0, like.experts, like.expert_bytes, like.dense_bytes)


def returned(routes: Routes, within: int) -> float:
    """The share of uses of a layer's expert that one of the ``within`` tokens before used too: of decoded tokens
    after the first. 0 where there are none."""
    decoded = routes.token >= routes.prompt
    if not decoded.any():
        return 0.0
    rows = np.array([routes.layer[decoded], routes.expert[decoded], routes.token[decoded]])
    layer, expert, token = np.diff(rows[:, np.lexsort(rows[::-1])])
    again = (layer == 0) & (expert == 0) & (token <= within)
    asked = np.count_nonzero(rows[-1] > rows[-1].min())
    return float(again.sum() / asked) if asked else 0.0


def is_model(path: str) -> bool:
    """Whether ``path`` names a model (a GGUF file, one at hf://, or a trained model), and no record of routes."""
    return path.startswith("hf://") or is_name(path) or (Path(path).is_file() and Path(path).open("rb").read(4) == b"GGUF")


def given(routes: str, model: str = "") -> Routes:
    """The record ``routes`` (see predicting.routes.read_routes), at the sizes of the GGUF file ``model`` if one is named; where
    ``routes`` is such a file itself, 128 tokens drawn for it with the mean of the captures' parameters."""
    path = routes if (drawn := is_model(routes)) else model
    with kit.open(path) if path else nullcontext() as file:
        if not drawn:
            return read_routes(routes).sized(file) if file else read_routes(routes)
        shape = unrecorded(file)
        used = int(file.metadata.get(f"{file.architecture}.expert_used_count", 0)) or max(1, shape.experts // 16)
    skew, back = np.mean([fit[:2] for fit in FITTED.values()], axis=0)
    return draw(shape, skew, back, used, 128)


def routes_of(file, capture: str) -> Routes:
    """The record's routes of the layers that the file has, at the file's sizes."""
    return read_routes(capture).first(len(geometry_of(file)[1])).sized(file)


def moe(model: str) -> str:
    """``model`` where that file is a mixture; "" for a dense one, in whose place a generated mixture decodes."""
    with kit.open(resolve(model)) if model else nullcontext() as file:
        return model if file and any("_exps." in name for name in file.tensors) else ""


def record_for(path, capture: str, routes: Routes, tokens: int, folder: Path, seed: int = 0) -> str:
    """``capture``, or a file of other ``routes`` in ``folder``. If the file has fewer experts than the routes name, synthetic
    routes are drawn."""
    with kit.open(path) as file:
        shape = unrecorded(file)
    if shape.experts < routes.experts:
        routes = draw(shape, 1.3, 0.2, 2, tokens, seed)
    elif capture in CAPTURES:
        return capture
    folder.mkdir(exist_ok=True)
    return str(write_routes(routes, folder / "routes.jsonl"))


# The fit of each capture by tests/test_experts.py, which repeats it.
FITTED = {"gptoss": Fit(1.10, 0.27, 0.957, 0.179), "qwen": Fit(1.33, 0.20, 0.864, 0.380), "gemma": Fit(1.33, 0.0, 0.853, 0.357)}
