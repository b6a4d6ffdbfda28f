"""The table of what a run compares on a file: kit with each way to multiply, and llama.cpp from the wheel.

A row has every name that such a measurement has anywhere. Names of committed runs stay as they are: a run of today is compared
with them. A way of kit's is a row of kit.products, and gets its row here by itself.
"""

from typing import NamedTuple

from kit.products import PRODUCTS, Multiplied


class ComparedWay(NamedTuple):
    """``name``: in tables and in peers.json. ``title``: of its bar on the front page. ``label``: its way in the store of
    measurements. ``quantity``: in records. ``precision``: its row of kit.lab.predicting.quality, "" for another program's own.
    ``short``: in the table of quantizations. ``product``: of kit's ways; None: another program."""

    name: str
    title: str
    label: str
    quantity: str
    precision: str = ""
    short: str = ""
    product: Multiplied | None = None


def rounding(product: Multiplied) -> str:
    """The precision of a product in words: a row of kit.lab.predicting.quality, also where blocks are not all in memory."""
    return "float32" if product.exact else f"{product.activations} activations"


def _of_kit(product: Multiplied) -> ComparedWay:
    precision = rounding(product)
    if product.exact:
        return ComparedWay("kit", "kit", "blocks, exact products", "a token, blocks as they lie", precision, "exact", product)
    label, title = f"blocks, {precision}", f"kit, {product.bits}-bit activations"
    return ComparedWay(f"kit, {precision}", title, label, f"a token, {label}", precision, product.activations, product)


PEER = "llama.cpp, mmap"  # its default: the file mapped
PROGRAM = PEER.partition(",")[0]  # read or mapped, it computes the same
OURS = {row.name: row for row in map(_of_kit, PRODUCTS.values())}
COMPARED = OURS | {PEER: ComparedWay(PEER, "llama.cpp, the file mapped", PEER, f"a token, {PEER}")}
EXACT, *ROUNDED = OURS.values()
BUSY_TOLD = "busy, not a comparison"
