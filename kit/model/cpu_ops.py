"""The operations of a forward pass on the CPU, over a weight source; each adds a span to its trace."""

import time

import torch
import torch.nn.functional as F

from kit.cpu.elementwise import run
from kit.cpu.norm import rms_norm
from kit.gguf.names import layer_of
from kit.model.attention import ATTENTION, variant_for


class CpuOps:
    """Ops of kit.model.forward for ``tokens`` after the positions in ``cache``. An input is a tensor (tokens, in)."""

    def __init__(self, model, tokens, cache):
        self.config, self.weights, self.trace = model.config, model.weights, model.trace
        self.tokens, self.cache = torch.as_tensor(tokens, dtype=torch.int64), cache
        self._linear, self._attention, self._ropes = model.linear, model.attention, model.ropes
        self._cos_sin = {key: rope.cos_sin(cache.length, len(tokens)) for key, rope in model.ropes.items()}

    def embed(self):
        start = time.perf_counter_ns()
        x = self.weights.rows("token_embd.weight", self.tokens).float()
        x *= self.config.embedding_scale
        self.trace.add("embed", start, time.perf_counter_ns(), "token_embd.weight", nbytes=x.nbytes)
        return x

    def norm(self, x, name):
        return self.rms_norm(x, name) if name else x

    def rms_norm(self, x, name):
        start = time.perf_counter_ns()
        plain = not self.config.family.layer_norm
        y = rms_norm(x, self.weights[name], self.config.norm_eps) if plain else self.layer_norm(x, name)
        self.trace.add("norm", start, time.perf_counter_ns(), name, layer_of(name))
        return y

    def layer_norm(self, x, name):
        weight, bias = self._stored(name), self._stored(name.replace("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.config.norm_eps)

    def _stored(self, name):
        """A vector, None where the file has none of that name."""
        return self.weights[name] if name in self.weights.file.tensors else None

    def linear(self, name, x, add_to=None):
        start = time.perf_counter_ns()
        y = self._linear.apply(self.weights, name, x)
        bias = name.replace("weight", "bias")
        if bias.partition("[")[0] in self.weights.file.tensors:
            y += self.weights[bias]
        nbytes = self._linear.nbytes(self.weights, name)
        self.trace.add("linear", start, time.perf_counter_ns(), name, layer_of(name), nbytes=nbytes)
        if add_to is not None:
            self.add(add_to, y)
        return y

    def add(self, x, y):
        if not run("add", x, y, factor=self.config.residual_scale):
            x.add_(y, alpha=self.config.residual_scale)

    def rotate(self, layer, heads):
        start, rope = time.perf_counter_ns(), self.config.rope_of(layer)
        for x in heads:
            self._ropes[rope].rotate(x, self._cos_sin[rope])
        self.trace.add("rope", start, time.perf_counter_ns(), "", layer)

    def attend(self, layer, q, k, v):
        c, start = self.config, time.perf_counter_ns()
        keys, values = self.cache.append(layer, k, v)
        q, window = q.transpose(0, 1), c.window_of(layer)
        sinks = self._stored(f"blk.{layer}.attn_sinks.weight")
        variant = variant_for(self._attention, q, keys, values, window, c.attention_cap, sinks)
        mixed = ATTENTION[variant](q, keys, values, c.attention_scale, window, c.attention_cap, sinks)
        mixed = mixed.transpose(0, 1).flatten(1)
        seen = min(keys.shape[1], window + len(self.tokens) - 1) if window else keys.shape[1]
        nbytes = seen * self.cache.bytes_per_position // c.layers
        self.trace.add("attention", start, time.perf_counter_ns(), "", layer, nbytes=nbytes, outcome=variant)
        return mixed

    def activate(self, gate, up=None):
        if up is None:
            return UNGATED[self.config.family.activation](gate)
        return ACTIVATIONS[self.config.family.activation](gate, up)

    def route(self, name, x):
        bias = self._stored(name.replace("ffn_gate_inp.weight", "exp_probs_b.bias"))
        return best_experts(self.linear(name, x), self.config.routing, bias)

    def expects(self, names):
        pass

    def rows(self, x, index):
        return x[index]

    def logits(self, name, x):
        return scaled_logits(self.linear(name, x), self.config)


class RowsOps(CpuOps):
    """CpuOps for several rows of tokens at once, each after the positions of its own cache."""

    def __init__(self, model, rows, caches):
        self._rows = [CpuOps(model, tokens, cache) for tokens, cache in zip(rows, caches, strict=True)]
        super().__init__(model, [token for tokens in rows for token in tokens], caches[0])

    def _of_each_row(self, *heads):
        """(a row's ops, its views of heads (tokens, heads, head_dim)) for each row."""
        return zip(
            self._rows, zip(*(x.split([len(row.tokens) for row in self._rows]) for x in heads), strict=True), strict=True
        )

    def rotate(self, layer, heads):
        for row, parts in self._of_each_row(*heads):
            row.rotate(layer, parts)

    def attend(self, layer, q, k, v):
        return torch.cat([row.attend(layer, *parts) for row, parts in self._of_each_row(q, k, v)])


def _clamped(gate, up):
    """The activation of gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), with gate and up clamped at 7."""
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate.mul_(torch.sigmoid(1.702 * gate)).mul_(up.add_(1))


ACTIVATIONS = {
    "silu": lambda gate, up: gate if run("silu", gate, up, gate) else F.silu(gate).mul_(up),
    "gelu": lambda gate, up: gate if run("gelu", gate, up, gate) else F.gelu(gate, approximate="tanh").mul_(up),
    "clamped": _clamped,
}


UNGATED = {"gelu": lambda x: F.gelu(x, approximate="tanh"), "squared_relu": lambda x: x.relu_().square_()}


def best_experts(scores, routing, bias=None):
    """(share, expert) of the best experts by scores (tokens, experts), (tokens, used) each. ``bias`` (experts,) counts for the
    choice alone; a group is as good as its two best experts together (DeepSeek-AI 2024, V3)."""
    share = scores.sigmoid() if routing.sigmoid else scores.softmax(-1)
    rank = share if bias is None else share + bias
    if routing.groups > 1:
        groups = rank.unflatten(-1, (routing.groups, -1))
        best = groups.topk(2).values.sum(-1).topk(routing.groups_used).indices
        left_out = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(-1, best, False)
        rank = groups.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
    chosen = rank.topk(routing.used).indices
    share = share.gather(-1, chosen)
    if routing.normed:
        share = share / share.sum(-1, keepdim=True).clamp_min(2**-14)
    return share * routing.scale, chosen


def scaled_logits(y, config):
    """Logits divided by the scale, with the soft cap."""
    y = y.div_(config.logit_scale)
    return y.div_(config.logit_cap).tanh_().mul_(config.logit_cap) if config.logit_cap else y
