"""The keys of JSON that docs/public.md promises."""

import re

from kit.system.paths import ROOT


def keys(command: str) -> set[str]:
    """Of the table below the heading `kit COMMAND --json`."""
    page = (ROOT / "docs" / "public.md").read_text(encoding="utf-8")
    table = page.partition(f"### kit {command} --json\n")[2].partition("\n#")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
