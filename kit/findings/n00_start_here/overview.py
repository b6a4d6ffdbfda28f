"""Overview: this machine's limits, what they allow a model, and the claims at a glance."""

import numpy as np
import pandas as pd

from kit.claims import table as claims
from kit.costs.tables import HELD_BLOCKS as BLOCKS
from kit.costs.tables import token_bounds  # noqa: F401
from kit.costs.uses import bytes_used, uses_of
from kit.findings import reported
from kit.lab import tables
from kit.lab.machine import LIMITS
from kit.units import format_seconds


def limits(machine) -> pd.DataFrame:
    """One row a limit of this machine: the best sample, the spread of all samples, how it was measured."""
    rows = [
        (LIMITS[name], max(values), float(np.median(values)), min(values), machine.methods[name])
        for name, values in machine.samples.items()
    ]
    return tables.frame(rows, "limit", "best", "median", "worst", "measured by")


def answer(bounds: pd.DataFrame, machine, needed: pd.DataFrame) -> str:
    """The notebook's answer: ``bounds`` as token_bounds gives them, ``needed`` as plausibility."""
    least = bounds["least seconds a token"]
    worst = needed["GB/s needed"].idxmax()
    return (
        f"This machine reads {machine.read_gbps:.1f} GB/s, so no token of this file takes less than "
        f"{format_seconds(least['f32'])} from f32 weights and {format_seconds(least[BLOCKS])} from its blocks, whatever the "
        f"code does. Of the reported speeds {(needed.iloc[:, -1] > 1).sum()} of {len(needed)} need more than it has, most of "
        f"all {needed.loc[worst, 'as reported']} ({needed.loc[worst, 'GB/s needed']:,.0f} GB/s)."
    )


def roofline(file, machine, tokens=(1, 8, 64, 512)):
    """Attainable GFLOP/s against FLOPs a byte, with decode and prefill of this file marked, for f32 and for its blocks."""
    from kit.lab import figures  # pyplot takes half a second, and kit explain draws nothing

    uses = uses_of(file)
    multiplied = bytes_used([use for use in uses if not use.is_rows], 1)  # weights that a token is multiplied by
    figure, axes = figures.roof(machine, 0.1, 1e4)
    for name, width, color, marker, offset, side in (
        ("f32 weights", 4, figures.BLUE, "o", (-2, 7), "right"),
        ("blocks", None, figures.ORANGE, "s", (6, -14), "left"),
    ):
        x = np.array([2 * multiplied * count / bytes_used(uses, width, count) for count in tokens])
        y = np.minimum(machine.f32_gflops, machine.read_gbps * x)
        axes.scatter(x, y, color=color, marker=marker, s=45, label=name, zorder=3)
        for count, *point in zip(tokens, x, y, strict=True):
            text = f"{count} token{'s' * (count > 1)}"
            axes.annotate(text, point, offset, textcoords="offset points", fontsize=8.5, color=color, ha=side)
    axes.set(xlabel="FLOPs a byte of weights read", ylabel="attainable GFLOP/s")
    axes.set_title("A single token is bound by memory; a long prompt by arithmetic")
    axes.legend(loc="lower right")
    return figure


def claims_table() -> pd.DataFrame:
    """The claims as the reports make them, and the notebook that judges each."""
    rows = [(claim.id, claim.report, claim.claim, claim.reported, claim.notebook) for claim in claims.load().values()]
    return tables.frame(rows, "claim", "report", "what is claimed", "as reported", "judged in")


def plausibility(machine) -> pd.DataFrame:
    """GB/s that each reported speed would need on the reports' model in f32, over what this machine reads."""
    nbytes, rows = reported.f32_bytes(), []
    for name in ("cold-inference", "first-token-preload", "variance-45-1100", "blas-500"):
        claim = claims.get(name)
        seconds = 1 / claim.after if claim.unit == "tok/s" else claim.after
        gbps = nbytes / seconds / 1e9
        rows.append((name, claim.reported, format_seconds(seconds), gbps, gbps / machine.read_gbps))
    return tables.frame(rows, "claim", "as reported", "a token", "GB/s needed", "times this machine's")


def exactness(file, every: bool = True) -> pd.DataFrame:
    """One row a format, one column a way to use it: "equal" bit for bit with gguf-py, or the largest error. ``every``:
    dequantize all formats that gguf-py knows, otherwise those of the file. The fused products, whose kernels take longer to
    compile, are compared (in float64) for the formats of the file."""
    from kit.quants import exactness as compare  # and Numba, which no figure before needs
    from kit.quants import reference

    own = sorted({tensor.qtype for tensor in file.tensors.values()} & reference.FORMATS)
    found = pd.concat([compare.exactness(None if every else own), compare.exactness(own, backends=("fused",))])
    found["error"] = np.where(found["equal"], "equal", found["relative"].map("{:.0e} of the largest".format))
    return found.pivot(index="qtype", columns=["backend", "dtype"], values="error").fillna("–")
