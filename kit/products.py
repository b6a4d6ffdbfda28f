"""How a matrix of a file's blocks is multiplied: a row for each precision of the activations.

Everything else that names a product follows from its row: the variant of a Transformer (``linear``), the weights of kit.hf, the
option of the commands, and the names that measurements of it have. A new way is a row, and kernels for its number of digits
where kit.cpu lacks them.
"""

from typing import NamedTuple


class Multiplied(NamedTuple):
    """``activations``: the type that they are rounded to, "float32" for none. ``digits``: of eight bits, with which the kernels
    multiply (kit.cpu.activations). ``help``: what the commands say of it."""

    activations: str
    digits: int
    help: str

    @property
    def exact(self) -> bool:
        """Whether the result is that of float32."""
        return self.activations == "float32"

    @property
    def suffix(self) -> str:
        """What its names end with."""
        return "" if self.exact else f"-{self.activations}"

    @property
    def linear(self) -> str:
        """The variant of kit.model.linear."""
        return f"fused{self.suffix}"

    @property
    def weights(self) -> str:
        """The ``weights`` of kit.hf.load."""
        return f"blocks{self.suffix}"

    @property
    def option(self) -> str:
        """Of a command that runs a model, after its other options."""
        return "" if self.exact else f" --linear {self.linear}"

    @property
    def bits(self) -> int:
        """Of an activation that it rounds."""
        return int(self.activations.removeprefix("int"))


PRODUCTS = {
    row.activations: row
    for row in (
        Multiplied("float32", 3, "multiply with the quantized blocks of the file, exactly"),
        Multiplied("int16", 2, "round activations to sixteen bits: faster, and it loses about as little as --kv float16"),
        Multiplied("int8", 1, "round activations to eight bits, as llama.cpp does: the fastest, with small differences"),
    )
}


def by_linear(name: str) -> Multiplied | None:
    """The row of a variant of kit.model.linear; None for one that does not read blocks."""
    return next((row for row in PRODUCTS.values() if row.linear == name), None)
