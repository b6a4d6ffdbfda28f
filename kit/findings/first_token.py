"""First token: one file, seven ways from a closed file to a token, and what preloading removes, moves or leaves."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

import kit
from kit import figures
from kit.gguf import pagecache
from kit.gguf.geometry import GEOMETRIES
from kit.machine import usable_cores
from kit.measure import bootstrap_median
from kit.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Way:
    """How weights get from the file to the first token. ``preload`` are arguments of Weights.preload, None: lazy."""

    label: str
    backend: str = "cpu"
    preload: dict | None = None
    linear: str = "matmul"
    attention: str = "blas"
    warm: bool = False  # measure the second request, not the first


WAYS = {
    "reported": Way("as reported: lazy, reference dequantiser, strided loops", "reference", None, "strided", "strided"),
    "lazy-reference": Way("lazy, reference dequantiser", "reference"),
    "lazy": Way("lazy, fast dequantiser"),
    "preload": Way("preloaded, one tensor after another", preload={"workers": 1}),
    "parallel": Way("preloaded, tensors in parallel", preload={"workers": usable_cores()}),
    "overlapped": Way("preloaded while the file is read", preload={"workers": 1, "read_ahead": True}),
    "warm": Way("warm: second request after a preload", preload={"workers": 1}, warm=True),
}
PHASES = ("open", "read", "dequantize", "compute")


@dataclass(frozen=True)
class Run:
    """One way, once: spans, seconds by phase, logits of the prompt's last token, bytes held, whether the file was cold."""

    way: str
    frame: pd.DataFrame
    phases: dict[str, float]
    logits: torch.Tensor
    held_bytes: int
    hits: int
    misses: int
    cold: bool

    @property
    def seconds(self) -> float:
        """From the closed file (warm: from the request) to the token."""
        return sum(self.phases.values())


def measure(path, way: str, prompt: list[int]) -> Run:
    """Go one way from the closed file at ``path`` to the first token, its pages out of the page cache where possible."""
    how, trace = WAYS[way], kit.Trace()
    cold = pagecache.drop(path)
    _warm_memory(path)
    with trace.span("open"):
        file = kit.open(path)
        weights = kit.Weights(file, cache=kit.HashMap(), backend=how.backend, trace=trace)
        model = kit.Transformer(weights, attention=how.attention, linear=how.linear)
    if how.preload:
        weights.preload(**how.preload)
    if how.warm:
        model.logits(prompt)
        trace.clear()
    before = weights.store.stats
    with trace.span("answer"):
        logits = model.logits(prompt)[-1]
    after = weights.store.stats
    frame = trace.frame()
    run = Run(
        way, frame, phases(frame), logits, after.resident_bytes, after.hits - before.hits, after.misses - before.misses, cold
    )  # fmt: skip
    del model, weights
    file.close()
    return run


def _warm_memory(path) -> None:
    """Touch and release as much memory as the way will hold, so that the first way does not pay for all (fresh_gbps)."""
    with kit.open(path) as file:
        torch.empty(sum(tensor.elements for tensor in file.tensors.values())).zero_()


def phases(frame: pd.DataFrame) -> dict[str, float]:
    """Wall seconds by phase, each instant counted once: dequantising before reading before all else of the answer."""
    claimed, parts = np.empty((0, 2)), {}
    for phase, spans in (("dequantize", "dequantize"), ("read", "read"), ("open", "open"), ("compute", "answer")):
        merged = _union(np.vstack([claimed, frame.loc[frame["what"] == spans, ["start", "end"]].to_numpy()]))
        parts[phase] = _length(merged) - _length(claimed)
        claimed = merged
    return {phase: parts[phase] for phase in PHASES}


def _union(intervals: np.ndarray) -> np.ndarray:
    """(n, 2) intervals -> (m, 2) disjoint ones that cover the same points."""
    if not len(intervals):
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0])]
    reach = np.maximum.accumulate(intervals[:, 1])
    opens = np.concatenate([[True], intervals[1:, 0] > reach[:-1]])
    return np.column_stack([intervals[opens, 0], reach[np.append(opens[1:], True)]])


