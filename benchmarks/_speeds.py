"""The newest record of every benchmark that has a goal, as docs/speeds.md and its picture."""

import json
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from benchmarks import hf
from kit.lab import figures
from kit.lab.paths import ROOT

MARK = "<!-- from here on: python -m benchmarks --table -->\n"
WHY = {  # what is known of a line that is missed
    "Q8_0, float32, times the old": "28 cycles of arithmetic and 42 of reading 256 weights take 50 on a core"
}
HEAD = "| | times its peer or bound | 95 % | at least, aim | | commit |\n|---|---|---|---|---|---|"


class Line(NamedTuple):
    """A ratio to a peer or a bound: the newest record of it, with its 95 % interval, if it has one, and its goals."""

    benchmark: str
    title: str
    started: float
    commit: str
    row: dict

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; the ratio twice where one sample was taken."""
        return self.row.get("low") or self.row["ratio"], self.row.get("high") or self.row["ratio"]

    @property
    def state(self) -> str:
        """ "" where the goal is reached for certain, else what is known."""
        low, high = self.interval
        missed, undecided = self.row["ratio"] < self.row["least"], low < self.row["least"] <= high
        why = self.row.get("why") or WHY.get(self.row["what"])
        return "; ".join(filter(None, ("missed" * missed, "undecided" * undecided, why if missed else "")))


def newest() -> list[Line]:
    """A line for each thing that has a goal, by benchmark and name."""
    found = {}
    for run in _runs("*"):
        for row in run["rows"]:
            if row.get("least") and row.get("ratio"):
                line = Line(run["benchmark"], run["title"], run["started"], run["system"]["commit"][:7], row)
                found[row["what"]] = max(found.get(row["what"], line), line, key=lambda line: line.started)
    return sorted(found.values(), key=lambda line: (line.benchmark, line.row["what"]))


def table(lines: list[Line]) -> str:
    """A heading and a table for each benchmark."""
    text = []
    for title, group in groupby(lines, lambda line: line.title):
        text += [f"\n## {title.rstrip('.')}\n", HEAD]
        for line in group:
            interval = "{:.2f} to {:.2f}".format(*line.interval) if line.row.get("low") else ""
            goals = f"{line.row['least']:.2g}, {line.row['hoped']:.2g}"
            text.append(
                f"| {line.row['what']} | {line.row['ratio']:.2f} | {interval} | {goals} | {line.state} | {line.commit} |"
            )
    return "\n".join(text) + "\n"


def picture(lines: list[Line]):
    """Ratios beside llama.cpp with their intervals: 1 is llama.cpp's own speed."""
    lines = [line for line in lines if line.benchmark == "decode"]
    figure, axes = figures.new(height=0.25 * len(lines) + 1)
    for missed, color, label in ((False, figures.BLUE, "reaches its goal"), (True, figures.VERMILION, "misses its goal")):
        chosen = [(n, line) for n, line in enumerate(lines) if ("missed" in line.state) == missed]
        for n, line in chosen:
            axes.plot(line.interval, (n, n), color=color, linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot([line.row["ratio"] for _, line in chosen], [n for n, _ in chosen], "o", color=color, label=label)
    figures.bound(axes, 1, "llama.cpp", vertical=True)
    figure.legend(fontsize=8.5, ncols=3, loc="outside upper right")
    axes.set_yticks(range(len(lines)), [line.row["what"] for line in lines], fontsize=8.5)
    axes.set(xlabel="times llama.cpp's speed: median, 95 % interval", xlim=(0, None))
    figures.rows(axes)
    return figure


def write(folder: Path) -> str:
    """Make the page's tables and picture anew in ``folder``; the path that was written."""
    lines, page = newest(), folder / "speeds.md"
    picture(lines).savefig(folder / "images" / "speeds.png", dpi=110)
    page.write_text(page.read_text(encoding="utf-8").partition(MARK)[0] + MARK + table(lines), encoding="utf-8")
    return str(page)


def peers() -> str:
    """README's table of the newest run beside transformers and llama.cpp."""
    last = max(_runs("hf"), key=lambda run: run["started"])
    return f"{hf.markdown(last['rows'])}\n\nCommit {last['system']['commit'][:7]}."


def _runs(name):
    for path in sorted((ROOT / "results" / "reference").glob(f"*/benchmarks/{name}.jsonl")):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())
