"""A progress bar while a prompt runs: its pass is one call, so the bar counts what the pass adds to a trace."""

from collections.abc import Callable

from tqdm import tqdm

from kit.trace import Span, Trace

_DELAY = 1.0  # seconds before a bar appears: a short prompt shows none


class PromptTrace(Trace):
    """A trace that draws a bar on standard error during one pass, if that is a terminal. The first pass that it records sets
    how many entries a pass has."""

    def __init__(self):
        super().__init__()
        self._entries_of_a_pass, self._known = 0, False
        self.bar: tqdm | None = None

    def begin(self) -> None:
        """Draw a bar during the next pass."""
        shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        total = self._entries_of_a_pass
        self.bar = tqdm(desc="prompt", total=total, disable=None, leave=False, delay=_DELAY, bar_format=shape)

    def end(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def add(self, what, *given, **more):
        """As a Trace does; a span "token" ends a pass."""
        super().add(what, *given, **more)
        self._count()
        if what == "token":
            self._known = True
            self.end()

    def later(self, spans: Callable[[], list[Span]]) -> None:
        """As a Trace does."""
        super().later(spans)
        self._count()

    def _count(self):
        self._entries_of_a_pass += not self._known
        if self.bar is not None and self.bar.n < self._entries_of_a_pass:  # a prompt may use more experts than the first pass
            self.bar.update()
