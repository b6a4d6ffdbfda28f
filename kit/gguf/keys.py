"""Keys: typed reads of a file's metadata.

A value of another type, length or range is one error, which names the file, the key and what the value should be.
"""

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import numpy as np

from kit.errors import GGUFError, KitError
from kit.gguf.metadata import MetadataArray

REQUIRED: Any = object()  # as a default: a file without the key is an error
SOFTMAX, SIGMOID, ROOTED = 1, 2, 4  # how shares come from a router's scores, as files say it; the last: sqrt(softplus)
SPARSEMIXER = -1  # no file says it: softmax over the scores that are near the best of those not yet chosen (Liu et al. 2024)
NEAR = 0.02  # of the larger of both sizes


class Keys:
    """Reads of the keys that begin with ``prefix``. ``file`` has ``path`` and ``metadata``; ``error`` is what is raised.

    Every method takes the rest of the key and what is returned where the file has no such key; ``what`` says what the value is
    for, in the error. A bool is no number.
    """

    def __init__(self, file, prefix: str = "", error: type[KitError] = GGUFError):
        self.path, self._metadata, self.prefix, self._error = file.path, file.metadata, prefix, error
        self._read = set()

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self._metadata

    def unread(self) -> list[str]:
        """The keys of the file, without the prefix, that nothing has asked for."""
        ours = (key.removeprefix(self.prefix) for key in self._metadata if key.startswith(self.prefix))
        return [key for key in ours if key not in self._read]

    def is_list(self, key: str) -> bool:
        """Whether the file has a list at this key."""
        return isinstance(self._metadata.get(self.prefix + key), (MetadataArray, list, tuple, np.ndarray))

    def text(self, key: str, default=REQUIRED, choices: Collection[str] = ()) -> str:
        """A string, one of ``choices`` where there are any."""
        wanted = f"one of {', '.join(choices)}" if choices else "text"
        return self._checked(key, default, wanted, lambda value: isinstance(value, str) and (not choices or value in choices))

    def flag(self, key: str, default=REQUIRED) -> bool:
        """True or false."""
        return self._checked(key, default, "true or false", lambda value: isinstance(value, (bool, np.bool_)))

    def whole(self, key: str, default=REQUIRED, least: int = 0, most: int = 2**63 - 1, what: str = "a whole number") -> int:
        """An integer from ``least`` to ``most``."""
        wanted = f"{what} from {least} to {most}" if most < 2**63 - 1 else f"{what} of at least {least}"
        return self._checked(key, default, wanted, lambda value: _is_number(value, whole=True) and least <= value <= most)

    def number(self, key: str, default=REQUIRED, least=-np.inf, most=np.inf, what: str = "a number", above=-np.inf) -> float:
        """A finite number from ``least`` to ``most`` that is more than ``above``."""
        limits = (("at least", least), ("at most", most), ("more than", above))
        wanted = what + "".join(f" of {name} {limit}" for name, limit in limits if np.isfinite(limit))
        right = self._checked(
            key,
            default,
            wanted,
            lambda value: _is_number(value) and np.isfinite(value) and least <= value <= most and value > above,
        )
        return right if right is default else float(right)

    def texts(self, key: str, default=REQUIRED) -> Sequence[str]:
        """A list of strings, as the file has it."""
        return self._checked(key, default, "a list of texts", _are_texts)

    def numbers(self, key: str, default=REQUIRED, length: int | None = None, least=-np.inf, most=np.inf, whole=False, what=""):
        """A list of numbers, (length,): none is NaN, all are from ``least`` to ``most``; ``what`` each of them is."""
        many, kind = "" if length is None else f"{length:,} ", "whole numbers" if whole else "numbers"
        limits = f" from {least} to {most}" if np.isfinite([least, most]).all() else ""
        wanted = f"a list of {many}{kind}{limits}{what and f' ({what})'}"
        value = self._checked(key, default, wanted, lambda value: _are_numbers(value, whole))
        if value is default:
            return default
        array = np.asarray(value)
        if length is not None and len(array) != length:
            self.fail(key, wanted, f"has {len(array):,}")
        wrong = np.flatnonzero(~((array >= least) & (array <= most)))  # NaN too
        if len(wrong):
            self.fail(key, wanted, f"has {array[wrong[0]]} at {wrong[0]:,}")
        return array

    def flags(self, key: str, length: int) -> list[bool]:
        """A list of ``length`` booleans; 0 and 1 are such too."""
        wanted = f"a list of {length:,} booleans"
        value = self._checked(key, REQUIRED, wanted, lambda value: _are_flags(value) and len(value) == length)
        return list(map(bool, value))

    def fail(self, key: str, wanted: str, actual: str) -> NoReturn:
        """Raise the error: the key should be ``wanted`` and ``actual``, a verb first."""
        raise self._error(
            f"{self.path}: the metadata key {self.prefix + key!r} should be {wanted}, it {actual}: convert the model again"
        )

    def _checked(self, key, default, wanted, right):
        self._read.add(key)
        value = self._metadata.get(self.prefix + key, default)
        if value is REQUIRED:
            raise self._error(f"{self.path}: the metadata key {self.prefix + key!r} is missing: it should be {wanted}")
        if value is not default and not right(value):
            self.fail(key, wanted, f"is {value!r:.60}")
        return value


def _is_number(value, whole=False) -> bool:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def _are_texts(value) -> bool:
    if isinstance(value, MetadataArray):
        return value.kind == "string"
    return isinstance(value, (list, tuple, np.ndarray)) and all(isinstance(item, str) for item in value)


def _are_flags(value) -> bool:
    if not isinstance(value, (MetadataArray, list, tuple, np.ndarray)) or getattr(value, "kind", "") == "string":
        return False
    return all(isinstance(item, (bool, np.bool_)) or (_is_number(item, whole=True) and item in (0, 1)) for item in value)


def _are_numbers(value, whole) -> bool:
    if isinstance(value, MetadataArray):
        return value.kind not in ("string", "bool") and not (whole and value.kind.startswith("float"))
    if not isinstance(value, (list, tuple, np.ndarray)):
        return False
    return len(value) == 0 or (np.ndim(value) == 1 and all(_is_number(item, whole) for item in value))
