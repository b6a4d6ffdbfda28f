"""The look of every page: templates with their style and script inline, under a policy that lets nothing else in."""

import base64
import hashlib
from functools import cache
from importlib import resources

import jinja2

from kit import units
from kit.report.scale import positions


@cache
def _asset(name: str) -> str:
    return resources.files("kit.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kit.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"quantity": quantity, "seconds": units.format_seconds, "bytes": units.format_bytes}
    environment.globals |= {"policy": _policy(), "style": _asset("page.css"), "script": _asset("page.js")}
    environment.globals["positions"] = positions
    return environment


def _policy() -> str:
    """Content-Security-Policy: the page's own script by its hash, pictures within the page, and no request at all."""
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def render(template: str, **context) -> str:
    """The page of that template. Text in the context is escaped, except what a template marks as safe."""
    return _environment().get_template(template).render(**context)


def data_uri(content: bytes, mime: str) -> str:
    """Content to embed in a page, for an image or a download."""
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


_BY_UNIT = {"s": units.format_seconds, "B": units.format_bytes}


def quantity(value: float | None, unit: str = "") -> str:
    """A number as people read it: ``75.0 ms``, ``3.83 GiB``, ``1,100 tok/s``; an en dash when there is none."""
    if value is None:
        return "–"
    if unit in _BY_UNIT:
        return _BY_UNIT[unit](value)
    large = abs(value) >= 1000
    number = f"{value:,.0f}" if large and value < 1e9 else f"{value:.4g}" if not large else units.format_count(value)
    return f"{number}x" if unit == "x" else f"{number} {unit}".rstrip()
