"""What the MTP head of a file costs, from its table of tensors: the block, the projection and the output matrix, in bytes."""

from kit.gguf.names import layer_of
from kit.gguf.uses import bytes_used, head_uses, predicting_layers, uses_of
from kit.model.architectures import ARCHITECTURES


def head_of(file) -> dict | None:
    """Of the first MTP head of an open file; None for a file without one.

    ``block_bytes``: of its layer (of a mixture the experts that a token uses); ``output_bytes``: of the matrix that makes its
    logits, ``output``; ``draft_bytes`` that a drafted token reads, ``token_bytes`` that a token reads without one, ``share`` of
    the two; ``heads`` in the file. ``least_break_even``: tokens of a draft -> the acceptance from which it gains if verifying
    more tokens costs nothing."""
    layers = sorted({layer_of(name) for name in file.tensors if ".nextn." in name})
    if not layers or not predicting_layers(file):
        return None
    from kit.lab.drafts.predicted import Costs, break_even  # only where they are needed

    *own, matrix = head_uses(file)
    block = bytes_used(own)
    token, draft = bytes_used(uses_of(file)), block + matrix.nbytes
    return {
        "heads": len(layers), "layer": layers[0], "block_bytes": round(block), "output": matrix.name,
        "output_bytes": matrix.nbytes, "draft_bytes": round(draft), "token_bytes": round(token), "share": draft / token,
        "least_break_even": {str(n): break_even(Costs((1.0,) * (n + 1), draft / token), n) for n in (1, 2, 3, 4)},
    }  # fmt: skip


def runs(file) -> bool:
    """Whether kit runs the MTP heads of such a file."""
    return getattr(ARCHITECTURES.get(file.architecture), "head", False)
