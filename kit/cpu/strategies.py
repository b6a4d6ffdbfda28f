"""How codes and activations are multiplied, by the kind of format and the tier: a table, which `kit doctor` prints."""

from kit.cpu.activations import DIGITS, WORDS
from kit.cpu.simd.tiers import tier as current
from kit.cpu.superblocks import codes_of, flipped, has_steps, largest_code
from kit.gguf.formats import FORMATS, described

# Kind of format, by its codes and scales -> tier -> how a super-block's codes and activations are multiplied:
#   dots      dot products of four bytes, each scaled as a float
#   steps     sums of a group times its integer scale, then one float for the super-block (kit.cpu.simd.dots, pairs)
#   scales    the sums of all codes that share a scale, times that float
#   words     the same, with activations in words of 16 bits; for one digit it is "scales"
STRATEGIES = {
    "steps": {"avx512": "steps", "avx2": "steps", "neon": "steps", "plain": "steps"},
    "floats": {"avx512": "dots", "avx2": "scales", "neon": "scales", "plain": "scales"},
    "bytes": {"avx512": "dots", "avx2": "words", "neon": "scales", "plain": "scales"},
    "steps, looked up": {"avx512": "dots", "avx2": "dots", "neon": "steps", "plain": "steps"},
    "floats, looked up": {"avx512": "dots", "avx2": "dots", "neon": "scales", "plain": "scales"},
}


def in_four_lanes(tier) -> bool:
    """Whether sums use 128-bit vectors (the tiers neon and plain)."""
    return tier in ("neon", "plain")


def kind_of(format) -> str:
    """Its row of STRATEGIES: whether scales are integers or floats, and whether codes are whole bytes or looked up."""
    if not codes_of(format).in_vectors or (has_steps(format) and largest_code(format) > 63):
        return "steps, looked up" if has_steps(format) else "floats, looked up"
    if has_steps(format):
        return "steps"
    return "bytes" if flipped(format) and format.scales.sign == 0 else "floats"


def strategy(format, tier: str, activations: str) -> str:
    """How kit.cpu.gemv_codes multiplies; see STRATEGIES."""
    how = STRATEGIES[kind_of(format)][tier]
    return "scales" if how == "words" and DIGITS[activations] == 1 else how


def strategies() -> dict[str, list[str]]:
    """Strategy of STRATEGIES on this machine -> the formats that take it."""
    taken: dict[str, list[str]] = {}
    for format in FORMATS.values():
        if format.codes is not None and described(format):
            taken.setdefault(STRATEGIES[kind_of(format)][current().value], []).append(format.name)
    return taken


def digits(format, tier: str, activations: str) -> int:
    """The number of digits of activations that its kernel takes; see kit.cpu.activations."""
    return WORDS if strategy(format, tier, activations) == "words" else DIGITS[activations]


def is_signed(format, tier, activations) -> bool:
    """Whether codes are multiplied as int8, without the bias that makes them uint8."""
    if in_four_lanes(tier):
        return largest_code(format) > 127 and format.scales.sign == 0
    return flipped(format) and strategy(format, tier, activations) != "dots"
