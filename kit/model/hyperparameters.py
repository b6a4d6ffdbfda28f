"""The hyperparameters of a file from its metadata, checked against its table of tensors."""

import math
from dataclasses import replace

from kit.errors import ModelError, install
from kit.gguf.cut import parts_of
from kit.gguf.foreign import check_model
from kit.gguf.names import layer_of
from kit.gguf.uses import predicting_layers
from kit.model.architectures import ARCHITECTURES, SIDECARS
from kit.model.check import check_file, check_tensors
from kit.model.config import Config, HeadConfig
from kit.model.keys import MAX_LAYERS, ModelKeys
from kit.model.layers import BALANCED, FEED_FORWARD, KINDS, MIXERS, STREAMS, AltUp, Balanced, Bank, Hyper, Layer, PerLayerInput
from kit.model.layers.rope import RopeConfig

BY_TRANSFORMERS = {"bloom", "gpt2", "t5", "t5encoder"}  # architectures that it maps and the kit has no pass for


def read_config(file) -> Config:
    """The hyperparameters of ``file`` (a GGUFFile), checked against its tensor table; no tensor data is read.

    Raises ModelError for an unknown architecture, a missing or invalid key, and a tensor that is missing or whose shape
    contradicts the keys.
    """
    check_model(file)
    embedding = file.tensors.get("token_embd.weight")
    config = described_config(file, embedding.shape[0] if embedding else 0, "output.weight" not in file.tensors)
    check_file(file, config)
    return config


def head_config(file) -> HeadConfig:
    """``read_config`` of the file's first MTP head: its layers are those of the model and one more, which alone runs.

    Raises ModelError for a file without one, or with one that kit does not run."""
    family = ARCHITECTURES.get(file.architecture)
    layers = sorted({layer_of(name) for name in file.tensors if ".nextn." in name})
    if not layers or not predicting_layers(file):
        raise ModelError(f"{file.path}: it has no MTP head: give ngram, or the file of a smaller model")
    if family is None or not family.head:
        runs = ", ".join(name for name, row in ARCHITECTURES.items() if row.head)
        raise ModelError(
            f"{file.path}: kit runs no MTP head of {file.architecture!r}, only of {runs}: give ngram, or the file of a smaller "
            "model"
        )
    model = read_config(file)
    if layers[0] != len(model.layers):
        raise ModelError(f"{file.path}: the MTP head of layer {len(model.layers)} is not in the file: convert the model again")
    facts = Facts(file, family, model.vocabulary, heads=1)
    names = {name.partition(".nextn.")[2] for name in file.tensors if layer_of(name) == layers[0]}
    own = frozenset(name.removesuffix(".weight") for name in names)
    config = HeadConfig(**vars(model) | {"layers": (*model.layers, facts.layer(layers[0]))}, own=own)
    check_tensors(file, config, "the MTP head")
    return config


def described_config(file, vocabulary: int, tied: bool) -> Config:
    """The Config from ``file.architecture`` and ``file.metadata`` alone; the file need not exist yet."""
    family = ARCHITECTURES.get(file.architecture)
    if file.architecture in SIDECARS:
        raise ModelError(f"{file.path}: a drafter ({file.architecture}) without its model: nothing runs it alone")
    if family is None:
        mapped = file.architecture in BY_TRANSFORMERS
        through = f"run it through transformers (kit.hf; {install('hf')}), or " if mapped else ""
        raise ModelError(
            f"{file.path}: architecture {file.architecture!r} is not supported: {through}use kit explain, which works on any "
            f"file; kit itself runs {', '.join(ARCHITECTURES)}"
        )
    facts = Facts(file, family, vocabulary)
    keys = facts.keys
    config = Config(
        architecture=file.architecture,
        family=family,
        vocabulary=vocabulary,
        layers=tuple(map(facts.layer, range(facts.count))),
        hidden_size=facts.hidden_size,
        context=keys.count("context_length"),
        norm_eps=keys.number(f"attention.layer_norm_{'rms_' if family.layer_norm in ('', 'rms') else ''}epsilon"),
        embedding_scale=facts.multiplier("embedding_scale", math.sqrt(facts.hidden_size) if family.root_scaled else 1.0),
        residual_scale=facts.multiplier("residual_scale", 1.0),
        logit_scale=1 / (keys.number("logit_scale", 0) or 1.0)
        if family.logits_multiplied
        else facts.multiplier("logit_scale", 1.0),
        logit_cap=facts.soft_cap("final_logit_softcapping", family.soft_caps[1]),
        tied=tied,
    )
    own = {pattern for layer in config.layers for kind in layer[:2] for pattern in kind.metadata}
    keys.check_all_read({pattern for kind in KINDS for pattern in kind.metadata} - own)
    return config


