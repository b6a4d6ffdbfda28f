"""Options that a user writes after an engine's name: which it takes, and the error for any other."""

from kit.errors import EngineError
from kit.system import usable_cores
from kit.system.cores import cores


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


def counts_of(text: str | None) -> list[int]:
    """The counts of --threads: "1,2,4", or "all" for those that are worth trying here; [] where it was not given."""
    if text is None:
        return []
    known = cores()
    if text == "all":
        return known.counts()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise EngineError(f"--threads {text}: give counts such as 1,2,4, or all")
    if (most := max(map(int, words))) > 4 * known.logical:
        raise EngineError(
            f"--threads {text}: this process may run on {known.told}; give at most {4 * known.logical}, not {most}"
        )
    return sorted({int(word) for word in words})
