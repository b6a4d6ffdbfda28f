"""The style of every table: three significant digits, thousands separated, seconds with their unit, an en dash for nan."""

from collections.abc import Callable, Collection, Iterable, Mapping
from html import escape

import pandas as pd
from pandas.io.formats.style import Styler

from kit.products import PRODUCTS
from kit.units import format_seconds

_SECONDS = ", s"
_ROUNDS = " activations"
_ONE_WORD = {"blocks, exact products": "exact"}
_ONE_WORD |= {f"blocks, {row.activations}{_ROUNDS}": row.activations for row in PRODUCTS.values() if not row.exact}


def in_tables(name):
    """A way's name as tables show it, one word of kit.products, also behind what is held; records keep theirs. Others stay."""
    return _ONE_WORD.get(name) or (name.removesuffix(_ROUNDS) if isinstance(name, str) else name)


def frame(rows: Iterable[tuple] | Mapping[str, tuple], *names: str) -> pd.DataFrame:
    """A DataFrame of rows with columns ``names``; the first column (the keys of a mapping) becomes the index."""
    rows = [(key, *values) for key, values in rows.items()] if isinstance(rows, Mapping) else rows
    return pd.DataFrame(rows, columns=list(names)).set_index(names[0])


def shown(table: pd.DataFrame, **formats: str | Callable) -> Styler:
    """The table as a page shows it, ways by their one word. ``formats``: formats of columns, such as ``"{:.1%}"``; of others
    ``number``.

    A column's name with spaces is passed as ``**{"byte hit rate": "{:.0%}"}``. The column "total, s" is headed "total" and
    holds "345 us".
    """
    unknown = [name for name in formats if name not in table.columns]
    if unknown:
        raise KeyError(f"no column {unknown[0]!r}: there are {', '.join(map(str, table.columns))}")
    defaults = {name: format_seconds if str(name).endswith(_SECONDS) else number for name in table.columns}
    style = table.rename(index=in_tables).style.format(defaults | formats, na_rep="–")
    return style.format_index(lambda name: str(name).removesuffix(_SECONDS), axis="columns")


def folded(summary: str, table: pd.DataFrame, **formats: str | Callable):
    """The table as ``shown``, behind a fold that opens by its ``summary``: for rows that few want to read."""
    from IPython.display import HTML  # no command needs it

    return HTML(f'<details class="more"><summary>{escape(summary)}</summary>{shown(table, **formats).to_html()}</details>')


def paste(summary: str, text: str):
    """Text to copy, behind a fold that opens by its ``summary``; a page of a report has a button for it."""
    from IPython.display import HTML  # no command needs it

    folded = f'<summary>{escape(summary)}</summary><pre class="paste">{escape(text)}</pre>'
    return HTML(f'<details class="more">{folded}</details>')


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: Collection[str] = ()) -> str:
    """A table of Markdown, each cell a text; the columns ``numbers`` are set to the right."""
    top = [*head]
    first, *lines = (f"| {' | '.join(cells)} |" for cells in (top, *rows))
    rule = "".join("|---" + ":" * (name in numbers) for name in top)
    return "\n".join([first, f"{rule}|", *lines])


def number(value) -> str:
    """A cell as text: numbers as 0.000123, 0.95, 39.1 or 1,234, booleans as yes or no."""
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    if not pd.api.types.is_number(value):
        return str(value)
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"
