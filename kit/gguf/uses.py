"""The parts of a file that one token uses: whole matrices, some experts of each stack, one row of an embedding.

This is the only source of bytes per token: the roofline, the ways and the notebooks sum over it. It reads only the table of
tensors and the metadata, so it works for architectures that kit cannot run.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kit.gguf.cut import parts_of
from kit.gguf.names import layer_of

_ROWS = re.compile(  # a token takes one row of each
    r"(token_embd|per_layer_token_embd|position_embd|token_types|blk\.\d+\.(ffn_gate_tid2eid|\w+_compressor_ape))\.weight"
)
_KEYS = re.compile(r"blk\.\d+\.attn_(k|v|k_norm)\.")  # what a layer does not read that attends to another's keys and values
_UNUSED = re.compile(r"rope_|(v|a|mm|resampler)\.|blk\.\d+\.nextn\.")  # tables, other senses, layers for prediction
_STACK = re.compile(r"_(ch)?exps\.")  # experts, or chunks of them (grovemoe), whose biases are matrices
_ENDS = {"dec.output_norm": 0, "output_norm": 1, "output": 2, "cls": 3}  # what comes after the layers
_SHOWN = 4  # names of unknown tensors that a text says
_OTHER = "other"  # the place of a role without a row: between the projections of attention and its output
_ROLES = (
    "attn_norm attn_norm_2 attn_q_a attn_q_a_norm attn_q_b attn_q attn_kv attn_kv_a_mqa attn_kv_a_norm attn_kv_b attn_k_b "
    "attn_k attn_v_b attn_v attn_qkv attn_q_norm attn_k_norm attn_sinks attn_gate other attn_sub_norm attn_output "
    "attn_output_a attn_output_b attn_output_norm post_attention_norm ffn_norm ffn_gate_inp exp_probs_b ffn_gate_exps "
    "ffn_up_exps ffn_gate_up_exps ffn_down_exps ffn_gate_inp_shexp ffn_gate_shexp ffn_up_shexp ffn_down_shexp ffn_gate ffn_up "
    "ffn_sub_norm ffn_down post_ffw_norm_1 pre_ffw_norm_2 post_ffw_norm_2 post_ffw_norm layer_output_norm layer_output_scale"
).split()
_KNOWN = re.compile(  # further roles that a kind of layer, or a rule of this module, knows
    r"token_embd(_norm)?|per_layer_\w+|position_embd|token_types|(output_)?hc_\w+|ple_\w+|(attn|indexer)_compressor_\w+|ssm_\w+|shortconv\.\w+|indexer\.\w+"
    r"|inp_gate|proj|post_norm|altup_\w+|laurel_\w+|ffn_gate_tid2eid"
)
_PLACE = {role: place for place, role in enumerate(_ROLES)}


class Use(NamedTuple):
    """A tensor of which a token uses ``used`` of ``of`` equal pieces: experts of a stack, rows of an embedding, or all."""

    name: str
    elements: int
    nbytes: int
    used: int = 1
    of: int = 1

    @property
    def is_rows(self) -> bool:
        """Whether the pieces are rows of an embedding, which a cache of matrices does not hold."""
        return self.used < self.of and not _STACK.search(self.name)

    def share(self, tokens: int = 1) -> float:
        """The expected share of the pieces that ``tokens`` tokens use, if each chooses evenly and independently."""
        return self.used / self.of if tokens == 1 else 1 - (1 - self.used / self.of) ** tokens


def bytes_used(uses: Iterable[Use], width: float | None = None, tokens: int = 1) -> float:
    """Expected bytes of weights that ``tokens`` tokens processed together read: each piece once, as blocks of the file or at
    ``width`` bytes per weight."""
    return sum((use.nbytes if width is None else use.elements * width) * use.share(tokens) for use in uses)


def beyond(uses: Iterable[Use], room: float) -> float:
    """Bytes of blocks per token that ``room`` bytes cannot hold, if pieces are chosen evenly and independently: the most used
    pieces stay, and no cache without knowledge of the future does better."""
    missing = 0.0
    for use in sorted((use for use in uses if not use.is_rows), key=lambda use: -use.share()):
        held = min(use.nbytes, max(0.0, room))
        room -= held
        missing += (use.nbytes - held) * use.share()
    return missing


def count(file, key: str, default: int = 0) -> int:
    """The count ``<architecture>.<key>`` in a file's metadata; ``default`` if it is missing or differs between layers."""
    value = file.metadata.get(f"{file.architecture}.{key}", default)
    return value if isinstance(value, int) else default


def uses_of(file) -> list[Use]:
    """What a token uses, in order of use. ``file``: anything with architecture, metadata and tensors (shape, nbytes)."""
    unread, uses = unread_of(file), []
    for place, (name, info) in enumerate(file.tensors.items()):
        if info.elements and not unread(name):
            uses.append((_when(name), place, Use(name, info.elements, info.nbytes, *_pieces(file, name, info.shape))))
    return [use for *_, use in sorted(uses)]


