"""Counts that `make lint` prints as warnings: the size of the library, names that several modules share, worn words.

They are no tests: correct code may raise a count, and then somebody looks at why.
"""

import re
from collections import Counter

import nbformat
import yaml
from test_house import modules

from kit.system.paths import ROOT

LINES = 12_200  # of the library without what is compiled (kit/cpu, kit/cuda); lower it when lines have gone
LONGEST = 350  # lines of a module
# The same thing for another processor, for a file and for a program; a command's module has the name of what it runs.
SHARED = {
    *"attention child codes dequantize formats keys linear pinned rope routing run sources tables".split(),
    *"tokenizer vocabulary weights __init__".split(),
}
WORDS = 12_000  # of README and the pages of the site's menu, but for the one of those who change the kit
README = 85  # lines, without what `kit explain` printed
CELL, PAGE = 20, 220  # lines of code of a notebook's cell and of a notebook, without imports: one a room, as many as it takes
FOUND = 20  # uses of the word, which was the name of 400 different things


def menu() -> list[str]:
    """The pages of the site's menu that a user reads, by their files."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return [page for page in re.findall(r"[\w.]+\.md", str(site["nav"])) if page != "extending.md"]


def read_by_users() -> Counter:
    """Words of each page that a user reads."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / page for page in menu())]
    return Counter({page.name: len(page.read_text(encoding="utf-8").split()) for page in pages})


def notebooks() -> list[str]:
    """A line for each long cell, and for each notebook of much code."""
    lines = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        code = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"}
        left = {name: re.sub(r"(?m)^(?:from|import) [^(\n]*(?:\([^)]*\))?.*\n", "", source) for name, source in code.items()}
        counts = {name: len(source.splitlines()) for name, source in left.items()}
        lines += [f"{path.stem}: the cell {name} has {n} lines, {CELL} at most" for name, n in counts.items() if n > CELL]
        if (whole := sum(bool(line.strip()) for source in left.values() for line in source.splitlines())) > PAGE:
            lines.append(f"{path.stem} has {whole} lines of code, {PAGE} at most")
    return lines


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
    read = read_by_users()
    if read.total() > WORDS:
        longest = ", ".join(f"{page} {n:,}" for page, n in read.most_common(5))
        lines.append(f"README and the menu have {read.total():,} words, {WORDS:,} at most: {longest}")
    readme = re.sub(r"(?s)<!-- explain -->.*?<!-- /explain -->", "", (ROOT / "README.md").read_text(encoding="utf-8"))
    lines += [f"README has {n} lines, {README} at most" for n in [readme.count("\n")] if n > README]
    return lines + notebooks() + ([f"{words} things are called found, {FOUND} before"] if words > FOUND else [])


if __name__ == "__main__":
    print(*(f"warning: {line}" for line in warnings()), sep="\n")
