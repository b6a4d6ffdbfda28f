"""Rows that come back from a file, checked field by field: what a program reads may be torn, edited, or of another version."""

import sys
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path

from kit.units import from_json


def row_of(cls: type, row: object):
    """An instance of a dataclass from what JSON gave: every field is known and of its annotated kind, no number is infinite or
    NaN, and none without a default is missing. ValueError says which field is wrong."""
    if not isinstance(row, dict):
        raise ValueError(f"{type(row).__name__} in place of an object")
    known = _kinds(cls)
    if strange := [name for name in row if name not in known]:
        raise ValueError(f"no field is named {strange[0]!r}")
    needed = [each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING]
    if missing := [name for name in needed if name not in row]:
        raise ValueError(f"{missing[0]} is missing")
    return cls(**{name: _value(name, known[name], value) for name, value in row.items()})


def read_json(path: Path) -> object:
    """What a JSON file holds; None where it is missing, torn, or no JSON."""
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def number(value: object) -> bool:
    """Whether it is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


@cache
def _kinds(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {each.name: hints[each.name] for each in fields(cls)}


def _value(name: str, kind, value):
    """``value`` as the annotation ``kind`` has it; ValueError where it is none."""
    origin, inside = typing.get_origin(kind) or kind, typing.get_args(kind)
    if isinstance(origin, type) and is_dataclass(origin) and isinstance(value, origin):
        return value
    if origin in (typing.Union, types.UnionType):
        for one in inside:
            try:
                return _value(name, one, value)
            except ValueError:
                continue
    elif origin is type(None) and value is None:
        return None
    elif origin is float and number(value):
        return float(value)
    elif origin is int and number(value) and value == int(value):
        return int(value)
    elif origin in (str, bool) and type(value) is origin:
        return value
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        return origin(_value(name, inside[0], one) for one in value) if inside else origin(value)
    elif origin is dict and isinstance(value, dict):
        return {key: _value(name, inside[1], one) for key, one in value.items()} if inside else value
    elif origin is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{name} is {value!r:.60}")
