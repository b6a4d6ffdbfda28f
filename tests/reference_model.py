"""An independent forward pass in float64 numpy: one function, position by position, from the papers; no code of kit."""

import numpy as np

# Whose neighbors in a head turn together.
PAIRS = ("llama", "mistral", "granite", "granitemoe", "smollm3", "internlm2", "ernie4_5", "minicpm")


def forward(tokens, metadata, tensors):
    """Logits (tokens, vocabulary), float64. ``metadata``: keys without the architecture's name; ``tensors``: by name."""
    tensors = {name: np.asarray(value, dtype=np.float64) for name, value in tensors.items()}
    arch = metadata["general.architecture"]
    get = lambda key, default=None: metadata.get(f"{arch}.{key}", default)  # noqa: E731
    granite = arch.startswith("granite") or arch == "minicpm"  # with multipliers
    heads = get("attention.head_count")
    kv_heads = get("attention.head_count_kv", heads)
    width = get("embedding_length")
    dim = get("attention.key_length", width // heads)
    eps = get("attention.layer_norm_rms_epsilon")
    window = get("attention.sliding_window", 0)
    scale = (granite and get("attention.scale")) or 1 / np.sqrt(dim)
    residual = (granite and get("residual_scale")) or 1.0
    turning = get("rope.dimension_count", dim)
    gemma, olmo = arch.startswith("gemma"), arch == "olmo2"
    oss, late = arch == "gpt-oss", arch in ("gpt-oss", "seed_oss")  # late: the norm after attention is the feed-forward's
    # of how many layers the last one has no window; the others say the window holds in all
    period = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "olmo2": 4}.get(arch)

    def norm(x, weight):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight

    def local(layer):
        return window > 0 and (period is None or (layer + 1) % period != 0)

    def turn(vector, position, layer):
        if arch == "smollm3" and layer % 4 == 3:
            return vector
        vector = vector.copy()
        half = turning // 2
        known = dict(metadata)
        if local(layer) and arch in ("gemma3", "olmo2"):  # trained with short contexts alone
            known[f"{arch}.rope.scaling.type"] = "none"
            known[f"{arch}.rope.freq_base"] = 10000.0 if gemma else get("rope.freq_base")
        of_layer = lambda key, default=None: known.get(f"{arch}.{key}", default)  # noqa: E731
        for i in range(half):
            frequency, length = _frequency(i, turning, of_layer, tensors.get("rope_freqs.weight"))
            a, b = (2 * i, 2 * i + 1) if arch in PAIRS else (i, i + half)
            cos, sin = np.cos(position * frequency) * length, np.sin(position * frequency) * length
            vector[a], vector[b] = vector[a] * cos - vector[b] * sin, vector[a] * sin + vector[b] * cos
        return vector

    def project(x, name):
        y = tensors[f"{name}.weight"] @ x
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def gated(x, gate, up, down):
        g, u = gate(x), up(x)
        if gemma:  # Hendrycks and Gimpel 2016, by tanh
            return down(g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u)
        if oss:
            g, u = np.minimum(g, 7), np.minimum(np.maximum(u, -7), 7) + 1
            return down(g / (1 + np.exp(-1.702 * g)) * u)
        return down(g / (1 + np.exp(-g)) * u)

    def feed_forward(x, block):
        def parts(suffix):
            return [lambda x, kind=kind: project(x, f"{block}.ffn_{kind}{suffix}") for kind in ("gate", "up", "down")]

        def expert(e):
            def apply(x, kind):
                name = f"{block}.ffn_{kind}_exps"
                return tensors[f"{name}.weight"][e] @ x + (tensors[f"{name}.bias"][e] if f"{name}.bias" in tensors else 0)

            return [lambda x, kind=kind: apply(x, kind) for kind in ("gate", "up", "down")]

        if arch == "phi3":
            half = len(tensors[f"{block}.ffn_up.weight"]) // 2
            both = lambda x: project(x, f"{block}.ffn_up")  # noqa: E731
            return gated(x, lambda x: both(x)[:half], lambda x: both(x)[half:], parts("")[2])
        if f"{block}.ffn_gate_inp.weight" not in tensors:
            return gated(x, *parts(""))
        score = project(x, f"{block}.ffn_gate_inp")
        score = np.exp(score - score.max())
        score /= score.sum()
        best = np.argsort(-score)[: get("expert_used_count")]
        y = sum(score[e] / score[best].sum() * gated(x, *expert(e)) for e in best)
        if f"{block}.ffn_up_shexp.weight" in tensors:
            y = y + gated(x, *parts("_shexp"))
        return y

    def maybe_norm(x, name):
        return norm(x, tensors[name]) if name in tensors else x

    x = tensors["token_embd.weight"][np.asarray(tokens)] * ((granite and get("embedding_scale")) or 1.0)
    if gemma:
        x = x * np.sqrt(width)
    for layer in range(get("block_count")):
        block = f"blk.{layer}"
        keys, values, mixed = [], [], np.empty((len(tokens), heads * dim))
        for t in range(len(tokens)):
            h = maybe_norm(x[t], f"{block}.attn_norm.weight")
            if arch == "phi3":
                q, k, v = np.split(project(h, f"{block}.attn_qkv"), [heads * dim, (heads + kv_heads) * dim])
            else:
                q, k, v = (project(h, f"{block}.attn_{part}") for part in "qkv")
            if olmo:
                q = norm(q, tensors[f"{block}.attn_q_norm.weight"])
                k = norm(k, tensors[f"{block}.attn_k_norm.weight"])
            q, k, v = (part.reshape(-1, dim) for part in (q, k, v))
            if not olmo and f"{block}.attn_q_norm.weight" in tensors:
                q = norm(q, tensors[f"{block}.attn_q_norm.weight"])
                k = norm(k, tensors[f"{block}.attn_k_norm.weight"])
            q, k = ([turn(head, t, layer) for head in part] for part in (q, k))
            keys.append(k)
            values.append(v)
            first = max(0, t - window + 1) if local(layer) else 0
            for head in range(heads):
                shared = head * kv_heads // heads
                score = np.array([scale * q[head] @ keys[s][shared] for s in range(first, t + 1)])
                if arch == "gemma2":
                    cap = get("attn_logit_softcapping")
                    score = cap * np.tanh(score / cap)
                if oss:
                    score = np.append(score, tensors[f"{block}.attn_sinks.weight"][head])
                weight = np.exp(score - score.max())
                weight = (weight / weight.sum())[: t + 1 - first]
                mixed[t, head * dim : (head + 1) * dim] = sum(
                    w * values[s][shared] for w, s in zip(weight, range(first, t + 1), strict=True)
                )
        for t in range(len(tokens)):
            y = project(mixed[t], f"{block}.attn_output")
            x[t] = x[t] + residual * (y if late else maybe_norm(y, f"{block}.post_attention_norm.weight"))
            y = feed_forward(maybe_norm(x[t], f"{block}.{'post_attention' if late else 'ffn'}_norm.weight"), block)
            x[t] = x[t] + residual * maybe_norm(y, f"{block}.post_ffw_norm.weight")
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    logits = norm(x, tensors["output_norm.weight"]) @ head.T / ((granite and get("logit_scale")) or 1.0)
    if arch == "gemma2":
        cap = get("final_logit_softcapping")
        logits = cap * np.tanh(logits / cap)
    return logits


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
