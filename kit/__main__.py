"""``python -m kit`` is the command ``kit``."""

from kit.lab.commands.cli import main

if __name__ == "__main__":
    main(prog_name="kit")
