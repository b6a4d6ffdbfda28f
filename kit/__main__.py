"""``python -m kit`` and the command ``kit``."""

import os
import sys


def _no_module_of_this_folder() -> None:
    """`python -m` puts the folder that it runs in first, where a file may be named like a module that is imported below."""
    here, ours = os.path.realpath(os.getcwd()), os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if here != ours and not sys.flags.safe_path:
        sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != here]


def main() -> None:
    """The command; Ctrl-C is one line and exit code 130 while its modules are imported too."""
    try:
        from kit.lab import interrupts

        interrupts.install()
        interrupts.recognized(_command)
    except KeyboardInterrupt:
        print("kit: interrupted", file=sys.stderr)
    except SystemExit as ended:
        if ended.code != interrupts.EXIT:
            raise
    else:
        return
    exec("0")  # where the interrupt came through another exec, Python would end by the signal and not with this code
    sys.exit(130)


def _command() -> None:
    from kit.lab.commands.cli import main

    main(prog_name="kit")


if __name__ == "__main__":
    _no_module_of_this_folder()
    main()
