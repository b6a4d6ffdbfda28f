"""What a notebook measured, for the rest of its run: a page that is rendered again shows the same measurements.

`kit reproduce` gives each notebook a folder that lasts as long as the command and names it in KIT_TAKEN. Without one,
nothing is kept. A value is found by the name of what was measured and its arguments, so equal keys mean exchangeable values.

After the last probe of a run it names in KIT_DRAWS a file: nothing is measured any more, and what a page measures all the same
is noted there, because its limits would be of other minutes than its times.
"""

import hashlib
import inspect
import os
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial, singledispatch, wraps
from pathlib import Path
from types import CodeType, FunctionType, NoneType

import numpy as np

from kit.cache.policies.base import Policy
from kit.gguf.reader import GGUFFile

FOLDER, DRAWS = "KIT_TAKEN", "KIT_DRAWS"
_calls, _inside = Counter(), False  # calls of this process by key; whether one of them runs


def drawing() -> bool:
    """Whether a page is made after the last probe of its run."""
    return bool(os.environ.get(DRAWS))


def unkept(name: str) -> None:
    """Note what is measured where only drawing is left, outside of what is kept."""
    if drawing() and not _inside:
        with open(os.environ[DRAWS], "a", encoding="utf-8") as notes:
            notes.write(name + "\n")


class Unknown(TypeError):
    """An argument that does not tell one call from another: what is measured with it is not kept."""


def once_a_run(measure: Callable) -> Callable:
    """Decorator of what measures: `take` by the function's name and all its arguments, defaults included."""
    signature = inspect.signature(measure)

    @wraps(measure)
    def taken(*args, **keywords):
        given = signature.bind(*args, **keywords)
        given.apply_defaults()
        name = f"{measure.__module__}.{measure.__qualname__}"
        return take(name, given.arguments, lambda: measure(*args, **keywords))

    return taken


def take(name: str, arguments: object, measure: Callable[[], object]):
    """``measure()``, or where a page is rendered again what the n-th call of this name with these arguments returned before.

    Calls from inside ``measure`` belong to it. Measured again: what has an argument that `told` does not know, and what cannot
    be pickled.
    """
    global _inside
    folder = os.environ.get(FOLDER)
    if not folder or _inside:
        return measure()
    try:
        key = hashlib.sha256(repr((name, told(arguments))).encode()).hexdigest()[:32]
    except Unknown:
        unkept(name)
        return measure()
    _calls[key] += 1
    kept = Path(folder, f"{key}-{_calls[key]}.pickle")
    if kept.exists():
        with suppress(EOFError, pickle.UnpicklingError):  # a process that was killed while it wrote
            return pickle.loads(kept.read_bytes())  # of this run, by this user: the folder is private
    unkept(name)
    _inside = True
    try:
        value = measure()
    finally:
        _inside = False
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        kept.write_bytes(pickle.dumps(value))
    return value


@singledispatch
def told(value) -> object:
    """What tells this value from another, as text and numbers. A class of its own says it by ``kept_as``, plain data; Unknown
    for a value of any other class."""
    if hasattr(value, "kept_as"):
        return type(value).__name__, told(value.kept_as)
    if is_dataclass(value):
        return type(value).__name__, [(entry.name, told(getattr(value, entry.name))) for entry in fields(value)]
    raise Unknown(f"{type(value).__name__} has no kept_as")


def _of_file(file: GGUFFile):  # or a part of one
    facts = [*file.tensors.values()], sorted(map(repr, file.metadata.items()))
    return [*map(str, file.paths)], hashlib.sha256(repr(facts).encode()).hexdigest()


def _of_function(value: FunctionType):
    """By its code, its defaults and the values that it closes over; of a function of a module its name is enough."""
    if "<" not in value.__qualname__ and value.__module__ != "__main__":
        return value.__module__, value.__qualname__
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    return _code(value.__code__), told([value.__defaults__, value.__kwdefaults__, held])


def _code(code: CodeType) -> tuple:
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_code.hex(), code.co_names, constants


for kinds, tells in {
    (NoneType, bool, int, float, str, bytes, type): lambda value: value,
    (Path,): str,
    (np.generic,): np.generic.item,
    (np.ndarray,): lambda x: (str(x.dtype), x.shape, hashlib.sha256(np.ascontiguousarray(x)).hexdigest()),
    (Mapping,): lambda value: [(told(key), told(one)) for key, one in value.items()],
    (tuple, list, type({}.keys()), range): lambda value: [told(one) for one in value],
    (Set,): lambda value: sorted(repr(told(one)) for one in value),
    (GGUFFile,): _of_file,
    (Policy,): lambda policy: (repr(policy), [*policy]),  # what it holds already tells, too
    (partial,): lambda value: told([value.func, value.args, value.keywords]),
    (FunctionType,): _of_function,
}.items():
    for kind in kinds:
        told.register(kind, tells)
