"""Types of tensors that ggml does not have: whose they are, and a fork's blocks under an id of ggml's."""

import re
from collections.abc import Sequence
from itertools import pairwise

_OF = {  # program -> name and id of each of its types
    "llama.cpp of 2023": "Q4_2 4, Q4_3 5",
    "llama.cpp of 2024": "Q4_0_4_4 31, Q4_0_4_8 32, Q4_0_8_8 33, IQ4_NL_4_8 37, IQ4_NL_8_8 38",
    "bitnet.cpp": "I2_S 36",
    "PrismML's fork of llama.cpp": "PQ2_0 142, PTQ1_0 143",
    "ik_llama.cpp": "Q6_0 133, IQ1_BN 134, IQ2_BN 135, Q8_K64 136, IQ2_K 137, IQ3_K 138, "
    "IQ4_K 139, IQ5_K 140, IQ6_K 141, IQ4_KS 144, IQ2_KS 145, IQ4_KSS 146, Q8_K16 147, Q8_K32 148, Q8_KR8 149, Q8_K128 150, "
    "Q8_KV 151, IQ5_KS 152, IQ2_KT 153, IQ3_KT 154, IQ4_KT 155, IQ3_KS 156, IQ2_KL 157, IQ1_KT 158, Q4_0_R8 202, Q5_0_R4 206, "
    "Q8_0_R8 208, Q2_K_R4 210, Q3_K_R4 211, Q4_K_R4 212, Q5_K_R4 213, Q6_K_R4 214, IQ2_XXS_R4 216, IQ2_XS_R4 217, "
    "IQ3_XXS_R4 218, IQ1_S_R4 219, IQ4_NL_R4 220, IQ3_S_R4 221, IQ2_S_R4 222, IQ4_XS_R8 223, IQ1_M_R4 229, BF16_R16 230, "
    "Q6_0_R4 233, IQ2_BN_R4 335, IQ2_K_R4 337, IQ3_K_R4 338, IQ4_K_R4 339, IQ5_K_R4 340, IQ4_KS_R4 344, IQ5_KS_R4 352, "
    "Q8_KV_R8 398, Q8_K_R8 399",
}
TYPES: dict[int, tuple[str, str]] = {
    int(id): (name, program) for program, types in _OF.items() for name, id in re.findall(r"(\w+) (\d+)", types)
}
_BY_NAME = {name: (id, program) for id, (name, program) in TYPES.items()}


def name_of(type_id: int) -> str:
    """The name of a type that ggml does not have: "IQ4_K" for 139, "UNKNOWN_200" for one that nobody is known for."""
    return TYPES[type_id][0] if type_id in TYPES else f"UNKNOWN_{type_id}"


def told(name: str) -> str:
    """What an error says of a type by its ``name_of``: its id, and whose it is, if that is known."""
    if name not in _BY_NAME:
        return f"has ggml type {name.removeprefix('UNKNOWN_')}"
    id, program = _BY_NAME[name]
    return f"is {name} of {program} (type {id})"


def groups_of_128(ordered: Sequence, end: int, alignment: int) -> str:
    """What is wrong with the first tensor of Q2_0 in groups of 128 weights, as PrismML's fork wrote ggml's type 42 before ggml
    had it: its space is too small for groups of 64, and that of 34 bytes for each 128. "" if there is none.

    ``ordered``: the tensors by offset; ``end``: the offset of the file's end."""
    for info, after in pairwise([*ordered, None]):
        room = (after.offset if after else end) - info.offset
        if info.qtype == "Q2_0" and room < info.nbytes and 0 <= room - info.elements // 128 * 34 < alignment:
            return (
                f"{info.name!r} is Q2_0 in groups of 128 weights ({room:,} bytes), as PrismML's fork of llama.cpp wrote it; "
                f"expected ggml's Q2_0, in groups of 64 ({info.nbytes:,} bytes): take the file whose name ends in Q2_0_g64"
            )
    return ""
