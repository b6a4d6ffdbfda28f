"""The operations of a forward pass on a CUDA device, from blocks."""

import torch
import torch.nn.functional as F

from kit.cuda.linear import pack_activations, pack_norm
from kit.model.cpu_ops import CpuOps
from kit.model.forward import Ops


class DeviceOps(CpuOps):
    """Ops of kit.model.forward for ``tokens`` at ``positions`` (tensors on the device) over ``seen`` positions of ``cache``.

    An input is the result of ``pack_activations``: planes for few tokens, the tensor itself for many. No operation has a span
    in the trace, for none has ended when its call returns.
    """

    def __init__(self, model, tokens, positions, cache, seen):
        Ops.__init__(self, model)
        self.model, self.tokens, self.positions, self.cache, self.seen = model, tokens, positions, cache, seen
        key, query = torch.arange(seen, dtype=torch.int64, device=tokens.device), positions[:, None]
        causal, windows = key <= query, {layer.mixer.window for layer in model.config.layers}
        self.visible = {window: causal & (key > query - window) if window else causal for window in windows}
        self._cos_sin = {rope: turns.index_select(0, positions) for rope, turns in model.cos_sin.items()}

    def end(self, *_, **__):
        """No span."""

    def vector(self, name):
        stack, _, expert = name.removesuffix("]").partition("[")
        vector = self.model.vectors.get(stack)
        return vector[int(expert)] if expert and vector is not None else vector

    def input(self, x):
        return pack_activations(x.contiguous())

    def embed(self, name, factor):
        return self.model.rows(name, self.tokens) * factor

    def norm(self, x, name):
        if name and not self.config.family.layer_norm:
            return pack_norm(x.contiguous(), self.vector(name), self.config.norm_eps)
        return super().norm(x, name)

    def normed(self, x, weight, bias):
        if self.config.family.layer_norm:
            return super().normed(x, weight, bias)
        return F.rms_norm(x, x.shape[-1:], weight, self.config.norm_eps)

    def linear(self, name, input, add_to=None):
        factor = 1.0 if add_to is None else self.config.residual_scale
        y, bias = self.model.product(name, input, add_to, factor), self.vector(name.replace("weight", "bias"))
        return y if bias is None else y.add_(bias, alpha=factor)

    def turn(self, x, rope):
        self.ropes[rope].rotate(x, self._cos_sin[rope])

    def attend(self, layer, q, k=None, v=None):
        mixer = self.config.layers[layer].mixer
        keys, values = self.cache.append(layer, self.positions, k, v, self.seen)
        sinks = self.vector(f"blk.{layer}.attn_sinks.weight")
        return grouped_attention(q, keys, values, self.visible[mixer.window], mixer.scale, mixer.cap, sinks)

    def activate(self, activation, gate, up=None):
        if up is not None and activation == "silu":
            return pack_activations(up.contiguous(), gate.contiguous())
        return self.input(super().activate(activation, gate, up))

    def route(self, name, input):
        self.router = name
        return super().route(name, input)

    def expects(self, names):
        self.model.expects(names, self.router)

    def alone(self, stacks, tokens):
        return True  # an expert is fetched just before its products

    def mix(self, x, y, share):
        token, factor = share
        x.index_add_(0, token, y.mul_(factor))

    def rows(self, input, index):
        rows = input[index]  # planes, or a tensor of many tokens, which is packed again because few may be left
        return pack_activations(rows) if rows.ndim == 2 else rows


def grouped_attention(q, keys, values, visible, scale, cap=0.0, sinks=None):
    """Attention: q (tokens, heads, head_dim), keys and values (kv_heads, seen, head_dim) -> (tokens, heads * head_dim) float32.

    visible: (tokens, seen) bool. The heads of a group count as further queries of their key/value head, so that keys are
    not repeated. It is torch's SDPA, or two products and a softmax for soft caps and sinks, which SDPA lacks.
    """
    tokens, heads, _ = q.shape
    group = heads // len(keys)
    q = q.unflatten(1, (len(keys), group)).permute(1, 2, 0, 3).flatten(1, 2).to(keys.dtype)
    mask = visible.repeat(group, 1)
    if cap or sinks is not None:
        scores = (q @ keys.mT).float() * scale
        scores = (cap * torch.tanh(scores / cap) if cap else scores).masked_fill(~mask, -torch.inf)
        if sinks is not None:
            column = sinks.view(len(keys), group, 1).repeat_interleave(tokens, 1)
            scores = torch.cat((scores, column), -1)
        mixed = scores.softmax(-1)[..., : keys.shape[1]].to(values.dtype) @ values
    else:
        mixed = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask, scale=scale)[0]
    return mixed.unflatten(1, (group, tokens)).permute(2, 0, 1, 3).flatten(1).float()
