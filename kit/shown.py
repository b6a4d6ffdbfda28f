"""Shown: what an object says of itself in a shell (one line) and in a notebook (a small table)."""

from collections.abc import Mapping
from html import escape

from kit.units import printable


class Shown:
    """A class with ``_facts`` gets ``repr`` and IPython's ``_repr_html_`` from it."""

    def _facts(self) -> tuple[str, Mapping[str, str]]:
        """(what it is, label -> text) of what a person wants to see first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, facts = self._facts()
        return f"<{printable(title)}: {', '.join(f'{label} {printable(text)}' for label, text in facts.items())}>"

    def _repr_html_(self) -> str:
        title, facts = self._facts()
        rows = (f"<tr><th>{escape(label)}</th><td>{escape(printable(text))}</td></tr>" for label, text in facts.items())
        return f"<table><caption>{escape(printable(title))}</caption><tbody>{''.join(rows)}</tbody></table>"
