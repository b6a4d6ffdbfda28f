"""Commands that start Python again, without the folder that this process runs in, where a file may be named like a module."""

import sys

from kit.system.paths import PACKAGE


def running(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a script."""
    return executing(f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)", *arguments)


def executing(source: str, *arguments: str) -> list[str]:
    """The command that executes ``source``. The folder of the package comes last on its path: kit may run from a checkout."""
    return [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(PACKAGE.parent)!r}); {source}", *arguments]
