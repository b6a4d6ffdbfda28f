"""An independent forward pass of Gemma 4 in float64 numpy, token by token with its history in lists; no code of kit."""

import math

import numpy as np


def forward(tokens, metadata, tensors):
    """Logits (tokens, vocabulary), float64. ``metadata``, ``tensors``: of the file, by name."""
    sequence = Sequence(metadata, tensors)
    return np.array([sequence.step(position, token) for position, token in enumerate(tokens)])


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Sequence:
    def __init__(self, metadata, tensors):
        self.metadata, self.tensors = metadata, {name: np.asarray(value, np.float64) for name, value in tensors.items()}
        self.layers, self.hidden = self.key("block_count"), self.key("embedding_length")
        self.local = list(self.key("attention.sliding_window_pattern"))
        self.kept = [([], []) for _ in range(self.layers)]

    def key(self, name, default=None):
        return self.metadata.get(f"gemma4.{name}", default)

    def norm(self, x, weight=1.0):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.key("attention.layer_norm_rms_epsilon")) * weight

    def turn(self, x, position, layer):
        """RoPE of pairs (i, i + half), in global layers with divided frequencies."""
        local = "_swa" if self.local[layer] else ""
        half, base = self.key(f"rope.dimension_count{local}") // 2, self.key(f"rope.freq_base{local}")
        angle = position * base ** (-np.arange(half) / half) / (1 if local else self.tensors["rope_freqs.weight"])
        a, b, cos, sin = x[:, :half], x[:, half : 2 * half], np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[:, 2 * half :]], 1)

    def step(self, position, token):
        each, w = self.key("embedding_length_per_layer_input"), self.tensors
        x = w["token_embd.weight"][token] * math.sqrt(self.hidden)
        if each:
            rows = w["per_layer_token_embd.weight"][token].reshape(self.layers, each) * math.sqrt(each)
            projected = (w["per_layer_model_proj.weight"] @ x / math.sqrt(self.hidden)).reshape(self.layers, each)
            embedded = (rows + self.norm(projected, w["per_layer_proj_norm.weight"])) / math.sqrt(2)
        for layer in range(self.layers):
            block = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"blk.{layer}.")}
            part = lambda name, block=block: block[f"{name}.weight"]  # noqa: E731
            attended = self.attend(layer, block, self.norm(x, part("attn_norm")), position)
            x = x + self.norm(attended, part("post_attention_norm"))
            x = x + self.norm(self.network(block, x), part("post_ffw_norm"))
            if each:
                gate = _gelu(part("inp_gate") @ x) * embedded[layer]
                x = x + self.norm(part("proj") @ gate, part("post_norm"))
            x = x * part("layer_output_scale")
        cap, self.state = self.key("final_logit_softcapping"), self.norm(x, w["output_norm.weight"])
        return cap * np.tanh(w["token_embd.weight"] @ self.state / cap)

    def attend(self, layer, block, x, position):
        own, local = self.layers - self.key("attention.shared_kv_layers"), self.local[layer]
        dim, kv = self.key(f"attention.key_length{'_swa' if local else ''}"), self.key("attention.head_count_kv")[layer]
        heads = self.key("attention.head_count")
        q = self.turn(self.norm((block["attn_q.weight"] @ x).reshape(heads, dim), block["attn_q_norm.weight"]), position, layer)
        if layer < own:
            k = (block["attn_k.weight"] @ x).reshape(kv, dim)
            v = (block["attn_v.weight"] @ x).reshape(kv, dim) if "attn_v.weight" in block else k
            keys, values = self.kept[layer]
            keys.append(self.turn(self.norm(k, block["attn_k_norm.weight"]), position, layer))
            values.append(self.norm(v))
        else:
            keys, values = self.kept[own - (2 if local else 1)]
        seen = slice(-self.key("attention.sliding_window"), None) if local else slice(None)
        k, v = np.array(keys[seen]), np.array(values[seen])
        mixed = [_softmax(k[:, head * kv // heads] @ q[head]) @ v[:, head * kv // heads] for head in range(heads)]
        return block["attn_output.weight"] @ np.concatenate(mixed)

    def network(self, block, x):
        """The dense network, and beside it the experts that a router chooses which has a norm of its own."""
        n = self.norm(x, block["ffn_norm.weight"])
        gate = _gelu(block["ffn_gate.weight"] @ n) * (block["ffn_up.weight"] @ n)
        y = block["ffn_down.weight"] @ gate
        if "ffn_gate_inp.weight" not in block:
            return y
        y = self.norm(y, block["post_ffw_norm_1.weight"])
        n = self.norm(x, block["pre_ffw_norm_2.weight"])
        share = _softmax(block["ffn_gate_inp.weight"] @ (self.norm(x) / math.sqrt(self.hidden) * block["ffn_gate_inp.scale"]))
        best = np.argsort(-share)[: self.key("expert_used_count")]
        total = 0.0
        for expert in best:
            gate, up = np.split(block["ffn_gate_up_exps.weight"][expert] @ n, 2)
            factor = share[expert] / share[best].sum() * block["ffn_down_exps.scale"][expert]
            total = total + factor * (block["ffn_down_exps.weight"][expert] @ (_gelu(gate) * up))
        return y + self.norm(total, block["post_ffw_norm_2.weight"])
