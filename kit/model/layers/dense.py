"""A dense feed-forward layer: down(activation(gate x) * up x), or down(activation(up x))."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kit.model.layers.kind import LayerKind, Tensor, matrix

_SPARSE, _DEVIATIONS = 10, 1.6448533535003662  # the first layers of Gemma 3n keep 5% of a normal distribution
_NONE = 1e-6  # a limit up to this is none


@dataclass(frozen=True)
class Dense(LayerKind):
    """The numbers of one layer, or of the expert that all tokens of a mixture use (``suffix`` "_shexp")."""

    hidden_size: int
    size: int
    activation: str = "silu"
    gated: bool = True
    fused: str = ""  # "up": ffn_up is the rows of gate and up; "gate_up": that is its name
    suffix: str = ""
    cut: float = 0.0  # standard deviations above their mean that a token's gates count from, those below are 0; 0: all count
    situ: tuple[float, float] = (0.0, 0.0)  # of that activation: what bounds gates, and what they multiply (0: nothing)
    late: bool = False  # ``limit`` is of activated gates
    limit: float = 0.0  # gates are at most that, and what they multiply is within -limit to limit; 0: none

    named, on_device = "dense", True

    @classmethod
    def of(cls, facts, layer: int) -> "Dense":
        limit = limits(facts, layer)[1] if facts.family.limited_dense else 0.0  # the key of the shared network counts
        return cls(facts.hidden_size, facts.dense_size[layer], **shape_of(facts), cut=_cut(facts, layer), limit=limit)

    def tensors(self) -> Iterator[Tensor]:
        yield from stacks(self, self.suffix, self.size)

    def widths(self) -> Iterator[int]:
        yield self.size

    def run(self, ops, layer, x, input, after):
        name = f"blk.{layer}.ffn_{{}}{self.suffix}.weight"
        ops.add_linear(x, name.format("down"), hidden(self, ops, name, input), after)


def shape_of(facts) -> dict:
    """What a row, and a file, say of gates and activation."""
    family, keys, situ = facts.family, facts.keys, (0.0, 0.0)
    if family.activation == "situ":
        situ = keys.number("activation.situ_beta", above=0.0), keys.number("activation.situ_linear_beta", least=-math.inf)
    return dict(
        situ=situ,
        activation=family.activation,
        gated=family.gated,
        fused="up" if "ffn" in family.fused else "",
        late=family.limited == "after",
    )


def stacks(kind, suffix: str, size: int, *stack: int) -> Iterator[Tensor]:
    """The matrices of one network, or of a stack of experts."""
    for part in parts(kind)[:-1]:
        yield from matrix(f"ffn_{part}{suffix}", *stack, (1 + bool(kind.fused)) * size, kind.hidden_size)
    yield from matrix(f"ffn_down{suffix}", *stack, kind.hidden_size, size)


def parts(kind) -> tuple[str, ...]:
    """The matrices, in order of use."""
    return (kind.fused, "down") if kind.fused else ("gate", "up", "down") if kind.gated else ("up", "down")


def hidden(kind, ops, name: str, input):
    """The input of "down": the activated gate times up, or activated up. ``name``: of a matrix, with "{}" for its part."""
    if not kind.gated:
        return ops.activate(kind.activation, ops.linear(name.format("up"), input))
    if kind.fused:
        gate, up = ops.linear(name.format(kind.fused), input).chunk(2, 1)
    else:
        gate, up = (ops.linear(name.format(part), input) for part in ("gate", "up"))
    if kind.activation == "situ":
        beta, linear = kind.situ
        return ops.input(ops.make("situ", gate, up, shape=gate.shape, span="activation", beta=beta, linear=linear))
    if kind.fused:
        return ops.activate(kind.activation, gate, up)
    if getattr(kind, "cut", 0):
        ops.make("cut", gate, span="activation", deviations=kind.cut)
    if kind.limit and kind.late:
        gate = ops.values(ops.activate(kind.activation, gate))
    if kind.limit:
        ops.clamp(gate, kind.limit, below=False)
        ops.clamp(up, kind.limit)
    return ops.activate("times" if kind.limit and kind.late else kind.activation, gate, up)


def _cut(facts, layer: int) -> float:
    """``cut`` of a layer: a number for each block, or as the first models have it."""
    key, keys, first = "activation_sparsity_scale", facts.keys, facts.numbers[layer] < _SPARSE
    if facts.family.streams != "alternating" or key not in keys:
        return _DEVIATIONS if facts.family.streams == "alternating" and first else 0.0
    told = float(keys.numbers(key, length=facts.count)[layer])
    return told if math.isfinite(told) else 0.0


def limits(facts, layer: int) -> tuple[float, float]:
    """``limit`` of routed experts, and of the shared one, for which in some families that of the others counts where a file has
    none."""
    if not facts.family.limited:
        return 0.0, 0.0
    routed = facts.number_of("swiglu_clamp_exp", layer, 0.0)
    if facts.family.limited == "routed":
        return (routed if routed > _NONE else 0.0), 0.0
    both = routed, facts.number_of("swiglu_clamp_shexp", layer, routed if facts.family.limited == "before" else 0.0)
    return tuple(limit if limit > _NONE else 0.0 for limit in both)