def _length(intervals: np.ndarray) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def predict(file, machine, prompt_tokens: int, disk_gbps: float) -> pd.DataFrame:
    """The least seconds of each phase on this machine: bytes over bandwidth, FLOPs over peak.

    Dequantising reads blocks and writes f32; a pass over the prompt reads every f32 weight once.
    """
    blocks = sum(tensor.nbytes for tensor in file.tensors.values())
    elements = sum(tensor.elements for tensor in file.tensors.values())
    compute = max(machine.seconds_to_read(4 * elements), machine.seconds_to_compute(2 * elements * prompt_tokens))
    rows = {
        "read": (blocks, f"{disk_gbps:.1f} GB/s from disk, measured here", blocks / disk_gbps / 1e9),
        "dequantize": (4 * elements, "f32 written at write bandwidth", machine.seconds_to_write(4 * elements)),
        "compute": (4 * elements, "f32 weights read once, or FLOPs", compute),
    }
    return pd.DataFrame(rows, index=["bytes", "bound", "seconds"]).T.rename_axis("phase")


def disk_gbps(path) -> float:
    """GB/s of reading the whole file once with its pages dropped before (with them cached, where they cannot be)."""
    pagecache.drop(path)
    file = kit.open(path)
    trace = kit.Trace()
    weights = kit.Weights(file, trace=trace)
    for name in weights:
        weights.read(name)
    frame = trace.frame()
    file.close()
    return float(frame["nbytes"].sum() / frame["seconds"].sum() / 1e9)


def equality(runs: list[Run]) -> pd.DataFrame:
    """Do all ways give the same token? RMS difference of the logits over their standard deviation, against "lazy"."""
    truth = next(run for run in runs if run.way == "lazy").logits.double()
    rows = {
        run.way: (int(run.logits.argmax()), float((run.logits.double() - truth).pow(2).mean().sqrt() / truth.std()))
        for run in runs
    }
    return pd.DataFrame(rows, index=["token", "rms / std"]).T.astype({"token": int})


