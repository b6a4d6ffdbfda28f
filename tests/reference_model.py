"""An independent forward pass in float64 numpy: one function, position by position, from the papers; no code of kit."""

import numpy as np


def forward(tokens, metadata, tensors):
    """Logits (tokens, vocabulary), float64. ``metadata``: keys without the architecture's name; ``tensors``: by name."""
    tensors = {name: np.asarray(value, dtype=np.float64) for name, value in tensors.items()}
    arch = metadata["general.architecture"]
    get = lambda key, default=None: metadata.get(f"{arch}.{key}", default)  # noqa: E731
    granite = arch.startswith("granite")
    heads = get("attention.head_count")
    kv_heads = get("attention.head_count_kv", heads)
    width = get("embedding_length")
    dim = get("attention.key_length", width // heads)
    eps = get("attention.layer_norm_rms_epsilon")
    window = get("attention.sliding_window", 0)
    scale = (granite and get("attention.scale")) or 1 / np.sqrt(dim)
    residual = (granite and get("residual_scale")) or 1.0
    turning = get("rope.dimension_count", dim)

    def norm(x, weight):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight

    def turn(vector, position):
        vector = vector.copy()
        half = turning // 2
        for i in range(half):
            frequency, length = _frequency(i, turning, get, tensors.get("rope_freqs.weight"))
            a, b = (2 * i, 2 * i + 1) if not arch.startswith("qwen") else (i, i + half)
            cos, sin = np.cos(position * frequency) * length, np.sin(position * frequency) * length
            vector[a], vector[b] = vector[a] * cos - vector[b] * sin, vector[a] * sin + vector[b] * cos
        return vector

    def project(x, name):
        y = tensors[f"{name}.weight"] @ x
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def swiglu(x, gate, up, down):
        g = gate(x)
        return down(g / (1 + np.exp(-g)) * up(x))

    def feed_forward(x, block):
        def parts(suffix):
            return [lambda x, kind=kind: project(x, f"{block}.ffn_{kind}{suffix}") for kind in ("gate", "up", "down")]

        def expert(e):
            stacks = [tensors[f"{block}.ffn_{kind}_exps.weight"] for kind in ("gate", "up", "down")]
            return [lambda x, matrix=stack[e]: matrix @ x for stack in stacks]

        if f"{block}.ffn_gate_inp.weight" not in tensors:
            return swiglu(x, *parts(""))
        score = tensors[f"{block}.ffn_gate_inp.weight"] @ x
        score = np.exp(score - score.max())
        score /= score.sum()
        best = np.argsort(-score)[: get("expert_used_count")]
        y = sum(score[e] / score[best].sum() * swiglu(x, *expert(e)) for e in best)
        if f"{block}.ffn_up_shexp.weight" in tensors:
            y = y + swiglu(x, *parts("_shexp"))
        return y

    x = tensors["token_embd.weight"][np.asarray(tokens)] * ((granite and get("embedding_scale")) or 1.0)
    for layer in range(get("block_count")):
        block = f"blk.{layer}"
        keys, values, mixed = [], [], np.empty((len(tokens), heads * dim))
        for t in range(len(tokens)):
            h = norm(x[t], tensors[f"{block}.attn_norm.weight"])
            q, k, v = (project(h, f"{block}.attn_{part}").reshape(-1, dim) for part in "qkv")
            if f"{block}.attn_q_norm.weight" in tensors:
                q = norm(q, tensors[f"{block}.attn_q_norm.weight"])
                k = norm(k, tensors[f"{block}.attn_k_norm.weight"])
            q, k = ([turn(head, t) for head in part] for part in (q, k))
            keys.append(k)
            values.append(v)
            first = max(0, t - window + 1) if window else 0
            for head in range(heads):
                shared = head * kv_heads // heads
                score = np.array([scale * q[head] @ keys[s][shared] for s in range(first, t + 1)])
                weight = np.exp(score - score.max())
                weight /= weight.sum()
                mixed[t, head * dim : (head + 1) * dim] = sum(
                    w * values[s][shared] for w, s in zip(weight, range(first, t + 1), strict=True)
                )
        for t in range(len(tokens)):
            x[t] = x[t] + residual * project(mixed[t], f"{block}.attn_output")
            x[t] = x[t] + residual * feed_forward(norm(x[t], tensors[f"{block}.ffn_norm.weight"]), block)
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return norm(x, tensors["output_norm.weight"]) @ head.T / ((granite and get("logit_scale")) or 1.0)


def _frequency(i, turning, get, divisors):
    """Radians a position of pair i, and the factor on the vector's length: plain, linear, llama 3 or yarn."""
    base = get("rope.freq_base", 10000.0)
    frequency = base ** (-2.0 * i / turning) / (1.0 if divisors is None else divisors[i])
    kind, factor = get("rope.scaling.type", "linear"), get("rope.scaling.factor", get("rope.scale_linear", 1.0))
    if kind == "linear":
        return frequency / factor, 1.0
    if kind != "yarn":
        return frequency, 1.0
    # YaRN by wavelengths (Peng et al. 2023, eq. 22-23, in ggml's variant: whole pairs, 32 and 1 turns)
    context = get("rope.scaling.original_context_length")
    turns = lambda n: turning * np.log(context / (n * 2 * np.pi)) / (2 * np.log(base))  # noqa: E731
    low, high = max(np.floor(turns(32.0)), 0), min(np.ceil(turns(1.0)), turning - 1)
    keep = 1 - min(max((i - low) / max(high - low, 0.001), 0), 1)
    return frequency * keep + frequency / factor * (1 - keep), 1 + 0.1 * np.log(factor)
