"""A mixture of experts: a router chooses some of many small networks for each token (Shazeer et al. 2017)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kit.errors import ModelError
from kit.gguf.keys import SOFTMAX, SPARSEMIXER
from kit.model.layers.dense import Dense, hidden, limits, parts, shape_of, stacks
from kit.model.layers.kind import LayerKind, Tensor, matrix, vector


class Routing(NamedTuple):
    """How a token's experts are chosen from a router's scores."""

    used: int
    gating: int  # an expert's share: SOFTMAX over all scores, SIGMOID or ROOTED of its own, SPARSEMIXER (kit.gguf.keys)
    normed: bool  # the shares of the chosen are divided by their sum
    scale: float
    groups: int  # experts are chosen from the ``groups_used`` best groups alone; 1: from all
    groups_used: int
    inside: bool = False  # a share multiplies what an expert takes, not what it gives
    tokens: int = 0  # a table has the experts of each of so many tokens; 0: the router chooses
    bias: str = "exp_probs_b.bias"  # of the layer, may be absent: what is added to scores for the choice alone


@dataclass(frozen=True)
class Mixture(LayerKind):
    """The numbers of one layer; ``size``: of one expert; ``shared``: the expert that all tokens use."""

    hidden_size: int
    experts: int
    size: int
    routing: Routing
    shared: Dense | None = None
    shared_gated: bool = False  # the sigmoid of a product with each token multiplies what that expert gives
    activation: str = "silu"
    gated: bool = True
    fused: str = ""
    situ: tuple[float, float] = (0.0, 0.0)
    late: bool = False
    limit: float = 0.0  # of experts, as Dense has it
    latent: int = 0  # numbers that experts take and give, by products with the input and with what they give; 0: hidden_size
    latent_normed: bool = False  # what they give is normed before its product

    named = "mixture"
    metadata = ("(expert|swiglu_clamp).*|hash_layer_count|leading_dense_block_count|interleave_moe_layer_step",)
    floats, on_device = ("ffn_gate_inp.weight",), True

    @classmethod
    def of(cls, facts, layer: int) -> "Mixture":
        keys, family, shape = facts.keys, facts.family, shape_of(facts)
        size = keys.count("expert_feed_forward_length", 0)
        shared, each = keys.count("expert_shared_feed_forward_length", 0), keys.count("expert_shared_count", 0) * size
        shared = shared or each or (size if family.shared_always else 0)
        if family.shared_gated:  # which these families always have: llama.cpp takes the dense size where the file says none
            shared = shared or facts.dense_size[layer]
        gating, normed, scale = _shares(facts)
        routing = Routing(
            used=keys.count("expert_used_count"),
            gating=gating,
            normed=normed,
            scale=scale,
            groups=keys.count("expert_group_count", 0) or 1,
            groups_used=keys.count("expert_group_used_count", 0) or 1,
            inside=family.share_inside,
            tokens=facts.vocabulary if hashed(facts, layer) else 0,
            bias="exp_probs_b" if f"blk.{layer}.exp_probs_b" in facts.stored else Routing._field_defaults["bias"],
        )
        gated, (limit, of_shared) = bool(shared) and family.shared_gated, limits(facts, layer)
        shared = Dense(facts.hidden_size, shared, **shape, suffix="_shexp", limit=of_shared) if shared else None
        if f"blk.{layer}.ffn_gate_up_exps.weight" in facts.stored:
            shape["fused"] = "gate_up"
        return cls(facts.hidden_size, facts.experts, size or facts.dense_size[layer], routing, shared, gated, **shape,
                   limit=limit, **_latent(facts, layer))  # fmt: skip

    def tensors(self) -> Iterator[Tensor]:
        yield from matrix("ffn_gate_inp", self.experts, self.hidden_size)
        yield Tensor(self.routing.bias, (self.experts,), required=False)
        if self.routing.tokens:
            yield Tensor("ffn_gate_tid2eid.weight", (self.routing.tokens, self.routing.used))
        if self.latent:
            yield from matrix("ffn_routed_down", self.latent, self.hidden_size)
        yield from stacks(self._of_experts(), "_exps", self.size, self.experts)
        if self.latent_normed:
            yield from vector("ffn_routed_norm", self.latent)
        if self.latent:
            yield from matrix("ffn_routed_up", self.hidden_size, self.latent)
        if self.shared:
            yield from self.shared.tensors()
        if self.shared_gated:
            yield from vector("ffn_gate_inp_shexp", self.hidden_size)

    def widths(self) -> Iterator[int]:
        yield from (self.size, self.shared.size if self.shared else 0, self.latent)

    def run(self, ops, layer, x, input, after):
        if after:
            y = ops.zeros(x)
            self.run(ops, layer, y, input, "")
            return ops.add(x, ops.rms_norm(y, after))
        if self.latent:
            self._through_latent(ops, f"blk.{layer}.ffn_routed_", layer, x, input)
        else:
            ops.add(x, self.mixed(ops, layer, x, input))
        if self.shared_gated:
            name = f"blk.{layer}.ffn_{{}}_shexp.weight"
            y = ops.linear(name.format("down"), hidden(self.shared, ops, name, input))
            ops.add(x, ops.gate(y, name.format("gate_inp"), input))
        elif self.shared:
            self.shared.run(ops, layer, x, input, after)

    def _of_experts(self) -> "Mixture":
        """With the width that experts take and give."""
        return replace(self, hidden_size=self.latent) if self.latent else self

    def _through_latent(self, ops, name, layer, x, input):
        low = ops.linear(f"{name}down.weight", input)
        mixed = self.mixed(ops, layer, low, ops.input(low), input)
        ops.add_linear(x, f"{name}up.weight", ops.norm(mixed, f"{name}norm.weight" if self.latent_normed else ""), "")

    def mixed(self, ops, layer, x, input, scored=None):
        """Weighted sum of each token's best experts (tokens, hidden_size); reads only experts in use. ``scored``: the input of
        the router, where it is another."""
        name, out = f"blk.{layer}.ffn_{{}}_exps.weight", ops.zeros(x)
        names = [name.format(part) for part in parts(self)]
        for expert, rows, share in ops.experts(f"blk.{layer}.ffn_gate_inp.weight", names, input, scored):
            own = f"{name}[{expert}]"
            ops.mix(out, ops.linear(own.format("down"), hidden(self, ops, own, rows)), share)
        return out


def _latent(facts, layer: int) -> dict:
    if not facts.family.routed_latent or not (size := facts.keys.count("expert_latent_length", 0)):
        return {}
    return dict(latent=size, latent_normed=f"blk.{layer}.ffn_routed_norm.weight" in facts.stored)


def hashed(facts, layer: int) -> bool:
    """Whether a table chooses the experts of a layer."""
    return facts.family.hashed and facts.numbers[layer] < facts.keys.count("hash_layer_count")


def of_tokens(blocks, tokens, kind: Mixture, path) -> np.ndarray:
    """The experts of tokens by the table of a layer, (tokens, used) int64, rising. ModelError for a wrong one."""
    chosen = np.sort(blocks[np.asarray(tokens)].view("<i4").astype(np.int64), 1)
    if chosen.min() < 0 or chosen.max() >= kind.experts or (np.diff(chosen) == 0).any():
        raise ModelError(f"{path}: a table of experts by token has {chosen.tolist()[0]}: {kind.experts} are there, each once")
    return chosen


def _shares(facts) -> tuple[int, bool, float]:
    """(gating, normed, scale) of Routing: by the file where files of the family say it, else by the family. A key that then
    says otherwise is an error, because llama.cpp does not read it. 3, softmax over the chosen, is softmax and ``normed``."""
    family, keys = facts.family, facts.keys
    if not family.gating_said:
        if family.gating == SPARSEMIXER and keys.count(key := "expert_gating_func", 0):
            keys.fail(key, "absent, because such a model has shares of its own", f"is {keys.count(key)}")
        also = (0, 3) if family.gating == 1 and family.normed else (0,)
        keys.same("expert_gating_func", family.gating, "as in every such model", or_else=also)
    if not family.shares_said:
        keys.same("expert_weights_norm", family.normed, "as in every such model")
        keys.same("expert_weights_scale", 1.0, "as in every such model", or_else=(0,))
    gating = keys.count("expert_gating_func", 0, most=2 if family.gating_said else max(3, family.gating)) or family.gating
    return (
        SOFTMAX if gating == 3 else gating,
        keys.flag("expert_weights_norm", False) or family.normed,
        keys.number("expert_weights_scale", 0) or 1.0,
    )