class Facts:
    """What the kinds of a file's layers are made from: its metadata (``keys``), its architecture's row (``family``), and what
    several kinds need, by layer where it may differ by layer.

    ``numbers``: the layers' numbers in the whole model, of which the file may be a part (kit.gguf.cut); rules by period count
    these. ``heads``: of the layers that predict further tokens, which attend, these are among them.
    """

    def __init__(self, file, family, vocabulary: int = 0, heads: int = 0):
        self.vocabulary = vocabulary
        self.file, self.keys, self.stored = file, (keys := ModelKeys(file)), getattr(file, "tensors", ())
        if family.qk_norm == "stored":
            family = replace(family, qk_norm="head" if "blk.0.attn_q_norm.weight" in self.stored else "")
        self.family, self.hidden_size = family, keys.count("embedding_length")
        if not keys.flag("attention.causal", True):
            keys.fail(
                "attention.causal", "true: the kit runs models that continue a text", "is false, as of an embedding model"
            )
        blocks = keys.count("block_count", most=MAX_LAYERS)
        further = keys.count("nextn_predict_layers", 0, most=blocks - (heads < blocks))  # layers that predict further tokens
        self.count = blocks - further
        model, self.count = self.count, self.count + heads
        self.numbers, self.whole = parts_of(file, self.count)
        least = 0 if family.alone or family.skipping else 1
        self.heads = keys.by_layer("attention.head_count", self.count, least=least)
        self.kv_heads = keys.by_layer("attention.head_count_kv", self.count, self.heads, least)
        every = keys.count("full_attention_interval", family.period) if family.recurrent else 0
        self.recurrent = [
            bool(family.recurrent) and place < model and (not kv_heads or (every > 0 and (number + 1) % every > 0))
            for place, (number, kv_heads) in enumerate(zip(self.numbers, self.kv_heads, strict=True))
        ]
        self.head_dim = keys.count("attention.key_length", max(1, self.hidden_size // max(1, *self.heads)), least=1)
        self.experts = keys.count("expert_count", 0)
        expert_size = keys.count("expert_feed_forward_length", 0) if self.experts else 0
        sizes = (expert_size,) * self.count if expert_size else None
        self.dense_size = keys.by_layer("feed_forward_length", self.count, sizes, least)
        if family.halved:
            self.dense_size = [size // 2 for size in self.dense_size]
        if family.alibi == self.whole:
            keys.fail(
                "block_count", f"other than {family.alibi}, because such a model has ALiBi, which kit does not run", "is that"
            )
        keys.same("num_loops", 1, "because a model whose layers run several times has keys and values for each")
        self._unsaid = {
            "embedding_scale": 12.0,
            "residual_scale": 1.4 / math.sqrt(self.whole),
            "logit_scale": self.hidden_size / 256,  # as the model has it: llama.cpp divides minicpm's where this multiplies
        }
        self._unsaid = self._unsaid if family.mup else {}  # the first files of minicpm lack these keys
        self.rope, self.local_rope = self._ropes()
        window = keys.count("attention.sliding_window", *() if family.period < 0 else (0,))
        if family.chunk:
            keys.same("attention.sliding_window", family.chunk, "the positions of a chunk in every such model")
            window = family.chunk
        self.windows = [window if each else 0 for each in keys.local(family.period, self.numbers)]
        self.local_dim = keys.count("attention.key_length_swa", self.head_dim, least=1) if family.local_sized else self.head_dim
        self.head_dims = [self.local_dim if each else self.head_dim for each in self.windows]
        own = self.whole - (keys.count("attention.shared_kv_layers", 0) if family.per_layer else 0)
        self.sources = [self._source(layer, own) for layer in range(self.count)]
        self.per_layer_size = keys.count("embedding_length_per_layer_input", 0) if family.per_layer else 0

    def _source(self, layer: int, own: int) -> int | None:
        """The layer whose keys and values a layer attends to: from number ``own`` on the last before with as large a window.
        None: its own."""
        others = [n for n in range(layer) if self.numbers[n] < own and self.windows[n] == self.windows[layer]]
        return others[-1] if others and self.numbers[layer] >= own else None

    def number_of(self, key: str, layer: int, default: float) -> float:
        """A number of at least 0 that a file says for all layers or for each block."""
        if not self.keys.is_list(key):
            return self.keys.number(key, default)
        blocks = self.keys.count("block_count", most=MAX_LAYERS)
        return float(self.keys.numbers(key, length=blocks, least=0)[layer])

    def shape_of(self, layer: int, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """``shape``, or as the file has that tensor of the layer, if it differs by axes of one element alone."""
        info = self.stored[f"blk.{layer}.{name}"] if f"blk.{layer}.{name}" in self.stored else None
        alike = info is not None and [n for n in info.shape if n > 1] == [n for n in shape if n > 1]
        return tuple(info.shape) if alike else shape

    def layer(self, layer: int) -> Layer:
        """The kinds of a layer."""
        family, keys = self.family, self.keys
        dense, step = keys.count("leading_dense_block_count", 0), keys.count("interleave_moe_layer_step", 1, least=1)
        routed = self.experts > 0 and layer >= dense and (self.numbers[layer] + 1) % step == 0
        if family.routed_stored and self.stored:
            routed = f"blk.{layer}.ffn_gate_inp.weight" in self.stored
        mixer = family.recurrent if self.recurrent[layer] else family.mixer
        network = "dense" if not routed else "dense and mixture" if family.beside else "mixture"
        norms = family.norms
        if family.alone and self.dense_size[layer]:
            mixer, norms = "none", ("", "", *norms[:2])
        elif family.alone or (family.skipping and not self.dense_size[layer]):
            network, norms = "none", (*norms[:2], "", "")
        if family.skipping and not self.kv_heads[layer]:
            mixer = "one matrix" if self.heads[layer] else "none"
            norms = norms if self.heads[layer] else ("", "", *norms[2:])
        parallel, second = False, family.parallel
        if second == "use_parallel_residual":
            parallel = keys.flag(second)
        elif second and f"blk.{layer}.{second}.weight" in self.stored:
            parallel, norms = True, (second, *norms[1:])
        return Layer(
            MIXERS[mixer].of(self, layer),
            FEED_FORWARD[network].of(self, layer),
            norms,
            self.hidden_size,
            bool(family.layer_norm),
            family.layer_norm == "bare",
            PerLayerInput(self.hidden_size, self.whole, self.per_layer_size) if self.per_layer_size else None,
            parallel,
            self._hyper(layer),
            family.per_layer and not family.streams,
        )

    def _hyper(self, layer):
        if not self.family.streams:
            return None
        keys = self.keys
        if self.family.streams == "banked":
            return Bank.of(self, layer)
        if self.family.streams == "alternating":
            keys.same("altup.num_inputs", STREAMS, "as in every such model")
            keys.same("altup.active_idx", 0, "as in every such model")
            return AltUp(self.hidden_size)
        streams = keys.count("hyper_connection.count", least=2)
        if self.family.streams in ("balanced", "averaged", "unmixed"):
            keys.same("hyper_connection.count", BALANCED, "as in every such model")
            if self.family.streams == "unmixed":
                epsilon, magnitude = (keys.number(f"hyper_connection.{name}") for name in ("epsilon", "magnitude"))
                if not magnitude:
                    keys.fail("hyper_connection.magnitude", "above 0, because else no network would count", "is 0")
                return Balanced(self.hidden_size, 0, epsilon, magnitude=magnitude)
            turns = keys.count("hyper_connection.sinkhorn_iterations")
            return Balanced(self.hidden_size, turns, keys.number("hyper_connection.epsilon"), self.family.streams == "averaged")
        rank = keys.count("hyper_connection.low_rank")
        shape = getattr(self.stored[name], "shape", ()) if (name := f"blk.{layer}.hc_attn_norm.weight") in self.stored else ()
        return Hyper(self.hidden_size, streams, rank, len(shape) == 1)

    def _ropes(self) -> tuple[RopeConfig, RopeConfig]:
        """RoPE of the layers without a window, and of those with one."""
        keys, family = self.keys, self.family
        positions = (
            keys.flag("rope.scaling.finetuned", True) or family.mup or not family.scaled
        )  # granite without RoPE sets it to false
        dims = keys.count("rope.dimension_count", self.head_dim, least=not family.latent_still)
        rope = _rope(keys, dims if positions else 0, family.long)
        if family.long_scale and "rope_factors_long.weight" in self.stored:
            rope = replace(rope, attention_factor=family.long_scale)
        if family.growing:
            grown, multiplier = rope.grown, keys.number("rope.scaling.yarn_log_multiplier", 0)
            if rope.yarn and multiplier:
                rope = replace(rope, attention_factor=rope.attention_factor / (1 + 0.1 * multiplier * grown))
            rope = replace(rope, growth=keys.number("attention.temperature_scale", 0))
        if keys.is_list(key := "rope.dimension_sections"):
            sections = keys.numbers(key, least=0, most=2**31 - 1, whole=True)
            if len(sections) > 3 and sections[3]:
                keys.fail(
                    key, "sections of which the fourth is empty, because text has no fourth position", f"has {sections[3]}"
                )
        elif key in keys:
            keys.count(key)
        stretch = {} if family.local_scaled else {"factor": 1.0, "yarn": False}
        if rope.yarn and stretch:
            stretch["attention_factor"] = 1.0
        dims = keys.count("rope.dimension_count_swa", rope.dims, least=1) if family.local_sized else rope.dims
        said = family.period and family.local_base is not None
        base = keys.number("rope.freq_base_swa", family.local_base, above=0.0) if said else 0.0
        local = replace(rope, dims=dims, base=base or rope.base, divided=family.local_divided, **stretch)
        return replace(rope, dims=rope.dims // 2) if family.global_half else rope, local

    def rope_of(self, layer: int) -> RopeConfig | None:
        """RoPE of this layer; None: it has none."""
        every, local = self.family.no_rope_every, self.windows[layer] > 0
        every_rope = self.family.global_rope or not any(self.windows)
        if (every and (self.numbers[layer] + 1) % every == 0) or not (every_rope or local) or not self.rope.dims:
            if not self.family.chunk:
                return None
            growing = dict(dims=0, still=self.head_dim, growth=0.1, every=self.family.chunk, ahead=1)
            return replace(self.rope, yarn=False, attention_factor=1.0, **growing)
        return self.local_rope if local else self.rope

    def multiplier(self, key: str, default: float) -> float:
        """One of the multipliers that granite's files have; 0 means none, as in llama.cpp, but for ``logit_scale``, by which
        logits are divided."""
        if not self.family.scaled:
            return self._unsaid.get(key, default)
        if key == "logit_scale":
            return self.keys.number(key, self._unsaid.get(key, default), above=0.0)
        return self.keys.number(key, 0) or default if key in self.keys else self._unsaid.get(key, default)

    def soft_cap(self, key: str, default: float | None) -> float:
        """A soft cap, of scores or logits; 0: none. A family that caps its scores has both in every file."""
        if default is None:
            return 0.0
        return self.keys.number(key, default, above=0.0 if self.family.soft_caps[0] else -math.inf)

    def attention_scale(self, width: int, sharper: float = 1.0) -> float:
        """The factor of scores, of queries of ``width`` elements."""
        if self.whole == self.family.hidden_scaled:
            width = self.hidden_size / self.heads[0]
        scale = sharper * width**-0.5
        return scale if self.family.mup else self.multiplier("attention.scale", scale)

    def sharpened(self, rope: RopeConfig) -> tuple[RopeConfig, float]:
        """(RoPE, factor of the scores) of DeepSeek's YaRN: where others scale the rotated vectors it scales all scores."""
        if not rope.yarn:
            for key, number in (("factor", rope.factor), ("attn_factor", rope.attention_factor)):
                if (self.family.latent_grows or self.family.mixer == "sparse latent") and number != 1:
                    self.keys.fail(f"rope.scaling.{key}", "1 without YaRN, because programs differ on it", f"is {number:g}")
            return rope, 1.0
        grown, multiplier = rope.grown, self.keys.number("rope.scaling.yarn_log_multiplier", 0)
        if multiplier:
            rope = replace(rope, attention_factor=rope.attention_factor / (1 + 0.1 * grown))
        length = rope.attention_factor * (1 + 0.1 * grown) * (1 + multiplier * grown)
        return rope, length * length


def _rope(keys, dims, long) -> RopeConfig:
    scaling = keys.text("rope.scaling.type", "linear", ("none", "linear", "yarn", "longrope"))
    factor, old = (keys.number(key, 0) for key in ("rope.scaling.factor", "rope.scale_linear"))
    if scaling == "none" and (factor or old or 1.0) != 1.0:  # of which llama.cpp ignores one or the other, by layer
        keys.fail("rope.scaling.type", f"linear or yarn where there is a factor of {factor or old:g}", "is 'none'")
    yarn, context = scaling == "yarn", keys.count("context_length")
    return RopeConfig(
        dims=dims,
        base=keys.number("rope.freq_base", 10000.0, above=1.0 if yarn else 0.0),
        factor=1.0 if scaling == "none" else factor or old or 1.0,
        yarn=yarn,
        original_context=keys.count("rope.scaling.original_context_length", 0) or context,
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, above=0.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, above=0.0),
        long=long or scaling == "longrope",
    )
