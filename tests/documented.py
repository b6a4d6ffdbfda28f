"""The keys of JSON that docs/json.md promises."""

import re

from kit.system.paths import ROOT


def keys(command: str) -> set[str]:
    """Of the table below the heading `kit COMMAND --json`."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    table = page.partition(f"## kit {command} --json\n")[2].partition("\n#")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def paths(command: str) -> set[str]:
    """All documented paths: a name that begins with a dot belongs to the name before it in its row, ``*`` is any name."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    table = page.partition(f"## kit {command} --json\n")[2].partition("\n#")[0]
    found, base = set(), ""
    for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        for name in re.findall(r"`([\w.*]+)`", cell):
            base = base if name.startswith(".") else name
            found.add(base + name if name.startswith(".") else name)
    return found


def undocumented(command: str, value) -> list[str]:
    """The paths of an answer that no row has."""
    known = [re.compile(re.escape(path).replace(r"\*", r"[^.]+(\.[^.]+)*") + "$") for path in paths(command)]
    return [path for path in _paths(value, "") if not any(one.match(path) for one in known)]


def all_paths(value) -> set[str]:
    """The paths of all keys of an answer."""
    return set(_paths(value, ""))


def _paths(value, path: str):
    for each in value if isinstance(value, list) else ():
        yield from _paths(each, path)
    for key, each in value.items() if isinstance(value, dict) else ():
        here = f"{path}.{key}".lstrip(".")
        yield here
        yield from _paths(each, here)
