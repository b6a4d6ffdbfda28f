"""The architectures that the transformer runs: one table with a row for each."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Architecture:
    """The differences between families; all have RoPE, and but for the rows that say otherwise RMSNorm, grouped-query
    attention and gated feed-forward layers.

    ``rope``: the pairs of elements that RoPE rotates: ``"interleaved"`` (2i and 2i+1; the GGUF converter permutes llama's
    q and k for it) or ``"neox"`` (i and i + half). ``norms``: names of a block's norms, "" for none: before attention,
    after it, before the feed-forward layer, after it; those after come before the residual sum. One name before both: both
    take the same input. A name that ends in "." has no ".weight" in files.
    """

    rope: str = "interleaved"
    norms: tuple[str, str, str, str] = ("attn_norm", "", "ffn_norm", "")
    # LayerNorm in place of RMSNorm: "weighted", with biases if the file has them; "rms": with RMSNorm's epsilon; "bare"
    layer_norm: str = ""
    # norm of queries and keys before RoPE: by "head", over "all" heads, by head where "stored"; "after" it; "bare": after it,
    # without weights, where there is RoPE; "turned": of latent attention, the elements of keys with RoPE
    qk_norm: str = ""
    fused: tuple[str, ...] = ()  # "attn": attn_qkv is the rows of q, k and v; "ffn": ffn_up is those of gate and up
    mixer: str = "attention"  # of kit.model.layers.MIXERS; "latent": keys and values are projections of one latent (MLA)
    recurrent: str = ""  # of MIXERS: that of layers without KV heads, and of all but the last in each group of ``period``
    skipping: bool = False  # a layer without heads has no mixer, one without KV heads a matrix, one without a size no network
    alone: bool = False  # a layer is a network where feed_forward_length says its size, and a mixer elsewhere
    mamba_norms: bool = False  # of a Mamba layer: step, B and C are normed by weights of the file
    grouped: bool = False  # of a delta net: value heads, and their two gates, follow one another by key head
    delta_sigmoids: bool = False  # of a delta net: what it gives is multiplied by sigmoids, not by silu
    # The residual has several streams (hyper-connections): "low rank", "balanced", "averaged" (balanced ones whose mean is the
    # end), "unmixed" (with each other), "alternating", or "banked" (one, that begins anew after some layers, whose inputs are
    # kept).
    streams: str = ""
    hashed: bool = False  # files say how many layers have a table of the experts of each token
    limited_dense: bool = False  # dense networks too, as the shared one
    # files may limit gates, and what they multiply: gates "before" the activation, in "routed" experts alone, or "after" it
    limited: str = ""
    output_gated: bool = False  # attention: attn_q has a query and a gate for each head
    value_norm: bool = False  # attention: values are normed by head
    values_are_keys: bool = False  # attention: of a layer without attn_v
    per_layer: bool = False  # layers have further embeddings, and scale their output, if the file has the tensors (Gemma 4)
    routed_stored: bool = False  # a layer is a mixture if the file has a router of it
    share_inside: bool = False  # a mixture: an expert's share multiplies what it takes, not what it gives
    beside: bool = False  # a mixture's layer has a dense network too
    last_norm: str = "output_norm"
    shared_always: bool = False  # a mixture: there is an expert of all tokens, as large as another
    shared_gated: bool = False  # a mixture: what the expert of all tokens gives is multiplied by a sigmoid
    # how shares come from a router's scores, if the file does not say: softmax (1), sigmoid (2), sqrt(softplus) (4), or
    # kit.gguf.keys.SPARSEMIXER (-1); this module imports nothing of NumPy, for `kit --help`
    gating: int = 1
    normed: bool = True  # the shares of the chosen experts sum to 1; False: if the file says so
    gating_said: bool = False  # files may say ``gating``
    shares_said: bool = False  # files may say whether shares sum to 1, and a factor of them
    gated: bool = True  # False: no ffn_gate, the activation is that of ffn_up
    activation: str = (
        "silu"  # of the gate, or "gelu" (by tanh), "clamped" (gpt-oss), "situ"; without one "gelu", "squared_relu"
    )
    logits_multiplied: bool = False  # by logit_scale, which divides them elsewhere
    scaled: bool = False  # granite's four multipliers are read from the metadata
    mup: bool = False  # files that lack the multipliers of embeddings, layers and logits have 12, 1.4/sqrt(layers), 256/hidden
    root_scaled: bool = False  # embeddings are multiplied by sqrt(hidden_size)
    hidden_scaled: int = 0  # a model with this number of layers scales queries by (hidden_size / heads)^-0.5
    soft_caps: tuple = (None, None)  # of scores and of logits, if the file has none, 0: no cap; None: no file has one
    clamped: bool = False  # a file may limit queries, keys and values
    gate: str = ""  # of what attention gives, a sigmoid of a product with its input: by "head", by "element"
    sinks: str = ""  # attention sinks, a further logit of each head in the softmax without a value: "always", or where "stored"
    values_sized: bool = False  # attention: values have a size of their own, and files may say a factor of them
    chunk: int = 0  # layers with a window attend within chunks of so many positions, by which others' queries grow
    period: int = (
        0  # in each group of this many layers the last attends to all positions; 0: all have the window; -1: by the file
    )
    scale: float = 0.0  # of scores; 0: head_dim^-0.5
    local_divided: bool = True  # the divisors of RoPE's frequencies apply to layers with a window too
    local_sized: bool = False  # heads of layers with a window may have a size of their own
    local_base: float | None = 0.0  # RoPE base of layers with a window; 0: that of the others; None: no file says another
    long_scale: float = 0.0  # of what RoPE turns, in files that have LongRoPE's divisors; 0: as files say
    long: bool = False  # RoPE's divisors are LongRoPE's in every file; elsewhere where rope.scaling.type says so
    local_scaled: bool = True  # RoPE scaling applies to layers with a window too
    global_half: bool = False  # RoPE of layers without a window turns half as many elements
    global_rope: bool = True  # False: in a model of which layers have a window those without one have no RoPE
    growing: bool = False  # files may say how queries grow with the position, and a factor of YaRN's
    latent_still: bool = False  # latent attention has no RoPE
    bound_optional: bool = False  # of Kimi delta attention: files may say the least log of a decay
    one_gate: bool = False  # of Kimi delta attention: its gate comes from one matrix, ssm_g
    routed_latent: bool = False  # a mixture: files may say that experts take and give a latent
    full_gates: bool = False  # of Kimi delta attention: decay and gate come from one matrix each, not from two of low rank
    latent_grows: bool = False  # the same of latent attention, by a length of its own
    no_rope_every: int = 0  # in each group of this many layers the last has no RoPE; 0: all have it
    index_layout: str = ""  # of the pairs that RoPE rotates in index keys; "": as ``rope``
    index_types: bool = False  # files may say which layers choose positions
    index_last: bool = (
        False  # RoPE turns the last elements of index keys, whose norm has the epsilon of all; or no layer chooses
    )
    parallel: str = ""  # both networks take x as it was: if that key says so, or if a layer has that norm, attention's own
    halved: bool = False  # feed_forward_length counts the rows of gate and up together
    head: bool = False  # kit runs the MTP head of such a file: an attention layer over the state after the last norm
    alibi: int = 0  # a model with this number of layers has ALiBi, which the kit does not know


_LATE = ("attn_norm", "", "post_attention_norm", "")  # named after what it follows in the transformers library
_PARALLEL = ("attn_norm", "", "attn_norm", "")
_SANDWICH = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_SAID = dict(normed=False, gating_said=True, shares_said=True)
_QWEN35 = Architecture(
    "neox", _LATE, qk_norm="head", recurrent="delta net", period=4, output_gated=True, shared_gated=True, head=True
)  # fmt: skip

_PLAIN_GELU = dict(rope="neox", layer_norm="weighted", gated=False, activation="gelu")
_MIXED = dict(normed=False, shares_said=True)  # softmax, and files say whether shares sum to 1
_NEMOTRON_H = Architecture(
    recurrent="mamba2", alone=True, gated=False, activation="squared_relu", no_rope_every=1
)  # fmt: skip

# Drafters in files of their own, which read what another model has computed -> its architecture; "": kit does not run them
SIDECARS = {"dflash": "", "eagle3": "", "gemma4-assistant": "gemma4"}

# Biases, tied embeddings, the size of the window, RoPE scaling and experts follow from a file's tensors and metadata in
# every architecture. Files of Mistral's first models name the architecture llama or mistral.
ARCHITECTURES = {
    "llama": Architecture(),
    "mistral": Architecture(),
    "mistral3": Architecture(growing=True),
    "internlm2": Architecture(),
    "exaone": Architecture("neox"),
    "ernie4_5": Architecture(),
    "ernie4_5-moe": Architecture(),
    "granite": Architecture(scaled=True),
    "granitemoe": Architecture(scaled=True),
    "minicpm": Architecture(scaled=True, mup=True),
    "qwen2": Architecture("neox"),
    "qwen2moe": Architecture("neox", shared_gated=True, normed=False),
    "qwen3": Architecture("neox", qk_norm="head"),
    "qwen3moe": Architecture("neox", qk_norm="head"),
    "qwen3vl": Architecture("neox", qk_norm="head"),
    "qwen3vlmoe": Architecture("neox", qk_norm="head"),
    "olmoe": Architecture("neox", qk_norm="all", normed=False),
    "minimax-m2": Architecture("neox", qk_norm="all", gating=2, gating_said=True),
    "hunyuan-moe": Architecture("neox", qk_norm="after"),
    "bailingmoe2": Architecture("neox", qk_norm="head", fused=("attn",), gating=2, **_SAID),
    "exaone4": Architecture(
        "neox", ("", "post_attention_norm", "", "post_ffw_norm"), qk_norm="head", period=4, global_rope=False
    ),
    "deepseek2": Architecture(mixer="latent", latent_grows=True, **_SAID),
    "mistral4": Architecture(mixer="latent", latent_grows=True, **_SAID),
    "glm-dsa": Architecture(mixer="sparse latent", index_types=True, gating=2, **_SAID),
    "deepseek32": Architecture(mixer="sparse latent", index_layout="neox", gating=2, **_SAID),
    "dots3note": Architecture(
        mixer="sparse latent", qk_norm="turned", period=-1, gate="head", index_types=True, gating=2, **_SAID
    ),
    "hy_v4": Architecture(
        "neox", mixer="sparse latent", streams="unmixed", limited="routed", gate="element", sinks="always", index_types=True,
        index_last=True, gating=2, **_SAID,
    ),
    "kimi-linear": Architecture(
        mixer="latent", recurrent="kimi delta", latent_still=True, gating=2, gating_said=True, shares_said=True
    ),
    "bailingmoe3": Architecture(
        mixer="latent", recurrent="kimi delta", gate="head", full_gates=True, gating=2, **_SAID
    ),
    "qwen4exp": replace(
        _QWEN35, norms=("", "", "", ""), mixer="sparse attention", delta_sigmoids=True, streams="low rank", head=False
    ),
    "deepseek4": Architecture(mixer="compressed", streams="balanced", hashed=True, limited="before", gating=4, **_MIXED),
    "glm5-next": Architecture(
        mixer="pooled latent", recurrent="kimi delta", latent_still=True, bound_optional=True, streams="averaged",
        limited="before", limited_dense=True, index_types=True, gating=2, **_SAID,
    ),
    "kimi-k3": Architecture(
        mixer="latent", recurrent="kimi delta", latent_still=True, bound_optional=True, one_gate=True, gate="element",
        streams="banked", activation="situ", routed_latent=True, gating=2, **_SAID,
    ),
    "deci": Architecture(skipping=True),
    "qwen2vl": Architecture("neox"),
    "paddleocr": Architecture("neox"),
    "hunyuan_vl": Architecture("neox", qk_norm="after"),
    "exaone-moe": Architecture(
        "neox", qk_norm="head", period=4, global_rope=False, local_base=None, gating=2, **_SAID
    ),
    "hy_v3": Architecture("neox", qk_norm="head", gating=2, **_SAID),
    "bailingmoe": Architecture(**_MIXED),
    "deepseek": Architecture(**_MIXED),
    "deepseek2-ocr": Architecture("neox", **_MIXED),
    "mellum": Architecture("neox", qk_norm="head", period=4, local_scaled=False, local_base=None),
    "dbrx": Architecture(
        "neox", ("attn_norm", "", "attn_output_norm", ""), layer_norm="weighted", fused=("attn",), clamped=True
    ),
    "arcee": Architecture(gated=False, activation="squared_relu"),
    "maincoder": Architecture(qk_norm="after"),
    "baichuan": Architecture(alibi=40),
    "xverse": Architecture(),
    "nanbeige": Architecture(),
    "orion": Architecture("neox", layer_norm="weighted"),
    "pangu-embedded": Architecture("neox"),
    "chatglm": Architecture(fused=("attn", "ffn")),
    "jais2": Architecture("neox", layer_norm="weighted", gated=False, activation="squared_relu"),
    "plamo": Architecture("neox", _PARALLEL),
    "plamo3": Architecture(
        "neox", ("attn_norm", "post_attention_norm.", "ffn_norm", "post_ffw_norm."), qk_norm="head",
        fused=("attn", "ffn"), period=8, local_base=10000.0, local_scaled=False,
    ),
    "openelm": Architecture("neox", qk_norm="head", fused=("attn",)),
    "plm": Architecture(mixer="latent", gated=False, activation="squared_relu"),
    "minicpm3": Architecture("neox", mixer="latent", mup=True),
    "qwen": Architecture("neox", fused=("attn",), halved=True),
    "falcon": Architecture(norms=_PARALLEL, fused=("attn",), parallel="attn_norm_2", **_PLAIN_GELU),
    "codeshell": Architecture(**_PLAIN_GELU),
    "gptneox": Architecture(fused=("attn",), parallel="use_parallel_residual", **_PLAIN_GELU),
    "glm4": Architecture(norms=_SANDWICH, fused=("ffn",)),
    "glm4moe": Architecture("neox", _LATE, qk_norm="stored", gating=2, head=True, **_SAID),
    "dots1": Architecture("neox", qk_norm="head", **_SAID),
    "hunyuan-dense": Architecture("neox", qk_norm="after"),
    "command-r": Architecture(norms=_PARALLEL, layer_norm="weighted", logits_multiplied=True),
    "cohere2": Architecture(
        norms=_PARALLEL, layer_norm="weighted", logits_multiplied=True, period=4, global_rope=False,
        local_base=None,
    ),
    "olmo": Architecture(layer_norm="bare", clamped=True),
    "stablelm": Architecture("neox", layer_norm="weighted"),
    "starcoder2": Architecture("neox", layer_norm="weighted", gated=False, activation="gelu"),
    "phi2": Architecture("neox", _PARALLEL, layer_norm="weighted", fused=("attn",), gated=False, activation="gelu"),
    "nemotron": Architecture("neox", layer_norm="weighted", gated=False, activation="squared_relu"),
    "phi3": Architecture("neox", fused=("attn", "ffn"), long=True),
    "phimoe": Architecture(  # Phi-3.5-MoE alone has LongRoPE, and a scale that files do not have
        "neox", layer_norm="rms", gating=-1, normed=False, long=True, long_scale=1.243163121016122
    ),
    "smollm3": Architecture(no_rope_every=4),
    "olmo2": Architecture(
        "neox", ("", "post_attention_norm", "", "post_ffw_norm"), qk_norm="all", period=4, local_scaled=False,
        local_base=None,
    ),
    "seed_oss": Architecture("neox", _LATE),
    "gemma": Architecture("neox", activation="gelu", root_scaled=True),
    "gemma2": Architecture(
        "neox", _SANDWICH, activation="gelu", root_scaled=True, hidden_scaled=46, soft_caps=(50.0, 30.0), period=2
    ),
    "gemma3": Architecture(
        "neox", _SANDWICH, qk_norm="head", activation="gelu", root_scaled=True, hidden_scaled=62,
        period=6, local_base=10000.0, local_scaled=False, soft_caps=(None, 0.0),
    ),
    "gemma4": Architecture(
        "neox", _SANDWICH, qk_norm="head", activation="gelu", root_scaled=True, value_norm=True, values_are_keys=True,
        scale=1.0, per_layer=True, beside=True, period=6, local_sized=True, local_base=10000.0, local_scaled=False,
        local_divided=False, soft_caps=(None, 30.0),
    ),
    "gemma3n": Architecture(
        "neox", _SANDWICH, qk_norm="head", activation="gelu", root_scaled=True, value_norm=True, scale=1.0, per_layer=True,
        streams="alternating", period=5, local_base=10000.0, local_scaled=False, soft_caps=(None, 30.0),
    ),
    "lfm2": Architecture("neox", qk_norm="head", recurrent="short convolution", last_norm="token_embd_norm"),
    "lfm2moe": Architecture(
        "neox", qk_norm="head", recurrent="short convolution", last_norm="token_embd_norm", gating=2, gating_said=True
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35,
    "qwen3next": replace(_QWEN35, grouped=True),
    "granitehybrid": Architecture(scaled=True, recurrent="mamba2"),
    "mamba2": Architecture(recurrent="mamba2", alone=True),
    "mamba": Architecture(recurrent="mamba", alone=True),
    "jamba": Architecture(recurrent="mamba", mamba_norms=True, no_rope_every=1, normed=False, routed_stored=True),
    "falcon-h1": Architecture("neox", ("attn_norm", "", "ffn_norm.", ""), mixer="attention and mamba2"),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": replace(_NEMOTRON_H, gating=2, normed=False, shares_said=True),
    "step35": Architecture(
        "neox", qk_norm="stored", period=-1, local_divided=False, local_scaled=False, local_base=10000.0, global_half=True,
        gate="head", limited="after", limited_dense=True, routed_stored=True, gating=2, **_SAID,
    ),
    "afmoe": Architecture(
        "neox", _SANDWICH, qk_norm="head", root_scaled=True, period=4, no_rope_every=4, gate="element", gating=2, **_SAID
    ),
    "mimo2": Architecture(
        "neox", period=-1, local_base=10000.0, local_scaled=False, sinks="stored", values_sized=True, routed_stored=True,
        gating=2,
    ),
    "llama4": Architecture(
        qk_norm="bare", chunk=8192, period=4, no_rope_every=4, gating=2, normed=False, share_inside=True, shared_always=True
    ),
    "gpt-oss": Architecture("neox", _LATE, activation="clamped", sinks="always", period=2),
}  # fmt: skip
