"""Options that a user writes after an engine's name: which it takes, and the error for any other."""

from kit.errors import EngineError
from kit.system import usable_cores


def taken(label: str, words: list[str], known: dict[str, str]) -> dict[str, str]:
    """Option -> value of ``words``, pairs of an option and its value. ``known``: option as typed -> its name. EngineError for
    another option, or one without a value."""
    found, rest = {}, list(words)
    while rest:
        option = rest.pop(0)
        if option not in known:
            raise EngineError(f"--engine {label}: no option {option}; it takes {', '.join(known) or 'none'}")
        if not rest:
            raise EngineError(f"--engine {label}: {option} has no value")
        found[known[option]] = rest.pop(0)
    return found


def count_of(label: str, option: str, value: str) -> int:
    """A positive whole number; EngineError for anything else."""
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise EngineError(
            f"--engine {label}: {option} {value}: give a whole number, at least 1; --threads 1,2,4 sweeps several"
        )
    return int(value)


def cores_of(label: str, option: str, value: str) -> int:
    """The same, of cores that this process may use."""
    count, cores = count_of(label, option, value), usable_cores()
    if count > cores:
        raise EngineError(f"--engine {label}: {option} {value}: this process may use {cores} cores")
    return count
