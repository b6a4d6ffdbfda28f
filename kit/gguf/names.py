"""Names of tensors: the layer in a name, and one expert of a stacked tensor."""

import re
from functools import lru_cache

from kit.errors import ModelError

_LAYER = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)


@lru_cache(1 << 16)
def layer_of(name: str) -> int:
    """N for a tensor name that starts with "blk.N.", else -1."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def find_tensor(file, name: str) -> tuple[str, int | slice | None]:
    """(tensor, expert) of a matrix's name: ("name", None) for ``"name"``, ("stack", 3) for expert 3, ``"stack[3]"``; and
    ("name", its rows) for the fourth of eight equal parts of a matrix's rows, ``"name[3/8]"``.

    ``file`` is anything with ``path`` and ``tensors``. ModelError when it has no such tensor or expert.
    """
    if name in file.tensors:
        return name, None
    stack, _, expert = name.removesuffix("]").rpartition("[")
    part, _, of = expert.partition("/")
    if stack in file.tensors and of.isdecimal() and part.isdecimal() and int(part) < int(of):
        rows = file.tensors[stack].shape[0] // int(of)
        return stack, slice(rows * int(part), rows * (int(part) + 1))
    if stack in file.tensors and expert.isdecimal() and int(expert) < file.tensors[stack].shape[0]:
        return stack, int(expert)
    raise ModelError(f"{file.path}: no tensor {name!r}; `kit inspect --tensors` lists them")


def blocks_of(file, name: str):
    """The blocks of a matrix, or of one expert ``"stack[3]"``: uint8 (out, bytes of a row)."""
    stack, expert = find_tensor(file, name)
    blocks = file.blocks(stack)
    return blocks if expert is None else blocks[expert]


def key_of(layer: int, expert: int) -> str:
    """The name of a whole expert in caches and traces."""
    return f"blk.{layer}.experts[{expert}]"
