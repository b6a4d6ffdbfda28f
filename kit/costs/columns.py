"""Formats of the cost model's tables: the name of a column gives its unit."""

import pandas as pd

from kit.lab.tables import number
from kit.units import format_bytes, format_count, format_seconds

_SECONDS = ("dequantize", "multiply", "from blocks", "predicted", "measured", "least", "least seconds a token")
_BYTES = ("in the file", "in float32", "held", "file pages", "together", "peak", "bytes")
_SHARES = ("share", "hit rate", "bytes hit", "upper bound")
_FORMATS = (
    dict.fromkeys(_SECONDS, format_seconds)
    | dict.fromkeys(_BYTES, format_bytes)
    | dict.fromkeys(_SHARES, lambda share: f"{share:.1%}")
    | {"faster": lambda ratio: f"{ratio:.2f}x", "error": lambda share: f"{share:+.0%}", "weights": format_count}
)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its numbers as text, with units, and an en dash for missing values."""
    columns = {}
    for name, values in frame.items():
        write = _FORMATS.get(name, number)
        columns[name] = ["–" if value is None or value != value else write(value) for value in values]
    return pd.DataFrame(columns, index=frame.index)
