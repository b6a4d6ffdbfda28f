"""One picture of engines on one file: one token, a few and a prompt as points under one roof, of memory and of arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kit.lab import figures
from kit.lab.engines.bounds_of import FileWork

_MARKS = "osD^v"  # of the numbers of tokens, in their order


class Point(NamedTuple):
    """``label``: of the engine; ``test``: how many tokens, in words; ``intensity``: operations per byte of weights read;
    ``rate``: operations per second."""

    label: str
    test: str
    intensity: float
    rate: float


def point(work: FileWork, label: str, test: str, seconds: float) -> Point:
    """What an engine that takes ``seconds`` per token does of the ``work`` of ``work.tokens`` together."""
    return Point(label, test, work.prompt_operations / work.prompt_bytes, work.prompt_operations / (seconds * work.tokens))


def points(data: dict) -> list[Point]:
    """Each test with a speed, from the JSON of kit explain with an engine."""
    prompt = FileWork(**data["work"])
    token = replace(prompt, prompt_bytes=prompt.token_bytes, prompt_operations=prompt.token_operations, tokens=1)
    return [
        point(work, record["engine"]["label"], record[name]["name"], record[name]["seconds"])
        for record in data["engines"]
        for name, work in (("decode", token), ("prompt", prompt))
        if record[name]["seconds"]
    ]


def share(data: dict, test: str) -> float:
    """Of the first engine's "decode" or "prompt": its rate over what the roof of its fastest arithmetic allows there."""
    machine, reached = data["machine"], points(data)[("decode", "prompt").index(test)]
    return reached.rate / min(max(machine["rates"].values()), machine["bandwidth"] * reached.intensity)


def figure(data: dict):
    """The picture of kit explain with an engine."""
    machine = data["machine"]
    title = f"{data['file']['name']}: memory reads at {machine['bandwidth'] / 1e9:.0f} GB/s"
    return drawn(points(data), machine["rates"], machine["bandwidth"], title)


def drawn(shown: Sequence[Point], rates: Mapping[str, float], bandwidth: float, title: str):
    """The picture: both axes logarithmic, the roof of each kind of arithmetic dashed (``rates``, operations per second;
    ``bandwidth``, bytes per second), its corner at the ridge; a color an engine, a mark a number of tokens."""
    low, high = min(each.intensity for each in shown) / 4, max(each.intensity for each in shown) * 4
    drawn, axes = figures.new(height=4.2)
    places = np.geomspace(low, high, 300)
    for kind, rate in rates.items():
        axes.plot(places, np.minimum(rate, bandwidth * places) / 1e9, **figures.DASHED)
        place = max(low, min(high, rate / bandwidth)), rate / 1e9
        axes.annotate(f"{kind}: {rate / 1e9:.0f} GOP/s", place, xytext=(10, -11), textcoords="offset points", fontsize=8.5)
    tests = {test: mark for test, mark in zip(dict.fromkeys(each.test for each in shown), _MARKS, strict=False)}
    colors = dict(zip(dict.fromkeys(each.label for each in shown), figures.PALETTE * 4, strict=False))
    for each in shown:
        place, known = (each.intensity, each.rate / 1e9), axes.get_legend_handles_labels()[1]
        label = None if each.label in known else each.label
        axes.plot(*place, tests[each.test], color=colors[each.label], label=label)
        if each.label == shown[0].label:  # the points of a test are above each other
            side, end = ((7, -3), "left") if each.intensity**2 < low * high else ((-7, -3), "right")  # within the axes
            axes.annotate(each.test, place, xytext=side, ha=end, textcoords="offset points", fontsize=9)
    drawn.legend(fontsize=8.5, ncols=3, loc="outside lower center")  # in the axes a mark of it looks like a point
    figures.log(axes, "x", "y")
    axes.set(xlabel="operations per byte read", ylabel="10^9 operations per second", xlim=(low, high), title=title)
    return drawn


def save(data: dict, path: str) -> None:
    """Write the picture."""
    figure(data).savefig(path)
