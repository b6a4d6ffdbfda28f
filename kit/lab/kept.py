"""What a page measured, for the rest of its run: a page that is rendered again shows the same measurements.

`kit reproduce` gives each notebook a folder that lasts as long as the command and names it in KIT_TAKEN. Without one,
nothing is kept.
"""

import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path

FOLDER = "KIT_TAKEN"
_calls, _inside = Counter(), False  # calls of this process by place; whether one of them runs


def once_a_run(measure: Callable) -> Callable:
    """Decorator of what measures: where a page is rendered again, call n from a line of it returns what it returned before.

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
