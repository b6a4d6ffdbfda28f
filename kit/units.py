"""Bytes, seconds, counts and names, between what people read and write and what programs hold."""

import json
import math
import re

_BYTES = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}


def parse_bytes(size: int | float | str) -> int:
    """Bytes from an int or from text such as ``"4 GiB"``, ``"512MB"`` (MB = 10^6, MiB = 2^20).

    Text without a unit is bytes from a MiB on; below, a unit was forgotten. Raises ValueError for anything
    else, with an example of what would do.
    """
    if isinstance(size, bool) or not isinstance(size, (int, float, str)):
        raise ValueError(f"{size!r} is not a size: give bytes as an int or text such as '4 GiB'")
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        factor = _BYTES.get(match[2].upper()) if match else None
        if factor is None:
            raise ValueError(f"{size!r} is not a size: give bytes as an int or text such as '4 GiB', '512 MB'")
        if not match[2] and 0 < float(match[1]) < 2**20:
            raise ValueError(f"{match[1]} bytes? write {match[1]}GiB, {match[1]}MiB, or {match[1]}B where bytes are meant")
        size = float(match[1]) * factor
    if not 0 <= size < 2**63:
        raise ValueError(f"{size!r} is not a size: it must be between 0 and 2^63 bytes")
    return int(size)


def format_bytes(nbytes: float) -> str:
    """``"30.44 GiB"``: the largest binary unit that leaves at least 1, three or four significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1023.95:  # more reads as 1024.0
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.{2 if abs(nbytes) < 100 else 1}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """``"194 s"``, ``"75.0 ms"``, ``"26.2 us"``, ``"3 h 05 min"``: three significant digits."""
    if abs(seconds) >= 7200:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if abs(seconds) >= 300:
        return f"{seconds / 60:.1f} min"
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if abs(seconds) * scale >= 0.9995:  # reads as 1.00
            return f"{seconds * scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e9:.0f} ns" if seconds else "0 s"


def format_count(number: float) -> str:
    """``"8.171 G"``: decimal prefixes, for parameters and FLOPs."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 1000:
            return f"{number:.4g} {prefix}".rstrip()
        number /= 1000
    return f"{number:.4g} P"


def format_quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number as people read it: ``75.0 ms``, ``3.83 GiB``, ``1,100 tok/s``; an en dash when there is none. A
    number that is no count has no more ``digits``, above a thousand, too: ``7.84x``, ``1,590x``; 99.96% is not all."""
    if value is None:
        return "–"
    if unit in _BY_UNIT:
        return _BY_UNIT[unit](value)
    if unit == "%" and 0 < value < _LEAST_SHARE:
        return f"below {_LEAST_SHARE}%"
    unit = _ONE.get(unit, unit) if value == 1 else unit
    if digits < 4 and math.isfinite(value) and value != int(value) and not (unit == "%" and 99 < value < 100):
        value = float(f"{value:.{digits}g}")
    large = abs(value) >= 1000
    number = f"{value:,.0f}" if large and value < 1e9 else f"{value:.4g}" if not large else format_count(value)
    return f"{number}{unit}" if unit in ("x", "%") else f"{number} {unit}".rstrip()


def format_rate(per_second: float) -> str:
    """``"67.9"``, ``"4,140"``: tokens per second with three significant digits, and no exponent of ten above one."""
    return f"{float(f'{per_second:.3g}'):,.0f}" if abs(per_second) >= 100 else f"{per_second:.3g}"


def with_error(value: float, error: float | None, digits: str) -> str:
    """``"30.7 ± 0.8"``: a number and its error by one format specification. An error that is as large as its number says only
    that little is known: ``"25.3 (uncertain)"``; None or NaN: it is not known."""
    if error is None or math.isnan(error):
        return f"{value:{digits}}"
    return f"{value:{digits}} ± {error:{digits}}" if error < abs(value) else f"{value:{digits}} (uncertain)"


def places_of(error: float) -> int:
    """Decimal places with which an error has one digit, or two: 12 has none, 0.8 and 2.1 have one, 0.04 two, 0 one."""
    return 0 if error >= 9.95 else next((places for places in (1, 2, 3) if error == 0 or error >= 0.95 * 10.0**-places), 3)


def brief(value: float, unit: str = "s") -> str:
    """``"18 ms"``, ``"360 MiB"``, ``"1,100 tok/s"``: ``format_quantity`` with two significant digits, as an answer has them."""
    number, _, of = format_quantity(value, unit, 4).partition(" ")  # three, then two, would round twice
    try:
        rounded = float(f"{float(number.replace(',', '')):.2g}")
    except ValueError:  # an en dash, a share that is too small, infinity
        return f"{number} {of}".rstrip()
    return f"{rounded:,.0f} {of}".rstrip() if abs(rounded) >= 10 else f"{rounded:g} {of}".rstrip()


_LEAST_SHARE = 0.001  # in %; a smaller share says no more than that it is small
_ONE = {"kinds": "kind", "hits": "hit", "misses": "miss", "points": "point", "faults": "fault", "readers": "reader",
        "references": "reference", "requests": "request"}  # fmt: skip
_BY_UNIT = {"s": format_seconds, "B": format_bytes}


def printable(text) -> str:
    """Text from a file, harmless on a terminal and in a figure: what is not printable as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text))


