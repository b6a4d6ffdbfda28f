"""What a file's name and metadata call its quantization, and what its layers hold: a label is no promise.

llama-quantize gives a matrix another type than the label's where its columns are no multiple of the type's block, and by design
where a matrix matters more (src/llama-quant.cpp of llama.cpp: the default type of a file type, and llama_tensor_get_type).
"""

import re
from collections import Counter
from typing import NamedTuple

from kit.gguf.formats import FORMATS
from kit.gguf.names import layer_of
from kit.gguf.sources import model_name

_LABEL = re.compile(  # names of llama-quantize, and Unsloth's XL
    r"(?<![A-Z0-9])(IQ[1-4]_(XXS|XS|S|M|NL)|Q\d_K(_(XXL|XL|[SML]))?|Q\d_\d|TQ\d_0|MXFP4(_MOE)?|NVFP4|BF16|F16|F32)(?![A-Z0-9_])"
)
_LEADING = {"IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S", "IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S"}  # where it is not what the name says
_SHOWN = 0.02  # share of a type that is named


class Label(NamedTuple):
    """``name``: as the file's name has it, else its metadata: "Q4_K_M". ``leading``: the type that it stands for; ``block``:
    its elements. ``shares``: type -> share of the bytes of the layers' matrices. ``columns``: length of a row -> share of the
    bytes of those matrices of another type whose columns the block does not divide. ``metadata``: the label there, or ""."""

    name: str
    leading: str
    block: int
    shares: dict[str, float]
    columns: dict[int, float]
    metadata: str = ""

    @property
    def share(self) -> float:
        """Of the leading type."""
        return self.shares.get(self.leading, 0.0)

    @property
    def told(self) -> str:
        """The label against the content, in a line."""
        others = [f"{kind} {share:.0%}" for kind, share in self.shares.items() if kind != self.leading and share >= _SHOWN]
        text = f"named {self.name}; {self.share:.0%} of the bytes of its layers are {self.leading}"
        text += f" ({', '.join(others)})" * bool(others)
        if self.columns and sum(self.columns.values()) > (1 - self.share) / 2:  # else other types are by design
            text += f", because {max(self.columns, key=self.columns.get):,} columns do not divide by {self.block}"
        return text + f"; its metadata says {self.metadata}" * (self.metadata not in ("", self.name))

    def to_json(self) -> dict:
        """For ``label`` of kit inspect --json."""
        return self._asdict() | {"share": self.share, "says": self.told}


def label_of(file) -> Label | None:
    """The label of an open file; None where neither its name nor its metadata has one, or it has no layers."""
    named, stated = _named(model_name(str(file.path))), _stated(file)
    matrices = [info for info in file.tensors.values() if layer_of(info.name) >= 0 and len(info.shape) > 1]
    total = sum(info.nbytes for info in matrices)
    if not (named or stated) or not total:
        return None
    leading = leading_type(named or stated)
    block = FORMATS[leading].block_elements
    shares, columns = Counter(), Counter()
    for info in matrices:
        shares[info.qtype] += info.nbytes / total
        if info.qtype != leading and info.shape[-1] % block:
            columns[info.shape[-1]] += info.nbytes / total
    return Label(named or stated, leading, block, dict(shares.most_common()), dict(columns), stated)


def _named(text: str) -> str:
    """The last label in the name of a file; "" where there is none."""
    labels = [match[1] for match in _LABEL.finditer(text.upper())]
    return labels[-1] if labels else ""


def _stated(file) -> str:
    """general.file_type as a label; "" where it is missing or none that the kit knows."""
    from gguf import LlamaFileType

    number = file.metadata.get("general.file_type")
    names = {kind.value: kind.name.partition("_")[2] for kind in LlamaFileType}
    label = names.get(number, "") if type(number) is int else ""
    return label if _LABEL.fullmatch(label) else ""


def leading_type(label: str) -> str:
    """The block format that llama-quantize gives most matrices of a file with this label."""
    return _LEADING.get(label) or re.sub(r"(?<=_K)_\w+|_MOE", "", label)
