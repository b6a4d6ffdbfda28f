"""Counts that `make lint` prints as warnings: the size of the library, names that several modules share, worn words.

They are no tests: correct code may raise a count, and then somebody looks at why.
"""

import re
from collections import Counter

from test_house import modules

LINES = 12_200  # of the library without what is compiled (kit/cpu, kit/cuda); lower it when lines have gone
LONGEST = 350  # lines of a module
# The same thing for another processor, for a file and for a program; a command's module has the name of what it runs.
SHARED = {
    *"attention child codes dequantize formats keys linear pinned rope routing run sources tables".split(),
    *"tokenizer vocabulary weights __init__".split(),
}
FOUND = 20  # uses of the word, which was the name of 400 different things


def warnings() -> list[str]:
    """A line for each count that is over its limit."""
    files = modules()
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    counts = {name: text.count("\n") for name, text in texts.items()}
    library = sum(n for name, n in counts.items() if name.split(".")[0] not in ("lab", "cpu", "cuda"))
    stems = Counter(path.stem for name, path in files.items() if not name.startswith("lab.commands."))
    words = sum(len(re.findall(r"\bfound\b", text)) for text in texts.values())
    lines = [f"the library has {library:,} lines, {LINES:,} before"] if library > LINES else []
    lines += [f"{files[name].name} ({name}) has {n} lines: two subjects?" for name, n in counts.items() if n > LONGEST]
    lines += [f"{n} modules are called {stem}" for stem, n in stems.items() if n > 1 and stem not in SHARED]
    return lines + ([f"{words} things are called found, {FOUND} before"] if words > FOUND else [])


if __name__ == "__main__":
    print(*(f"warning: {line}" for line in warnings()), sep="\n")