def finite(value):
    """Plain data as JSON can hold it: numbers of numpy as Python's, NaN and infinity, which JSON has not, as None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(text: str | bytes):
    """Plain data from JSON that others wrote; ValueError for what is none, nested too deeply, or not UTF-8."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists within lists, too deep to be read") from None


SCHEMA_VERSION = 1  # of what ``--json`` prints: a key that changes its meaning raises it, a new key does not
_KEYS = {  # headings of tables -> keys
    "a token, s": "seconds_per_token", "tok/s": "tokens_per_second", "read, B": "bytes_read_per_token", "GB/s": "gbps",
    "slots a layer": "slots_per_layer", "bits of a weight": "bits_per_weight", "bytes of a token": "bytes_per_token",
    "comes in": "load_seconds", "held": "held_bytes", "file pages": "file_pages_bytes", "in the file": "file_bytes",
    "in float32": "float32_bytes", "size": "size_bytes", "peak": "peak_bytes", "resident": "resident_bytes",
    "bytes hit": "byte_hit_rate", "bytes limit": "byte_hit_rate_bound",
}  # fmt: skip
_TRUTHS = {"yes": True, "no": False}


def to_json(value) -> str:
    """Plain data as the text that ``--json`` prints: an object with a schema_version, rows under ``rows``, keys without blanks
    or commas, bytes as integers, yes and no as truths."""
    plain = keyed(finite(value))
    plain = {"schema_version": SCHEMA_VERSION} | (plain if isinstance(plain, dict) else {"rows": plain})
    return json.dumps(plain, indent=1, allow_nan=False)


def keyed(value, key: str = ""):
    """Plain data with the keys and kinds of numbers that ``to_json`` promises."""
    if isinstance(value, dict):
        if key in ("metadata", "hyperparameters"):  # the file's own names
            return {**value}
        return {(name := key_of(each)): keyed(item, name) for each, item in value.items()}
    if isinstance(value, list):
        return [keyed(item, key) for item in value]
    if isinstance(value, float) and key.endswith(("bytes", "bytes_per_token", "bytes_read_per_token")):
        return round(value)
    return _TRUTHS.get(value, value) if isinstance(value, str) and key.startswith("fits") else value


def key_of(text) -> str:
    """A heading as a key: letters, digits, dots, hyphens and underscores."""
    return _KEYS.get(text) or re.sub(r"[^\w.+-]+", "_", str(text), flags=re.ASCII).strip("_")
