"""What a page measured, for the rest of its run: a page that is rendered again shows the same measurements.

`kit reproduce` gives each notebook a folder that lasts as long as the command and names it in KIT_TAKEN. Without one,
nothing is kept.
"""

import hashlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path

FOLDER = "KIT_TAKEN"
_calls, _inside = Counter(), False  # calls of this process by place; whether one of them runs


def once_a_run(measure: Callable) -> Callable:
    """Decorator of what measures: where a page is rendered again, call n of these arguments from a line of it returns what it
    returned before. (By words, whole numbers, paths, and dataclasses of them; whatever else it is given counts as the same.)

    Calls from inside another such function belong to it. What cannot be pickled is measured again.
    """

    @wraps(measure)
    def take(*args, **keywords):
        global _inside
        folder = os.environ.get(FOLDER)
        if not folder or _inside:
            return measure(*args, **keywords)
        caller = sys._getframe(1)
        place = f"{measure.__module__}.{measure.__qualname__}-{caller.f_code.co_name.strip('<>')}-{caller.f_lineno}"
        told = [each for each in (*args, *keywords.items()) if _tells(each)]
        place += f"-{hashlib.sha256(repr(told).encode()).hexdigest()[:8]}"
        _calls[place] += 1
        kept = Path(folder, f"{place}-{_calls[place]}.pickle")
        if kept.exists():
            return pickle.loads(kept.read_bytes())  # of this run, by this user: the folder is private
        _inside = True
        try:
            found = measure(*args, **keywords)
        finally:
            _inside = False
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            kept.write_bytes(pickle.dumps(found))
        return found

    return take


def _tells(value) -> bool:
    """Whether a value tells one call from another; numbers with a fraction may be the limits that are new."""
    parts = vars(value).values() if is_dataclass(value) else value if isinstance(value, tuple) else (value,)
    return all(part is None or isinstance(part, (str, int, Path)) for part in parts)
