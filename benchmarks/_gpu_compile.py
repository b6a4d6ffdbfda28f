"""Compile kernels without a GPU, by Triton's own assembler, and count the instructions of the machine code."""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = 90
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)(.*)")
_KINDS = {  # kind -> the beginnings of its instructions' names in SASS
    "float": ("FADD", "FMUL", "FFMA", "HADD2", "HFMA2", "MUFU", "F2F", "I2F", "FSETP", "FSEL"),
    "memory": ("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDL", "STL"),
    "between threads": ("SHFL", "REDUX", "BAR", "VOTE"),
}


@dataclass(frozen=True)
class Compiled:
    """PTX and SASS of one kernel. ``opcodes``: SASS instructions with modifiers, in order, up to the last EXIT.

    After it comes only code for shuffles in diverged warps, which do not occur here.
    """

    ptx: str
    opcodes: tuple[str, ...]
    loop: tuple[str, ...]  # those of the longest loop; empty without one
    registers: int = 0  # of a thread
    spilled: int = 0  # bytes of a thread's stack

    def counts(self, opcodes: tuple[str, ...] | None = None) -> dict[str, int]:
        """Instructions a warp issues for each kind of _KINDS, "integer and other" and "all"; without padding."""
        opcodes = [opcode for opcode in (self.opcodes if opcodes is None else opcodes) if opcode != "NOP"]
        kinds = Counter(
            next((kind for kind, names in _KINDS.items() if opcode.startswith(names)), "integer and other")
            for opcode in opcodes
        )
        return {kind: kinds[kind] for kind in (*_KINDS, "integer and other")} | {"all": len(opcodes)}


def compile_for(kernel, types: dict[str, str], constants: dict, num_warps=4, fusion=True, capability=HOPPER) -> Compiled:
    """Machine code of a @triton.jit function; no GPU is needed.

    types: argument -> Triton's name of its type ("*u8", "i32"); pointers are assumed aligned to 16 bytes, as torch's are.
    constants: the tl.constexpr arguments. fusion: whether products and sums may become FMAs.
    """
    place = kernel.arg_names.index
    source = ASTSource(
        fn=kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(name),): [["tt.divisibility", 16]] for name, type in types.items() if type.startswith("*")},
    )
    options = {"num_warps": num_warps, "enable_fp_fusion": fusion}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    opcodes, addresses, jumps = [], [], []
    instructions = _INSTRUCTION.findall(_dump("-sass", binary.asm["cubin"]))
    used = dict(re.findall(r"(REG|STACK):(\d+)", _dump("-res-usage", binary.asm["cubin"])))
    end = max(place for place, (_, opcode, _) in enumerate(instructions) if opcode == "EXIT")
    for address, opcode, rest in instructions[: end + 1]:
        addresses.append(int(address, 16))
        constant = opcode.startswith("HFMA2") and ", -RZ, RZ, " in rest  # 0 * 0 + c: ptxas moves some constants so
        opcodes.append("MOV" if constant else opcode)
        target = re.search(r"0x([0-9a-f]+)", rest) if opcode == "BRA" else None
        if target and int(target[1], 16) < addresses[-1]:
            jumps.append((int(target[1], 16), addresses[-1]))
    first, last = max(jumps, key=lambda jump: jump[1] - jump[0], default=(1, 0))
    loop = tuple(code for code, address in zip(opcodes, addresses, strict=True) if first <= address <= last)
    return Compiled(binary.asm["ptx"], tuple(opcodes), loop, int(used["REG"]), int(used["STACK"]))


def _dump(what: str, cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, what, file.name], capture_output=True, text=True, check=True).stdout
