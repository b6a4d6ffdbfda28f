"""Cycles of 256 weights of one token by llvm-mca: inner loops of the kit and of ggml (int8), for CPUs that this machine lacks.

No CPU runs. LLVM compiles the kit's kernel for it, clang ggml's function (from the sdist of xllamacpp), and llvm-mca adds
up what LLVM's model of the CPU says of the innermost loop: all data in the first-level cache, every branch foreseen. Where LLVM
has no model of a CPU it takes another's: the column ``model`` holds how that one calls its units (Cy: Cyclone, of 2013).
Needs llvm-mca and clang (Debian: llvm-19 clang-19), `make llama`, which unpacks the sdist, and for aarch64 the headers of its C
library: libc6-dev-arm64-cross, or an unpacked system whose folder KIT_SYSROOT names.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pandas as pd

from kit.cpu.superblock_scales import SUPERBLOCK
from kit.errors import KitError
from kit.system.paths import ROOT

PLACE = "static"  # the folder of records: no machine takes part
SOURCES = ROOT / "build" / "llama.cpp" / "thirdparty" / "llama.cpp" / "ggml"
FORMATS = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")

ARM, X86 = "aarch64-linux-gnu", "x86_64-linux-gnu"
_DOT = frozenset({"neon", "dotprod"})
_V3 = frozenset({"sse4.1", "ssse3", "avx", "avx2", "f16c", "fma", "bmi", "bmi2"})
# A CPU as LLVM calls it: its triple, the kit's tier, features that choose code, and what keeps clang from wider vectors.
CPUS = {
    "apple-m1": (ARM, "neon", _DOT, ""),
    "apple-m4": (ARM, "neon", _DOT | {"i8mm"}, ""),
    "neoverse-v1": (ARM, "neon", _DOT | {"i8mm"}, "+nosve"),
    "neoverse-v2": (ARM, "neon", _DOT | {"i8mm"}, "+nosve"),
    "cortex-a76": (ARM, "neon", _DOT, ""),
    "znver3": (X86, "avx2", _V3, ""),
    "skylake": (X86, "avx2", _V3, ""),
    "alderlake": (X86, "avx2", _V3 | {"avxvnni"}, ""),
}
# An instruction of dot products, and the products of bytes in it.
_DOTS = re.compile(r"^\s*(?P<arm>[us]+dot)\s+v|^\s*vpmaddubsw\s.*%(?P<madd>[xyz])mm|^\s*\{?.*?vpdpbusds?\s.*%(?P<vnni>[xyz])mm")
# A register xored with itself is zero without a wait, which LLVM's model of these does not know; of a move it knows.
_WAITS_FOR_ZEROS = {"alderlake"}
_ZERO = re.compile(r"vp?xor\w*\s+%[xy]mm(?P<number>\d+)(?:, %[xy]mm(?P=number)){2}$", re.MULTILINE)
_BYTES = {"x": 16, "y": 32, "z": 64}


def run(only: str = "") -> pd.DataFrame:
    """One row a CPU and format: cycles of the kit and of ggml with int8, and of the exact kit. ``only``: CPUs so named."""
    rows = []
    for cpu, (triple, tier, features, less) in CPUS.items():
        if only not in cpu:
            continue
        theirs = _ggmls(cpu + less, triple)
        ours = {activations: _kits(tier, features, FORMATS, activations) for activations in ("int8", "float32")}
        for qtype in FORMATS:
            loops = [_loop(_assembly(texts[qtype], triple, cpu))[0] for texts in ours.values()]
            (kit, bound, model), (exact, *_) = (cycles((loop, SUPERBLOCK), triple, cpu) for loop in loops)
            ggml, *_ = cycles(_loop(theirs[qtype]), triple, cpu)
            row = {"cpu": cpu, "model": model, "format": qtype, "kit": kit, "ggml": ggml, "kit / ggml": kit / ggml}
            rows.append(row | {"kit, float32": exact, "kit's bound": bound})
    return pd.DataFrame(rows).set_index(["cpu", "model", "format"])


def cycles(loop: tuple[str, int], triple: str, cpu: str) -> tuple[float, float, str]:
    """Cycles of 256 weights by llvm-mca, of a loop (its body, its weights); those in which its busiest unit works; and how
    LLVM's model calls its units."""
    body, weights = loop
    if cpu in _WAITS_FOR_ZEROS:
        body = _ZERO.sub("vmovdqa64 %ymm31, %ymm\\g<number>", body)
    turns = 1000
    done = _tool("llvm-mca", f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={turns}", "-", input=body)
    total, unit = (re.search(pattern, done).group(1) for pattern in (r"Total Cycles: +(\d+)", r"\[0(?:\.0)?\] +- (\w+)"))
    busy = re.search(r"Resource pressure per iteration:\n.*\n(.*)", done).group(1).replace("-", "").split()
    return int(total) / turns / weights * 256, max(map(float, busy)) / weights * 256, unit.partition("Unit")[0]


def _loop(assembly: str) -> tuple[str, int]:
    """The innermost loop of an assembly text with the most products of bytes: its body, and how many products."""
    lines = [re.split(r"//|##|\s# ", line)[0].rstrip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.match(r"[.\w]+:$", line)}
    loops = []
    for end, line in enumerate(lines):
        jump = re.match(r"\s+(?:b\.\w+|b|cbn?z|tbn?z|j\w+)\s.*?([.\w]+)$", line)
        if jump and labels.get(jump[1], end) < end:
            loops.append((labels[jump[1]], end))
    inner = [(a, b) for a, b in loops if not any((a, b) != (c, d) and a <= c and d <= b for c, d in loops)]
    bodies = ["\n".join(line for line in lines[a : b + 1] if re.match(r"\s+[a-z{]", line)) for a, b in inner]
    return max(((body, _products(body)) for body in bodies), key=lambda found: found[1])


def _products(body: str) -> int:
    found = map(_DOTS.match, body.splitlines())
    return sum(16 if dot["arm"] else _BYTES[dot["madd"] or dot["vnni"]] for dot in found if dot)


# ---- the kit's


@functools.cache
def _kits(tier: str, features: frozenset[str], names: tuple[str, ...], activations: str) -> dict[str, str]:
    """Format -> the product of a row and a token as LLVM's text; by a process, since Numba compiles for one CPU in each."""
    environment = os.environ | {"NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in features)}
    code = f"from benchmarks import cycles; cycles.print_rows({tier!r}, {names}, {activations!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def print_rows(tier: str, names, activations: str):
    """Format -> LLVM's text, to stdout."""
    from kit.cpu.gemv_codes import _one_token
    from kit.cpu.simd.memory import store
    from kit.cpu.simd.vectors import Static
    from kit.gguf.formats import FORMATS as ROWS

    tier, activations = Static(tier), Static(activations)

    def product(format):
        def row(blocks, sixteens, end, record, scratch, y):
            store(y, _one_token(format, tier, activations, blocks, sixteens, end, record, scratch))

        return row

    print(json.dumps({name: intermediate(product(Static(ROWS[name])), 6, "row") for name in names}))


def intermediate(function, count: int, symbol: str) -> str:
    """What kit.cpu.tasks compiles of a function of ``count`` int64 as LLVM's text, not optimized, for any CPU of 64 bits."""
    from kit.cpu import numba_private

    with numba_private.global_compiler_lock:
        return str(numba_private._library(function, count, symbol)._final_module)


def optimized(text: str, symbol: str, triple: str, cpu: str):
    """LLVM's text as Numba would optimize it for the CPU, where it calls all but the function ``symbol`` its own: (target
    machine, module), for ``emit_assembly`` or ``emit_object``."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    text = re.sub(r'target triple = ".*"', f'target triple = "{triple}"', text)
    module = llvm.parse_assembly(re.sub(r'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', text))
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return machine, module


def _assembly(text, triple, cpu) -> str:
    machine, module = optimized(text, "row", triple, cpu)
    return machine.emit_assembly(module)


# ---- ggml's


def _ggmls(cpu, triple) -> dict[str, str]:
    """Format -> assembly of ggml's function of it."""
    folder = SOURCES / "src" / "ggml-cpu"
    source = folder / "arch" / ("arm" if triple == ARM else "x86") / "quants.c"
    if not source.exists():
        raise KitError(f"{source} is not there: `make llama` unpacks it")
    which = "-mcpu" if triple == ARM else "-march"
    includes = [f"-I{path}" for path in (folder, SOURCES / "src", SOURCES / "include")]
    headers = [f"--sysroot={os.environ['KIT_SYSROOT']}"] if triple == ARM and "KIT_SYSROOT" in os.environ else []
    text = _tool("clang", f"--target={triple}", f"{which}={cpu}", "-O3", "-S", "-o", "-", *headers, *includes, str(source))
    bodies = dict(re.findall(r"^(ggml_vec_dot_\w+):(.*?)^\.Lfunc_end", text, re.DOTALL | re.MULTILINE))
    return {
        name: next(body for symbol, body in bodies.items() if f"dot_{name}_q8".lower() in symbol.lower()) for name in FORMATS
    }


def _tool(name: str, *arguments: str, input: str | None = None) -> str:
    path = shutil.which(f"{name}-19") or shutil.which(name)
    if not path:
        raise KitError(f"{name} is not installed (Debian: llvm-19 clang-19)")
    done = subprocess.run([path, *arguments], input=input, capture_output=True, text=True)
    if done.returncode:
        raise KitError(f"{Path(path).name} fails: {done.stderr[:2000]}")
    return done.stdout
