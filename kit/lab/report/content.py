"""What cells hold, as HTML that is safe to embed: nothing in it runs, nothing in it loads from elsewhere."""

import base64
import functools
import html
import re

import nh3
from markupsafe import Markup
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.markdown_mistune import markdown2html_mistune

TAGS = set(
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre "
    "s small span strong sub summary sup table tbody td tfoot th thead tr ul".split()
)
ATTRIBUTES = {"*": set("class colspan rowspan title alt open".split()), "a": {"href"}, "img": {"src"}}
LONGEST = 100_000  # characters of one output that a page shows
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # all but tab, line feed and carriage return
_NO_COLOR = re.compile(r"\x1b(?!\[[0-9;]*m)|(?!\x1b)" + _CONTROL.pattern)
_HEAD = re.compile(r'<th(?! class="blank)(?=>| class="(row_heading)?)')  # of pandas' tables and of Markdown's
_EMPTY_IMAGE = re.compile(r"<img\b(?![^>]*\ssrc=)[^>]*>")
_HEADING = re.compile(r"<h([1-3])\b[^>]*>(.*?)</h\1>", re.DOTALL)
_ANCHOR = re.compile(r'<a class="anchor-link".*?</a>', re.DOTALL)
_highlight = Highlight2HTML()


def visible(text: str) -> str:
    """Text without control characters: what a page may show of a name that a file brings."""
    return _CONTROL.sub("", text)


def clean(markup: str) -> str:
    """Markup with known tags only: no scripts, styles, handlers or ids; images only where they are part of the page. Heads of
    tables say what they are the head of, for who listens to a page."""
    cleaned = nh3.clean(
        visible(markup), tags=TAGS, attributes=ATTRIBUTES, attribute_filter=_embedded, link_rel=None,
        url_schemes={"http", "https", "data"}, clean_content_tags={"script", "style"},
    )  # fmt: skip
    return _HEAD.sub(lambda head: f'<th scope="{"row" if head[1] else "col"}"', _EMPTY_IMAGE.sub("", cleaned))


def _embedded(_, name: str, value: str) -> str | None:
    """Images hold their data, and no link does."""
    is_data, is_image = value.startswith("data:"), value.startswith("data:image/")
    return value if {"src": is_image, "href": not is_data}.get(name, True) else None


def markdown(source: str, prefix: str) -> tuple[str, list[tuple[int, str, str]]]:
    """Markdown as clean HTML, and its headings of level 1 to 3 as (level, id, text); ids start with ``prefix``.

    Links to other notebooks lead to their pages.
    """
    markup = clean(_ANCHOR.sub("", markdown2html_mistune(source)))
    markup = re.sub(r'href="([^":]+)\.ipynb(#[^"]*)?"', r'href="\1.html\2"', markup)
    headings = []

    def mark(match: re.Match) -> str:
        level, inner = int(match[1]), match[2]
        headings.append((level, f"{prefix}-{len(headings) + 1}", Markup(inner).striptags()))
        return f'<h{level} id="{headings[-1][1]}">{inner}</h{level}>'

    return _HEADING.sub(mark, markup), headings


@functools.cache  # the front page asks for all pages' again whenever a notebook ends
def code(source: str) -> str:
    """Python source with highlighting."""
    return _highlight(source)


def output(item: dict) -> dict:
    """One output of a cell (nbformat) as {"kind": "image" | "html" | "text" | "error", "body": ...}.

    An image's body is a data URI, its ``alt`` the text form beside it (the titles of a figure of kit.lab.figures) or "". Of
    several forms the first one wins that a page can show without a kernel: a live control becomes its text.
    """
    match item["output_type"]:
        case "stream":
            return {"kind": "text", "body": ansi2html(terminal(item["text"]))}
        case "error":
            return {"kind": "error", "body": ansi2html(terminal("\n".join(item["traceback"])))}
    for mime, show in _SHOW.items():
        if mime in item["data"]:
            kind, body = show(item["data"][mime])
            told = item["data"].get("text/plain", "")
            alt = {"alt": "" if told.startswith("<") else told} if kind == "image" else {}
            return {"kind": kind, "body": body} | alt
    return {"kind": "text", "body": html.escape(f"(not shown: {', '.join(item['data'])})")}


def terminal(text: str) -> str:
    """What a terminal would show at the end: of a line that was overwritten, its last state; of very much, both ends."""
    text = "\n".join(line[line.rstrip("\r").rfind("\r") + 1 :] for line in text.split("\n"))
    text = _NO_COLOR.sub("", text)
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[... {len(text) - LONGEST:,} characters are in the notebook only ...]\n{text[-half:]}"


def data_uri(content: bytes, mime: str) -> str:
    """Content to embed in a page, for an image or a download."""
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


_SHOW = {
    "image/png": lambda data: ("image", "data:image/png;base64," + "".join(data.split())),
    "image/jpeg": lambda data: ("image", "data:image/jpeg;base64," + "".join(data.split())),
    "image/svg+xml": lambda data: ("image", data_uri(data.encode(), "image/svg+xml")),
    "text/html": lambda data: ("html", clean(data)),
    "text/markdown": lambda data: ("html", markdown(data, "output")[0]),
    "text/plain": lambda data: ("text", ansi2html(terminal(data))),
}
