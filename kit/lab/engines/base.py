"""The protocol of engines: what kit asks of any program that runs a user's file, and what it answers.

`kit explain --engine X`, the pages and the sweeps know an engine by this alone. A module of this folder implements it and has a
row in kit.lab.engines.table.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol


class Cpu(NamedTuple):
    """CPU seconds, by the names that psutil has: kit.lab.measuring.state.watched takes an engine where it takes a process."""

    user: float
    system: float


@dataclass(frozen=True)
class EngineFacts:
    """What is known of an engine. ``name``: of the program; ``version``: its build, "" where it does not say. ``threads``: for
    decode. ``flags``: setting -> value, of the user or as the program reports them, in its own words. ``file``: the model on
    this machine; ``context``: positions; ``kv``: types of its keys and values. ``unknown``: what cannot be known, in words."""

    name: str
    version: str = ""
    threads: int | None = None
    flags: dict[str, str] = field(default_factory=dict)
    file: Path | None = None
    context: int | None = None
    kv: tuple[str, str] | None = None
    unknown: tuple[str, ...] = ()

    def to_json(self) -> dict:
        """For ``engine`` of the JSON of kit explain."""
        return asdict(self) | {"file": self.file and str(self.file)}


class Pass(NamedTuple):
    """One timed pass of a prompt or of a decode.

    ``seconds``: for the tokens alone, without loading. ``received``: tokens of a decode that came, of a prompt that were
    computed (those that a cache had are not); ``asked``: how many were asked for. ``depth``: positions before them.
    ``reported``: seconds as the engine itself says. ``problem``: why this is no speed: an error, an empty or a cached answer,
    an early stop; "" where it is one.
    """

    seconds: float
    received: int
    asked: int
    depth: int = 0
    reported: float | None = None
    problem: str = ""

    @property
    def per_token(self) -> float | None:
        """Seconds per token; None where it is no speed."""
        return None if self.problem or not self.received else self.seconds / self.received


class Runner(Protocol):
    """An engine with a model. It is made by ``open`` of its row (kit.lab.engines.table) and closed by who opened it.

    ``label``: its name in tables, unique among those of one run: what the user typed.
    """

    label: str

    @property
    def facts(self) -> EngineFacts:
        """What is known of it; more may be known after the first pass."""

    def decode(self, tokens: int, depth: int = 0) -> Pass:
        """Generate ``tokens`` after ``depth`` positions; a warm-up comes before the first pass."""

    def prompt(self, tokens: int, depth: int = 0) -> Pass:
        """Compute a prompt of ``tokens`` after ``depth`` positions, without any that a cache has."""

    def cpu_times(self) -> Cpu:
        """CPU seconds of its processes so far, also of those that have ended; zeros where they are not on this machine."""

    def close(self) -> None:
        """End what kit started; a server of the user's goes on."""
