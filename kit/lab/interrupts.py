"""Ctrl-C that a library swallows: while one is imported, its own handlers may take a KeyboardInterrupt for an error of theirs.

It is raised again at the next import, and at the next ``check``, until somebody has ended the work (``over``).
"""

import signal
import sys
import threading
from contextlib import suppress

EXIT = 130  # code of a process that Ctrl-C ended
_asked = False


class _Finder:
    """At the front of sys.meta_path: an import after the interrupt raises it again."""

    def find_spec(self, name, path=None, target=None):
        check()


def install() -> None:
    """Remember interrupts of this process; not in a thread, and not where they are ignored."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # a subinterpreter
            signal.signal(signal.SIGINT, _interrupt)
        sys.meta_path.insert(0, _Finder())


def check() -> None:
    """KeyboardInterrupt where one was asked for and is not over; for loops that wait."""
    if _asked and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def recognized(function, *args, **kwargs):
    """What `function` returns. KeyboardInterrupt where it fails after Ctrl-C, as whatever a library made of that."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if not _asked:
            raise
        raise KeyboardInterrupt from error


def over() -> None:
    """The work has ended."""
    global _asked
    _asked = False
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number, frame):
    global _asked
    _asked = True
    raise KeyboardInterrupt
