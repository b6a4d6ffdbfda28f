"""Tests of numbers on CPUs that lack what this one has: variables keep the kit's kernels and torch's from it, as benchmarks do.

    python tests/held_to.py              # AVX2, then x86-64 without vectors of its own
    python tests/held_to.py AVX2 -k nan  # one of them, with options of pytest

What int8 rounds, how sums are added up and which kernel multiplies a prompt differ by tier: an assertion that hangs on a
choice which rounding may turn fails on one of them alone.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.decode import masked  # noqa: E402

HELD = {  # name -> (tier of the kit's kernels, variables, options of pytest: x86-64 has the plain tier by itself)
    "AVX2": ("avx2", masked("AVX2"), ["-k", "not plain"]),
    "x86-64": ("plain", masked("AVX2") | {
        "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2", "ATEN_CPU_CAPABILITY": "default"
    }, []),
}  # fmt: skip
TESTS = (  # a few files that meet every kind of product, in quantized blocks, exact and rounded
    "test_family_files.py::test_quantized_exact_and_rounded_to_eight_bits",
    "test_fused.py::test_a_few_tokens_have_the_bits_of_each_alone",
    "test_fused.py::test_the_largest_codes_times_the_largest_digits_do_not_overflow",
    "test_nan.py::test_activations_keep_what_is_not_finite[Q4_K-int8-4]",
    "test_plan.py::test_every_architecture_equals_float64[tiny-qwen3moe]",
    "test_plan.py::test_every_architecture_equals_float64[tiny-gemma3]",
    "test_ties.py::test_a_prompt_and_a_recorded_pass_choose_the_same_of_equal_experts[glm4moe]",
)
_TIER = "from kit.cpu.simd.tiers import tier; print(tier().value)"


def held_to(name: str, options: list[str]) -> tuple[int, str]:
    """Run the tests: the exit code of pytest, or 1 where the variables do not give the tier, and what is told."""
    tier, variables, own_options = HELD[name]
    environment, start = os.environ | variables, time.monotonic()
    own = subprocess.run([sys.executable, "-c", _TIER], env=environment, capture_output=True, text=True, cwd=HERE.parent)
    if own.stdout.strip() != tier:
        return 1, f"{name}: the kernels are of tier {own.stdout.strip()!r}, not {tier}: {own.stderr[-500:]}"
    tests = [str(HERE / test) for test in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", *own_options, *options, *tests]
    ran = subprocess.run(command, env=environment, cwd=HERE.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = f"{name}: {'passed' if not ran.returncode else 'FAILED'} in {time.monotonic() - start:.0f} s"
    return ran.returncode, ran.stdout + said


if __name__ == "__main__":
    given = sys.argv[1:]
    names = [given.pop(0)] if given and given[0] in HELD else list(HELD)
    with ThreadPoolExecutor(len(names)) as pool:  # at once: each compiles on one core for most of its time
        found = [*pool.map(lambda name: held_to(name, given), names)]
    print("\n".join(said for _, said in found))
    sys.exit(any(code for code, _ in found))  # a signal's is below 0
