"""How fast this machine multiplies by each type of activations: the roof of a prompt, as bandwidth is that of a decode.

The CPU's instructions are taken, from registers (kit.cpu.peak), and for its matrix unit, which is not among them, a library's
way and kit's own at several sizes; the fastest sample is the roof. Activations of some digits are as many products of bytes, so
a share of those is a roof too where it is higher: without it int16 prompts of a Xeon with AMX were faster than kit's own
product of one matrix, which was their roof. An operation is a multiplication or an addition, so a product of (m, k) and (k, n)
has 2 m k n.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kit.lab.measuring import measure
from kit.products import PRODUCTS

KINDS = tuple(PRODUCTS)  # of activations
_SIDES = (512, 1024, 2048)
_TOKENS, _COLUMNS, _ROWS = 512, 2048, 2048  # of a prompt times a matrix of blocks
_SLOW = 0.05  # seconds of the smallest product, on an emulated CPU: the larger ones would take minutes


class Rate(NamedTuple):
    """``samples``: operations per second, the fastest way's; ``method``: in words."""

    samples: tuple[float, ...]
    method: str

    @property
    def best(self) -> float:
        """The roof."""
        return max(self.samples)


def probe(samples: int = 4) -> dict[str, Rate]:
    """Each of KINDS -> its Rate, in some seconds; what no way computes here is missing."""
    rates: dict[str, Rate] = {}
    for kind, method, function, operations in _ways():
        try:
            taken = measure.time(function, samples=samples, min_sample=0).samples
        except (RuntimeError, NotImplementedError):  # torch's product of int8 is not there on every CPU
            continue
        rate = Rate(tuple(operations / seconds for seconds in taken), method)
        if kind not in rates or rate.best > rates[kind].best:
            rates[kind] = rate
    if bytes_ := rates.get("int8"):
        for kind, row in PRODUCTS.items():
            if kind not in rates or bytes_.best / row.digits > rates[kind].best:
                method = f"{row.digits} times as many operations as {bytes_.method}"
                rates[kind] = Rate(tuple(rate / row.digits for rate in bytes_.samples), method)
    return rates


def _ways() -> Iterator[tuple[str, str, Callable, int]]:
    """(what is multiplied, method, function, operations of a call)."""
    import numpy as np
    import torch

    from kit.cpu import peak
    from kit.cpu.linear import linear
    from kit.gguf.formats import FORMATS

    small = torch.rand(_SIDES[0], _SIDES[0], dtype=torch.float32, device="cpu")
    slow = min(measure.time(lambda: small @ small, samples=2, min_sample=0).samples) > _SLOW
    for side in _SIDES[:1] if slow else _SIDES:
        floats = torch.rand(side, side, dtype=torch.float32, device="cpu")
        whole = torch.randint(-127, 128, (side, side), dtype=torch.int8, device="cpu")
        yield "float32", f"torch.matmul of two {side} x {side} matrices", lambda a=floats: a @ a, 2 * side**3
        yield "int8", f"torch._int_mm of two {side} x {side} matrices", lambda a=whole: torch._int_mm(a, a), 2 * side**3
    if slow:
        return
    for kind, function, operations in peak.ways():
        yield kind, "multiply-adds of registers", function, operations
    blocks = np.zeros((_ROWS, FORMATS["Q8_0"].nbytes(_COLUMNS)), np.uint8)
    x, operations = torch.rand(_TOKENS, _COLUMNS, dtype=torch.float32, device="cpu"), 2 * _TOKENS * _COLUMNS * _ROWS
    told = f"kit's product of {_TOKENS} tokens and a {_ROWS} x {_COLUMNS} matrix of Q8_0"
    for kind in KINDS:
        yield kind, told, lambda kind=kind: linear(blocks, "Q8_0", x, kind), operations