def table(runs: list[Run], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row a way: seconds by phase, total, bytes held, GB/s of f32 dequantised, total over its lower bound."""
    rows = []
    for way, typical in _typical(runs).items():
        wrote = typical.frame.query("what == 'dequantize'")["nbytes"].sum()
        used = [phase for phase in PHASES if typical.phases[phase] > 0 and phase in predicted.index]
        least = [predicted.loc[phase, "seconds"] for phase in used]
        rows.append(
            {
                "way": WAYS[way].label, **typical.phases, "total": typical.seconds,
                "held": format_bytes(typical.held_bytes),
                "dequantised GB/s": wrote / typical.phases["dequantize"] / 1e9 if wrote else np.nan,
                "total / bound": typical.seconds / (max(least) if way == "overlapped" else sum(least)),
            }
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("way")


def _typical(runs: list[Run]) -> dict[str, Run]:
    """The median run of each way."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.way, []).append(run)
    return {way: sorted(group, key=lambda run: run.seconds)[len(group) // 2] for way, group in groups.items()}


def bars(runs: list[Run]):
    """Stacked bars of the phases, linear and on a log scale: a phase that vanishes in one is told in the other."""
    parts = pd.DataFrame({WAYS[way].label: run.phases for way, run in _typical(runs).items()}).T
    figure, (linear, log) = figures.new(2, height=6.6)
    for axes in (linear, log):
        figures.stacked_bars(axes, parts)
        axes.set_xlabel("seconds from the closed file to the token (warm: from the request)")
    log.set_xscale("log")
    log.set_xlim(parts.sum(axis=1).min() / 20, parts.sum(axis=1).max() * 4)
    linear.set_title("Preloading moves the cost; it does not remove it")
    log.set_title("The same on a log scale")
    linear.legend(loc="lower right", ncols=len(PHASES))
    return figure


def gantt(runs: list[Run], ways=("lazy", "preload", "parallel", "overlapped")):
    """When each tensor was read, dequantised and used: one line a tensor, one panel a way."""
    colours = {"read": figures.SKY, "dequantize": figures.ORANGE, "linear": figures.GREEN}
    figure, panels = figures.new(len(ways), height=2.3 * len(ways), sharex=True)
    typical = _typical(runs)
    for axes, way in zip(panels, ways, strict=True):
        run = typical[way]
        spans = run.frame[run.frame["what"].isin(colours)]
        order = {name: row for row, name in enumerate(dict.fromkeys(spans["tensor"]))}
        for what, colour in colours.items():
            some = spans[spans["what"] == what]
            axes.barh(
                some["tensor"].map(order), some["seconds"], left=some["start"], height=1, color=colour, label=what
            )
        axes.set_title(WAYS[way].label)
        axes.set_ylabel("tensor")
        axes.invert_yaxis()
    panels[0].legend(loc="upper right", ncols=len(colours))
    panels[-1].set_xlabel("seconds since the file was opened")
    return figure


def needed(elements: int, seconds: float, devices: pd.DataFrame) -> pd.DataFrame:
    """What it takes to read ``elements`` f32 weights in ``seconds``: GB/s needed against what each device can read."""
    gbps = 4 * elements / seconds / 1e9
    rows = [(row["name"], row["read_gbps"], gbps / row["read_gbps"], 4 * elements / row["read_gbps"] / 1e9)
            for _, row in devices.iterrows()]  # fmt: skip
    names = ["device", "read GB/s", "times too slow", "least seconds a token"]
    return pd.DataFrame(rows, columns=names).set_index("device")


def needed_figure(limits: pd.DataFrame, target: float):
    """Least seconds a token on each device (log scale), the reported time as the bound."""
    figure, axes = figures.new(height=2.8)
    axes.barh(limits.index, limits["least seconds a token"], color=figures.BLUE)
    figures.bound(axes, target, f"reported: {format_seconds(target)}", vertical=True)
    for row, seconds in limits["least seconds a token"].items():
        axes.annotate(f" {format_seconds(seconds)}", (seconds, row), va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(right=limits["least seconds a token"].max() * 4)
    axes.set_xlabel("least seconds a token: 30.44 GiB of f32 weights over read bandwidth")
    axes.set_title("0.075 s is out of reach of the machine that reported it")
    axes.grid(axis="y", visible=False)
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    return figure


def samples(runs: list[Run], way: str) -> list[float]:
    """Total seconds of every run of that way."""
    return [run.seconds for run in runs if run.way == way]


def ratios(runs: list[Run], slow: str, fast: str) -> list[float]:
    """Seconds of ``slow`` over seconds of ``fast``, every pair of runs."""
    return [a / b for a in samples(runs, slow) for b in samples(runs, fast)]


STEPS = (  # from, to, what changed between them
    ("reported", "lazy-reference", "matrix products instead of strided loops"),
    ("lazy-reference", "lazy", "the fast dequantiser"),
    ("lazy", "preload", "preloading"),
    ("preload", "parallel", "tensors in parallel"),
    ("preload", "overlapped", "reading while dequantising"),
    ("preload", "warm", "not counting the preload"),
)


def steps(runs: list[Run]) -> pd.DataFrame:
    """What each change brought: seconds before and after, and their ratio with its 95 % interval."""
    rows = []
    for slow, fast, change in STEPS:
        pairs = ratios(runs, slow, fast)
        before, after = np.median(samples(runs, slow)), np.median(samples(runs, fast))
        rows.append((change, before, after, before / after, *bootstrap_median(pairs)))
    names = ["change", "seconds before", "seconds after", "times faster", "at least", "at most"]
    return pd.DataFrame(rows, columns=names).set_index("change")


def elements_of(geometry: str, mix: str = "Q4_K_M") -> int:
    """Weights of a whole model, from its geometry alone."""
    return sum(math.prod(tensor.shape) for tensor in GEOMETRIES[geometry].tensors(mix))


def summary(runs: list[Run]) -> str:
    """The finding in one sentence, from the measured medians."""
    slow, preload, warm = (np.median(samples(runs, way)) for way in ("reported", "preload", "warm"))
    return (
        f"{format_seconds(slow)} the reported way, {format_seconds(warm)} warm: {slow / warm:,.0f} times less. "
        f"From the closed file, though, the preloaded first token takes {format_seconds(preload)}."
    )
