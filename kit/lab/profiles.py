"""What notebooks are given: the profiles smoke, quick and full (models, samples of a timing, cost), and sizes as text."""

from dataclasses import dataclass

from kit.errors import ReportError
from kit.units import parse_bytes


@dataclass(frozen=True)
class Profile:
    """One size of a run.

    ``models``: model of the reports -> (geometry, layers or None for all). ``samples``: of a timing. ``patience``: seconds
    to wait for other processes to leave the cores (KIT_PATIENCE=0: none).
    """

    name: str
    models: dict[str, tuple[str, int | None]]
    samples: int
    patience: float
    cost: str


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "smoke", {"granite-3.3-8b": ("tiny-granite", None), "tinyllama-1.1b": ("tiny-llama", None),
             "qwen3-30b-a3b": ("tiny-qwen3moe", None)}, 3, 0.0,
            "tiny geometry: all notebooks in about two minutes, under 2 GB",
        ),
        Profile(
            "quick", {"granite-3.3-8b": ("granite-3.3-8b", 4), "tinyllama-1.1b": ("tinyllama-1.1b", 4),
             "qwen3-30b-a3b": ("qwen3-30b-a3b", 8)}, 5, 20.0,
            "real tensor shapes, four layers: five to twelve minutes, 8 GB of memory, 5 GB of disk",
        ),
        Profile(
            "full", {"granite-3.3-8b": ("granite-3.3-8b", None), "tinyllama-1.1b": ("tinyllama-1.1b", None),
             "qwen3-30b-a3b": ("qwen3-30b-a3b", None)}, 5, 120.0,
            "true geometry: an hour or more, 24 GB of memory and up, 40 GB of disk",
        ),
    )
}  # fmt: skip


def get(name: str) -> Profile:
    """The profile of that name; ReportError lists the known ones with what they cost."""
    try:
        return PROFILES[name]
    except KeyError:
        known = "; ".join(f"{profile.name} ({profile.cost})" for profile in PROFILES.values())
        raise ReportError(f"there is no profile {name!r}; choose one of {known}") from None


SIZES = ("memory", "room")  # parameters of notebooks that are bytes, or text such as "4 GiB"


def check_size(name: str, value) -> None:
    """ReportError for a parameter of SIZES whose text is no size, before anything runs."""
    if name not in SIZES or not isinstance(value, str) or value in ("", "auto"):
        return
    try:
        parse_bytes(value)
    except ValueError as error:
        raise ReportError(f"parameter {name}: {error}") from None