def uses_of_layer(file, layer: int) -> list[Use]:
    """What a token would use of one layer, whether a decode reads it or not: that of an MTP head, which predicts further
    tokens, reads one row of an embedding of its own."""
    own = {name: info for name, info in file.tensors.items() if layer_of(name) == layer and info.elements}
    pieces = {
        name: (1, info.shape[0]) if ".embed_tokens." in name else _pieces(file, name, info.shape) for name, info in own.items()
    }
    return [Use(name, own[name].elements, own[name].nbytes, *pieces[name]) for name in sorted(own, key=_when)]


def head_uses(file) -> list[Use]:
    """What a drafted token uses of the file's first MTP head: its layer, and last the matrix of its logits, which is its own,
    the model's, or the embedding where that is the output. The file has such a head."""
    own = uses_of_layer(file, min(layer_of(name) for name in file.tensors if ".nextn." in name))
    matrix = next((use for use in own if ".nextn.shared_head_head." in use.name), None)
    if matrix is None:
        name = next(name for name in ("output.weight", "token_embd.weight") if name in file.tensors)
        matrix = Use(name, file.tensors[name].elements, file.tensors[name].nbytes)
    return [*(use for use in own if use.name != matrix.name and not use.is_rows), matrix]


def unread_of(file) -> Callable[[str], bool]:
    """Whether no token reads the tensor of a name."""
    predicting, shared = predicting_layers(file), count(file, "attention.shared_kv_layers")
    layers, text = count(file, "block_count") - predicting, "token_embd.weight" in file.tensors
    numbers, whole = parts_of(file, layers)

    def unread(name):
        layer = layer_of(name)
        others = 0 <= layer < len(numbers) and shared and numbers[layer] >= whole - shared  # their keys and values
        return (text and _UNUSED.match(name)) or (predicting and layer >= layers) or (others and _KEYS.match(name))

    return unread


def predicting_layers(file) -> int:
    """The number of layers at the end that predict further tokens: the file has their tensors, its metadata may name more."""
    said, layers = count(file, "nextn_predict_layers"), {layer_of(name) for name in file.tensors if ".nextn." in name}
    return min(said, len(layers))


def _pieces(file, name: str, shape) -> tuple[int, int]:
    """(used, of): how many equal pieces of a tensor a token uses, and has it."""
    tied = "output.weight" not in file.tensors and file.metadata.get(f"{file.architecture}.attention.causal", True)
    if _ROWS.fullmatch(name) and not (name == "token_embd.weight" and tied):
        ngrams = (count(file, "ple.ngram_size") - 1) * count(file, "ple.heads_per_ngram") if name.startswith("per_layer") else 1
        return max(1, ngrams), shape[0]
    if _STACK.search(name) and len(shape) > 1:
        return min(shape[0], count(file, "expert_used_count", shape[0])), shape[0]
    return (shape[0], shape[0]) if len(shape) == 3 else (1, 1)


def _when(name: str) -> tuple[int, int, int]:
    """A sort key for names in the order of their use: tensors before the layers, each layer's tensors by role, the end."""
    layer, role = layer_of(name.removeprefix("dec.")), name.rpartition(".")[0]
    if layer < 0:
        return (2, 0, _ENDS[role]) if role in _ENDS else (0, 0, 0)
    return 1, layer, _PLACE.get(role.partition(f"blk.{layer}.")[2], _PLACE[_OTHER])


def unknown_roles(uses: Iterable[Use]) -> list[str]:
    """Roles of tensors ("altup_proj" of ``blk.3.altup_proj.weight``) that no rule knows, each once, in order of use."""
    roles = (re.sub(r"^(enc|dec)\.|blk\.\d+\.", "", use.name).rpartition(".")[0] or use.name for use in uses)
    return [role for role in dict.fromkeys(roles) if role not in _PLACE and role not in _ENDS and not _KNOWN.fullmatch(role)]


def assumed(file, uses: list[Use]) -> str:
    """What this module assumes about the model, in words; "" for a dense model without layers for prediction."""
    stacks = [use for use in uses if use.used < use.of and not use.is_rows]
    text = []
    if stacks:
        dense, shared = count(file, "leading_dense_block_count"), any("_shexp." in use.name for use in uses)
        text.append(f"{stacks[0].used} of {stacks[0].of} experts a layer, drawn for each token"
                    + f", {dense} dense layer{'s' * (dense != 1)} first" * (dense > 0)
                    + ", and the shared experts" * shared)  # fmt: skip
    elif any(_STACK.search(use.name) and use.of > 1 for use in uses):
        text.append("all experts, because the file does not say how many a token uses")
    if unknown := unknown_roles(uses):
        more = f" and {len(unknown) - _SHOWN} more" * (len(unknown) > _SHOWN)
        text.append(f"a token reads all of each tensor that no rule of kit knows ({', '.join(unknown[:_SHOWN])}{more})")
    if predicting := predicting_layers(file):
        text.append(f"without the last {predicting} layer{'s' * (predicting != 1)}, which predict further tokens")
    return "; ".join(text)
