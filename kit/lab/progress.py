"""What shows that a command goes on: bars on a terminal, lines elsewhere.

A prompt's pass is one call, so its bar counts what the pass adds to a trace.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from kit.trace import Span, Trace

_DELAY = 1.0  # seconds before a bar appears: a short prompt shows none
_APART = 5.0  # seconds between two lines: what is short prints none


def say(step: str) -> None:
    """Name the step that begins, in a line on standard error, unless that is a terminal, where a bar shows it."""
    if not sys.stderr.isatty():
        print(step, file=sys.stderr, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """While the ``with`` runs and takes more than a second: what it does and for how long, on standard error, if that is a
    terminal. Nothing stays of it."""
    began, ended = time.monotonic(), threading.Event()

    def tell():
        while not ended.wait(_DELAY):
            print(f"\r{what}, {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    if sys.stderr.isatty():
        teller.start()
    try:
        yield
    finally:
        ended.set()
        if teller.ident:
            teller.join()
            print(f"\r{'':{len(what) + 9}}\r", end="", file=sys.stderr, flush=True)


def steps(items: Collection, what: str, progress: bool = True, unit: str = "step") -> Iterator:
    """The items one by one, with a bar, or a line when some seconds have passed since the last; ``progress=False``: neither."""
    tell = lines(what, unit, len(items), progress)
    for number, item in enumerate(tqdm(items, what, disable=None if progress else True, unit=unit)):
        tell(number)
        yield item


def lines(what: str, unit: str, count: int, progress: bool = True) -> Callable[[int], None]:
    """What is to be called as each of ``count`` steps begins, by number: it prints the lines of steps. There are more where
    other processes disturbed some."""
    told = time.monotonic()

    def tell(number: int) -> None:
        nonlocal told
        if progress and time.monotonic() - told >= _APART:
            of = f" of {count}" if number < count else f", because other processes disturbed some of {count}"
            say(f"{what}: {unit} {number + 1}{of}")
            told = time.monotonic()

    return tell


_LOADS = ("access", "read", "dequantize", "fresh")  # spans of weights, of which the first pass has more


class PromptTrace(Trace):
    """A trace that draws a bar on standard error during one pass, if that is a terminal. The first pass that it records sets
    how many operations a pass has."""

    def __init__(self):
        super().__init__()
        self._operations, self._known = 0, False
        self.bar: tqdm | None = None

    def begin(self) -> None:
        """Draw a bar during the next pass."""
        shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        total = self._operations
        self.bar = tqdm(desc="prompt", total=total, disable=None, leave=False, delay=_DELAY, bar_format=shape)

    def end(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def add(self, what, *given, **more):
        """As a Trace does; a span "token" ends a pass."""
        super().add(what, *given, **more)
        if what not in _LOADS:
            self._count()
        if what == "token":
            self._known = True
            self.end()

    def later(self, spans: Callable[[], list[Span]]) -> None:
        """As a Trace does."""
        super().later(spans)
        self._count()

    def _count(self):
        self._operations += not self._known
        if self.bar is not None and self.bar.n < self._operations:  # a prompt may use more experts than the first pass
            self.bar.update()
