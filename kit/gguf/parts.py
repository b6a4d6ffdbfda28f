"""File names of split models: NAME-00001-of-0000N.gguf."""

import re
from contextlib import suppress

from kit.errors import GGUFError

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL | re.ASCII)


def part_names(name: str) -> list[str]:
    """File names of all parts when ``name`` is one part of a split model (-00001-of-0000N.gguf), else itself."""
    match = PART.fullmatch(name)
    if not match:
        return [name]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise GGUFError(f"{name}: part {number} of {count}, expected a part from 1 to {count}")
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def begins_model(name: str) -> bool:
    """Whether a file is a whole model, or the first part of a split one."""
    with suppress(GGUFError):
        return part_names(name)[0] == name
    return False
