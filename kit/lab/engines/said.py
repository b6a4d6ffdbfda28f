"""Values in the JSON of a server that may say anything: each as what is asked for, or as nothing."""

_MOST = 2**53  # of a number: more is none of tokens or of time


def number(value) -> float | None:
    """A number of at least 0, as it is."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    return value if sound else None


def count(value) -> int | None:
    """A whole one."""
    return number(value) if isinstance(value, int) else None


def text(value) -> str:
    """A text, "" for all else."""
    return value if isinstance(value, str) else ""


def ids(value) -> tuple[int, ...]:
    """Token ids, () for all else."""
    return tuple(value) if isinstance(value, list) and None not in map(count, value) else ()


def part(value) -> dict:
    """An object, {} for all else."""
    return value if isinstance(value, dict) else {}


def rows(value) -> list[dict]:
    """The objects of a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
