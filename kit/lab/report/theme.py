"""The look of every page: templates with style and script inline, under a Content-Security-Policy that blocks all else."""

import base64
import hashlib
import math
import re
import shlex
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2
import markupsafe

from kit import units
from kit.lab.claims.book import reported_in
from kit.lab.claims.records import Record
from kit.lab.claims.table import WORDS, Claim
from kit.lab.measuring.machine import LIMITS
from kit.lab.report.content import visible
from kit.system.files import write_whole

MARGIN = 0.06  # of the width of a picture of a verdict, left free on both sides


@cache
def _asset(name: str) -> str:
    return resources.files("kit.lab.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("kit.lab.report"), autoescape=True,
        finalize=lambda value: type(value)(visible(value)) if isinstance(value, str) else value,
    )  # fmt: skip
    environment.filters |= {"quantity": units.format_quantity, "seconds": units.format_seconds, "bytes": units.format_bytes}
    environment.filters |= {"shellquote": lambda text: shlex.quote(str(text)), "coded": coded}
    environment.filters |= {"spoken": lambda name: name.replace("_", " ")}  # a page's name where a reader meets it
    environment.globals |= {"policy": _policy(), "style": _asset("page.css") + _tones(), "script": _asset("page.js")}
    environment.globals |= {"positions": positions, "limits": LIMITS}
    return environment


def coded(text: str) -> markupsafe.Markup:
    """A reason, a warning or a line of the checklist as HTML: what is between backticks as code."""
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))


def _tones() -> str:
    """The rules that give a verdict its color; lighter on a dark page."""
    rules = []
    for word, (_, color, *_) in WORDS.items():
        name = f".tone-{word.replace(' ', '-')}"
        dark = f'@media screen {{ :root[data-theme="dark"] {name} {{ --tone: color-mix(in srgb, {color} 45%, white); }} }}'
        rules += [f"{name} {{ --tone: {color}; }}", dark]
    return "\n".join(rules)


def _policy() -> str:
    """Content-Security-Policy: the page's own script by its hash, pictures within the page, and no request at all."""
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def write(path: Path, template: str, **context) -> Path:
    """Replace the page at ``path``. Text in the context is escaped, except what a template marks as safe."""
    write_whole(path, _environment().get_template(template).render(**context))
    return path


def positions(row: Record, claim: Claim | None) -> dict | None:
    """The picture of a verdict: places from 0 to 1 along a log axis; None where fewer than two positive numbers are known.

    ``possible``: (from, to), open ends reaching the edge, None without bounds; ``measured``: a place or None;
    ``reported``: places of the report's figure (two for a range), when it is in the record's unit.
    """
    reported = [value for value in dict.fromkeys((claim and reported_in(claim, row.unit)) or ()) if value is not None]
    numbers = [value for value in (row.lower, row.median, row.upper, *reported) if value is not None and value > 0]
    if len(set(numbers)) < 2:
        return None
    low, high = math.log(min(numbers)), math.log(max(numbers))

    def place(value: float | None) -> float | None:
        if value is None or value <= 0:
            return None
        return MARGIN + (1 - 2 * MARGIN) * (math.log(value) - low) / (high - low)

    lower, upper = place(row.lower), place(row.upper)
    return {
        "possible": None if lower is upper is None else (lower or 0.0, 1.0 if upper is None else upper),
        "measured": place(row.median),
        "reported": [place(value) for value in reported if value > 0],
    }
