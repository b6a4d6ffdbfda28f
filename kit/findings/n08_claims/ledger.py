"""The ledger: every claim of data/claims.yaml with the verdict that the records of a run give it, or what is missing."""

import textwrap

import pandas as pd
from IPython.display import HTML
from markupsafe import Markup, escape
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kit.claims import book
from kit.claims.book import Entry, Part, reported_in
from kit.claims.table import NO_RECORD, WORDS
from kit.lab import figures, tables
from kit.units import format_quantity as quantity

NOTHING = "–"
_CLAIMED = {"marker": "D", "color": figures.BLACK, "markersize": 4, "linewidth": 1, "markerfacecolor": "white"}
_MEASURED = {"marker": "o", "color": "#555555", "markersize": 6.5, "linewidth": 0}
_POSSIBLE = "#cccccc"


# --- tables ----------------------------------------------------------------------------------------------------------


def tally(entries: list[Entry]) -> pd.DataFrame:
    """Claims by verdict, and what the word means."""
    rows = [(word, count, WORDS[word].meaning) for word, count in book.tally(entries).items()]
    return tables.frame(rows, "verdict", "claims", "meaning")


def answer(entries: list[Entry]) -> str:
    """What is left of the claims, in two sentences."""
    counts = {word: count for word, count in book.tally(entries).items() if count}
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    computed = sum(entry.decisive.record.how == "computed" for entry in entries if entry.verdict == "impossible")
    return (
        f"Of {len(entries)} claims: {told}. Of the impossible ones {computed} are so by arithmetic on the reports' own "
        "figures, the others by a limit that was measured or has a source."
    )


def table(entries: list[Entry]) -> list[tuple[Entry, Part | None]]:
    """Every claim with the part that decided it."""
    return [(entry, entry.decisive) for entry in entries]


def parts(entries: list[Entry]) -> list[tuple[Entry, Part]]:
    """Every part of every claim that several records judge."""
    return [(entry, part) for entry in entries if len(entry.parts) > 1 for part in entry.parts]


def shown(rows: list[tuple[Entry, Part | None]]) -> HTML:
    """Rows of ``table`` or ``parts`` as HTML, all text escaped: verdicts as badges, a link to the cell that measured each."""
    head = "".join(f"<th>{name}</th>" for name in ("claim", "verdict", "measured and possible", "reason"))
    body = "".join(_html_row(entry, part) for entry, part in rows)
    return HTML(f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')


def _html_row(entry: Entry, part: Part | None) -> Markup:
    claim, under = entry.claim, Markup('<span class="under">{}</span>').format
    if part is None:
        verdict, where, measured, details, reason = NO_RECORD, claim.notebook, NOTHING, [], f"missing: {entry.missing}"
    else:
        record = part.record
        verdict, where, reason = record.verdict, record.notebook, record.reason
        measured = f"{record.quantity}: {quantity(record.median, record.unit)}"
        bounds = ("at least", record.lower, record.lower_source), ("at most", record.upper, record.upper_source)
        details = [
            f"{word} {quantity(value, record.unit)}{f' ({source})' if source else ''}"
            for word, value, source in bounds
            if value is not None
        ]
        details += [f"tolerance: {record.tolerance}"] * bool(record.tolerance)
        where = Markup('<a href="{}">{}</a>').format(part.link, where) if part.link else where
    cells = (
        escape(claim.id) + under(claim.reported) + under(claim.source),
        Markup('<span class="badge tone-{}">{}</span>').format(verdict.replace(" ", "-"), verdict),
        escape(measured) + Markup().join(map(under, details)),
        escape(reason) + under(where),
    )
    return Markup("<tr>{}</tr>").format(Markup().join(map(Markup("<td>{}</td>").format, cells)))


# --- the picture -----------------------------------------------------------------------------------------------------


def picture(entries: list[Entry]):
    """Claimed, measured and possible for every claim, each over its own reported figure, on one log axis. A claim without a
    figure that can be compared keeps its line, with its verdict in words."""
    figure, axes = figures.new(height=1.6 + 0.27 * len(entries))
    spans = {entry.claim.id: span for entry in entries if (span := relative(entry))}
    marks = [value for span in spans.values() for value in span.values() if value]
    left, right = min([*marks, 0.1]) / 2, max([*marks, 10.0]) * 2
    for row, entry in enumerate(entries):
        color, span = WORDS[entry.verdict].color, spans.get(entry.claim.id)
        axes.annotate(entry.verdict, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=color)
        if span is None:
            place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(_without_figure(entry), (left, row), fontsize=7.5, color="#666666", **place)
            continue
        if span["lower"] or span["upper"]:
            start, end = span["lower"] or left, span["upper"] or right
            axes.barh(row, max(end / start, 1.02) * start - start, left=start, height=0.55, color=_POSSIBLE)
        axes.plot([1, span["most"]], [row, row], **_CLAIMED)
        if span["measured"]:
            axes.plot(span["measured"], row, zorder=4, **_MEASURED | {"color": color})
    handles = [
        Line2D([], [], label="claimed", **_CLAIMED),
        Line2D([], [], label="measured (color: verdict)", **_MEASURED),
        Patch(color=_POSSIBLE, label="possible, by the bounds"),
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, fontsize=9)
    figures.log(axes, "x")
    axes.set_xlim(left, right)
    axes.set_yticks(range(len(entries)), [entry.claim.id for entry in entries], fontsize=8.5)
    axes.set_ylim(len(entries) - 0.4, -0.6)
    counts = book.tally(entries)
    axes.set(xlabel="times the figure that the report gives (1: as reported)")
    held = counts["reproduced"] + counts["reproduced in ratio"]
    axes.set_title(f"Of {len(entries)} claims {held} hold, {counts['impossible']} are impossible")
    axes.grid(axis="y", visible=False)
    return figure


def relative(entry: Entry) -> dict[str, float | None] | None:
    """Measured and bounds of the decisive part over the least reported figure; None without positive numbers to compare."""
    record = entry.decisive.record if entry.decisive else None
    reported = reported_in(entry.claim, record.unit) if record else None
    if not reported or not reported[0] > 0 or record.median is None:
        return None
    least, most = reported
    values = {"measured": record.median, "lower": record.lower, "upper": record.upper, "most": most}
    return {name: value / least if value and value > 0 else None for name, value in values.items()}


def _without_figure(entry: Entry) -> str:
    if entry.decisive is None:
        return f"missing: {entry.claim.notebook}"
    record = entry.decisive.record
    if record.median is None:
        return "not measured here"
    return textwrap.shorten(f"{record.quantity}: {quantity(record.median, record.unit)}", 78, placeholder=" ...")


# --- records -----------------------------------------------------------------------------------------------------------


def conclude(lab, entries: list[Entry]) -> None:
    """One record a verdict: how many claims have it."""
    for word, count in book.tally(entries).items():
        lab.record(
            quantity=f"claims: {word}", unit="claims", samples=[count], upper=len(entries),
            upper_source="rows of data/claims.yaml",
        )  # fmt: skip
