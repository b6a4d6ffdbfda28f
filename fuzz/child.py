"""One target under libFuzzer: ``python -m fuzz.child TARGET CORPUS [libFuzzer's options]``."""

import importlib
import re
import sys

import atheris

from fuzz.targets import TARGETS


def _instrument(module: str, owner: str, name: str) -> None:
    """Replace the method ``name`` of a class by one that reports its branches."""
    holder = getattr(importlib.import_module(module), owner)
    method = vars(holder)[name]
    if isinstance(method, classmethod):
        setattr(holder, name, classmethod(atheris.instrument_func(method.__func__)))
    else:
        setattr(holder, name, atheris.instrument_func(method))


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    whole = [module for module in target.modules if ":" not in module]
    with atheris.instrument_imports(include=whole):
        for module in whole:
            importlib.import_module(module)
    for part in set(target.modules) - set(whole):
        _instrument(*re.fullmatch(r"(.+):(.+)\.(.+)", part).groups())
    from kit.errors import KitError

    def one(data: bytes) -> None:
        try:
            target.one(data)
        except KitError:
            pass  # the answer to bad input

    for seed in (b"", *target.seeds()):
        one(seed)  # what is compiled or made at first use is no input's time
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


main()
