"""``python -m kit`` is the command ``kit``."""

import os
import sys

# `python -m` puts the folder that it runs in first, where a file may be named like a module that is imported below.
_here, _ours = os.path.realpath(os.getcwd()), os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if _here != _ours and not sys.flags.safe_path:
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != _here]

from kit.lab.commands.cli import main  # noqa: E402

if __name__ == "__main__":
    main(prog_name="kit")
