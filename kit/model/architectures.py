"""The architectures that the transformer runs: a row each, and what the columns mean."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """What differs between families that share RMSNorm, RoPE, grouped-query attention and gated feed-forward layers.

    ``rope``: which two elements of a head turn together: ``"interleaved"`` (2i and 2i+1; the GGUF converter permutes
    llama's q and k for it) or ``"neox"`` (i and i + half). ``norms``: the norms of a block, "" for none: before
    attention, after it (ahead of the residual sum), before the feed-forward layer, after it.
    """

    rope: str = "interleaved"
    norms: tuple[str, str, str, str] = ("attn_norm", "", "ffn_norm", "")
    qk_norm: str = ""  # RMSNorm before RoPE of each query and key "head", or of "all" heads of a token together
    fused: bool = False  # attn_qkv is q, k and v, one above the other, and ffn_up is gate and up
    activation: str = "silu"  # of the gate: "silu", "gelu" (by tanh), "clamped" (gpt-oss)
    scaled: bool = False  # granite's four multipliers are read from the metadata
    root_scaled: bool = False  # embeddings are multiplied by sqrt(hidden_size)
    hidden_scaled: int = 0  # with so many layers, queries are scaled as heads of hidden_size / heads elements
    soft_caps: tuple[float, float] = (0.0, 0.0)  # of scores and of logits, where the file does not say; 0: none
    sinks: bool = False  # a logit a head that takes its share of the softmax and has no value
    period: int = 0  # of so many layers the last sees all positions, the others the window; 0: all see the window
    local_base: float = 0.0  # RoPE base of the layers with a window; 0: that of the others
    local_scaled: bool = True  # their frequencies are stretched for long contexts, as those of the others
    unturned: int = 0  # every so many layers one has no RoPE; 0: none


_SANDWICH = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")

# Biases, tied embeddings, the width of a window, RoPE scaling and experts are no columns: the file shows them by its
# tensors and metadata, and any row may have them. Files of Mistral models call themselves llama or mistral.
ARCHITECTURES = {
    "llama": Architecture(),
    "mistral": Architecture(),
    "internlm2": Architecture(),
    "exaone": Architecture("neox"),
    "granite": Architecture(scaled=True),
    "granitemoe": Architecture(scaled=True),
    "qwen2": Architecture("neox"),
    "qwen3": Architecture("neox", qk_norm="head"),
    "qwen3moe": Architecture("neox", qk_norm="head"),
    "phi3": Architecture("neox", fused=True),
    "smollm3": Architecture(unturned=4),
    "olmo2": Architecture(
        "neox", ("", "post_attention_norm", "", "post_ffw_norm"), qk_norm="all", period=4, local_scaled=False
    ),
    "gemma2": Architecture(
        "neox", _SANDWICH, activation="gelu", root_scaled=True, hidden_scaled=46, soft_caps=(50.0, 30.0), period=2
    ),
    "gemma3": Architecture(
        "neox", _SANDWICH, qk_norm="head", activation="gelu", root_scaled=True, hidden_scaled=62,
        period=6, local_base=10000.0, local_scaled=False,
    ),
    "gpt-oss": Architecture(
        "neox", ("attn_norm", "", "post_attention_norm", ""), activation="clamped", sinks=True, period=2
    ),
}  # fmt: skip
