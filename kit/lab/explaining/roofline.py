"""One picture of a comparison of engines: decode and prompt as points under one roof, of memory and of arithmetic."""

import numpy as np

from kit.lab import figures


def points(data: dict) -> list[dict]:
    """``label``, ``test``, ``intensity`` (operations per byte), ``rate`` (operations per second) of each test with a speed,
    from the JSON of kit explain with an engine."""
    work, rows = data["work"], []
    tests = (("decode", work["token_operations"], work["token_bytes"], 1),
             ("prompt", work["prompt_operations"], work["prompt_bytes"], work["tokens"]))  # fmt: skip
    for record in data["engines"]:
        for name, operations, nbytes, tokens in tests:
            if seconds := record[name]["seconds"]:
                row = {"label": record["engine"]["label"], "test": record[name]["name"], "intensity": operations / nbytes}
                rows.append(row | {"rate": operations / (seconds * tokens)})
    return rows


def share(data: dict, test: str) -> float:
    """Of the first engine's "decode" or "prompt": its rate over what the roof of its fastest arithmetic allows there."""
    machine, point = data["machine"], points(data)[("decode", "prompt").index(test)]
    return point["rate"] / min(max(machine["rates"].values()), machine["bandwidth"] * point["intensity"])


def figure(data: dict):
    """The picture: both axes logarithmic, the roof of each kind of arithmetic dashed, its corner at the ridge."""
    machine, shown = data["machine"], points(data)
    low, high = min(each["intensity"] for each in shown) / 4, max(each["intensity"] for each in shown) * 4
    drawn, axes = figures.new(height=4.2)
    places = np.geomspace(low, high, 300)
    for kind, rate in machine["rates"].items():
        axes.plot(places, np.minimum(rate, machine["bandwidth"] * places) / 1e9, **figures.DASHED)
        ridge = rate / machine["bandwidth"]
        axes.annotate(f"{kind}: {rate / 1e9:.0f} GOP/s", (max(low, min(high, ridge)), rate / 1e9), xytext=(10, -11),
                      textcoords="offset points", fontsize=8.5)  # fmt: skip
    named: set[str] = set()
    for color, label in zip(figures.PALETTE * 4, dict.fromkeys(each["label"] for each in shown), strict=False):
        for each in (row for row in shown if row["label"] == label):
            decode = each["test"].startswith("tg")
            place = each["intensity"], each["rate"] / 1e9
            axes.plot(*place, "o" if decode else "s", color=color, label=label if decode else None)
            if each["test"] not in named:  # the points of a test are above each other
                axes.annotate(each["test"], place, xytext=(7, -3), textcoords="offset points", fontsize=9)
            named.add(each["test"])
    axes.legend(loc="lower right", fontsize=8.5)
    figures.log(axes, "x", "y")
    axes.set(xlabel="operations per byte read", ylabel="10^9 operations per second", xlim=(low, high),
             title=f"{data['file']['name']}: memory reads at {machine['bandwidth'] / 1e9:.0f} GB/s")  # fmt: skip
    return drawn


def save(data: dict, path: str) -> None:
    """Write the picture."""
    figure(data).savefig(path)
