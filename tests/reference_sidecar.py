"""An independent gemma4-assistant in float64 numpy, over the history that tests/reference_gemma4.py has; no code of kit."""

import math

import numpy as np
from reference_gemma4 import Sequence, _gelu, _softmax


class Drafter(Sequence):
    """Drafts after what ``target`` has read: a token beside the target's state before it, all at one position."""

    def __init__(self, metadata, tensors, target: Sequence):
        super().__init__(metadata, tensors)
        self.target = target

    def key(self, name, default=None):
        return self.metadata.get(f"gemma4-assistant.{name}", default)

    def drafted(self, token: int, count: int) -> np.ndarray:
        """Logits (count, vocabulary); each token but the first is the likeliest of the step before."""
        state, rows, position = self.target.state, [], len(self.target.kept[0][0])
        for _ in range(count):
            embedded = self.target.tensors["token_embd.weight"][token] * math.sqrt(self.target.hidden)
            logits, state = self.of_one(np.concatenate([embedded, state]), position)
            token = int(logits.argmax())
            rows.append(logits)
        return np.array(rows)

    def of_one(self, joined, position):
        w = self.tensors
        x = w["nextn.pre_projection.weight"] @ joined
        for layer in range(self.layers):
            part = lambda name, layer=layer: w[f"blk.{layer}.{name}.weight"]  # noqa: E731
            x = x + self.norm(
                self.attended(layer, part, self.norm(x, part("attn_norm")), position), part("post_attention_norm")
            )
            n = self.norm(x, part("ffn_norm"))
            y = part("ffn_down") @ (_gelu(part("ffn_gate") @ n) * (part("ffn_up") @ n))
            x = (x + self.norm(y, part("post_ffw_norm"))) * part("layer_output_scale")
        last = self.norm(x, w["output_norm.weight"])
        return w["token_embd.weight"] @ last, w["nextn.post_projection.weight"] @ last

    def attended(self, layer, part, x, position):
        local, heads = self.local[layer], self.key("attention.head_count")
        dim = self.key(f"attention.key_length{'_swa' if local else ''}")
        q = self.turn(self.norm((part("attn_q") @ x).reshape(heads, dim), part("attn_q_norm")), position, layer)
        written = self.target.layers - self.target.key("attention.shared_kv_layers", 0)
        keys, values = self.target.kept[max(n for n in range(written) if self.target.local[n] == local)]
        window = self.key("attention.sliding_window")  # it ends with the position of the draft, where nothing is yet
        first = max(0, position + 1 - window) if local else 0
        k, v = np.array(keys[first:]), np.array(values[first:])
        kv = k.shape[1]
        return part("attn_output") @ np.concatenate(
            [_softmax(k[:, n * kv // heads] @ q[n]) @ v[:, n * kv // heads] for n in range(heads)]
        )
