"""Every key ``<architecture>.*`` of every family, dropped, changed, added: the kit's logits are llama.cpp's, or it refuses."""

import os
from collections import Counter
from types import SimpleNamespace

import family_files
import gguf
import kind_files
import llama_cpp
import model_files
import numpy as np
import pytest
import row_files
import torch
from llama_referee import Referee

import kit
from kit.errors import ModelError
from kit.gguf import writer
from kit.model.architectures import ARCHITECTURES
from kit.model.hyperparameters import read_config

TOKENS = [int(token) for token in np.random.default_rng(3).integers(3, 250, 24)]
_TYPES = ("none", "linear", "yarn", "longrope")
_GROUPS = [group for group in vars(gguf.Keys).values() if isinstance(group, type)]
KNOWN = sorted(  # the keys of an architecture that gguf-py knows, without its name
    key.removeprefix("{arch}.")
    for group in _GROUPS
    for key in vars(group).values()
    if isinstance(key, str) and key.startswith("{arch}.")
)
WINDOW = "attention.sliding_window"
# Keys that the kit reads as transformers does (test_hf), and llama.cpp does not: YaRN's betas, and the window where all layers
# have it, as in phi3 and Mistral's first models, and in an exaone4 of other than 64 layers.
UNREAD = {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"}
# Variants in which kit follows the model's authors, and llama.cpp does not.
AUTHORS = (
    "without minicpm.logit_scale", "qwen2vl.attention.layer_norm_rms_epsilon = ",
    *(f"{how}gemma3n.{key}" for how in ("", "with ", "without ")
      for key in ("activation_sparsity_scale", "attention.shared_kv_layers", "final_logit_softcapping")),
)  # fmt: skip
CONTEXT, LAST = 256, 12  # of both passes; the positions that are compared
# llama.cpp runs no llama of which a part of a head is rotated ("partial"), and its phimoe, dots3note and hy_v4 are other models
EVERY = {*model_files.MODELS, *model_files.FAMILIES, *family_files.FILES, *row_files.FILES, *kind_files.FILES}
ALL = sorted(EVERY - {"partial", "phimoe", "phimoe-long", "dots3note", "hy_v4", "hy_v4-dense"})
SOME = ("tiny-llama", "cohere2", "minicpm", "granitehybrid", "gemma4-dense", "tiny-gpt-oss", "bailingmoe2", "tiny-deepseek2",
        "tiny-qwen35")  # fmt: skip
FAMILIES = ALL if os.environ.get("KIT_EXAMPLES") == "thorough" else SOME


def variants(metadata, architecture):
    """(what was done, metadata) of each variant of the keys of one architecture, but for those that llama.cpp does not read."""
    for key in [key for key in metadata if key.startswith(f"{architecture}.")]:
        yield f"without {key}", {name: value for name, value in metadata.items() if name != key}
        for value in _others(metadata[key], _TYPES if key.endswith("scaling.type") else ()):
            yield f"{key} = {value}", metadata | {key: value}
    for key in KNOWN:
        name = f"{architecture}.{key}"
        if name not in metadata and key not in UNREAD and (key != WINDOW or _has_windows(architecture)):
            for value in _TYPES if key.endswith("scaling.type") else (2, 0.5, True, False):
                yield f"with {name} = {value}", metadata | {name: value}


def _has_windows(architecture):
    """Whether llama.cpp reads a small file's window."""
    row = ARCHITECTURES[architecture]
    return (row.period != 0 and architecture != "exaone4") or row.mixer == "compressed"


def _others(value, texts):
    """Other values of the same type."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, 2 * value, value // 2]
        case float():
            return [3 * value + 0.01, 0.0]
        case str():
            return [*texts, "other"]
    return [value[::-1], value[:-1], value[0]]


def written(folder, name):
    """The file of that name."""
    modules = (module for module in (family_files, row_files, kind_files) if name in module.FILES)
    return next(modules, model_files).write(folder, name)


def outcomes(path, folder):
    """What became of each variant of a file, a key changed or a tensor left out: {"equal", "refused", "differs" or
    "only the kit runs it": how many}, and those that differ from llama.cpp, in words.

    The kit runs a variant only where hyperparameters or tensors are not those of one before.
    """
    referee, counts, wrong, known = Referee(), Counter(), [], {}
    with kit.open(path) as file:
        tensors, blocks = file.tensors, {name: file.blocks(name).tobytes() for name in file.tensors}
        own = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in file.metadata.items()}
        if not _has_windows(file.architecture):
            own.pop(f"{file.architecture}.{WINDOW}", None)
        described = SimpleNamespace(path=path, architecture=file.architecture)
    changed = folder / "variant.gguf"
    cases = [("the file itself", own, tensors), *((*each, tensors) for each in variants(own, described.architecture))]
    cases += [(f"without {gone}", own, {name: tensors[name] for name in tensors if name != gone}) for gone in tensors]
    for what, described.metadata, described.tensors in cases:
        try:
            config = read_config(described)
        except ModelError as error:
            assert "\n" not in str(error), error
            counts["refused"] += 1
            continue
        data = (blocks[name] for name in described.tensors)
        data = b"".join(each.ljust(writer.padded(len(each)), b"\0") for each in data)
        changed.write_bytes(writer.header(described.metadata, list(described.tensors.values())) + data)
        if (key := (config, *described.tensors)) not in known:
            with kit.open(changed) as file:
                model = kit.Transformer(kit.Weights(file), max_context=min(CONTEXT, config.context))
                known[key] = model.logits(TOKENS).numpy()[-LAST:]
        got, right = known[key], referee.logits(changed, TOKENS, CONTEXT, LAST)
        if right is None:  # llama.cpp refuses it, or ends
            counts["only the kit runs it"] += 1
            continue
        error = np.median(np.sqrt(((got - right) ** 2).mean(1)) / right.std(1))
        right_here = error < 5e-3 or what.startswith(AUTHORS)
        counts["equal" if right_here else "differs"] += 1
        if not right_here:
            wrong.append(f"{what}: {error:.2g}")
    referee.close()
    return counts, wrong


@pytest.fixture
def one_thread():
    """torch's threads wait for one another longer than such a small sum takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_each_key_is_read_or_refused(folder, tmp_path, one_thread, name):
    llama_cpp.needed()
    counts, wrong = outcomes(written(folder, name), tmp_path)
    print(f"| {name} |", " | ".join(f"{counts[what]}" for what in ("equal", "refused", "differs", "only the kit runs it")), "|")
    assert not wrong and counts["equal"] > 10, wrong


@pytest.mark.parametrize("keys, says", [
    ({"expert_group_count": 8}, "8 experts in 8 groups"), ({"expert_group_used_count": 5}, "5 of 4 groups a token"),
    ({"expert_used_count": 4, "expert_group_used_count": 1}, "4 experts a token of 1 of 4 groups"),
])  # fmt: skip
def test_groups_of_experts_that_no_token_can_use(tmp_path, keys, says):
    file = family_files.bailingmoe2()
    file.keys(**keys)
    with pytest.raises(ModelError, match=f"{says}: the kit cannot run such a bailingmoe2 model"):
        read_config(kit.open(file.write(tmp_path / "groups.gguf")))


SAID = [  # (file, a key of which no pass of the kit does what it says, its value, the error)
    ("tiny-qwen3", "attention.causal", False, "is false, as of an embedding model"),
    ("tiny-qwen3", "attention.temperature_scale", 0.1, "does not know what the metadata key .* changes"),
    ("hunyuan-dense", "rope.scaling.alpha", 1000.0, "does not know what the metadata key .* changes"),
    ("tiny-llama", "block_count", 1, "llama.block_count says 1 layers"),
    ("tiny-gpt-oss", "expert_gating_func", 2, "should be 1, as in every such model, it is 2"),
    ("tiny-gpt-oss", "expert_weights_scale", 2.0, "should be 1.0, as in every such model, it is 2.0"),
    ("olmoe", "expert_weights_norm", True, "should be false, as in every such model, it is true"),
    ("tiny-gpt-oss", "rope.scaling.type", "none", "should be linear or yarn where there is a factor of 32, it is 'none'"),
    ("tiny-qwen35", "rope.dimension_sections", [0, 2, 3, 3], "should be sections of which the fourth is empty"),
    ("cohere2", "rope.freq_base_swa", 0.5, "does not know what the metadata key .* changes"),
    ("minicpm", "logit_scale", 0.0, "should be a number of more than 0.0, it is 0.0"),
    ("tiny-gemma2", "attn_logit_softcapping", 0.0, "should be a number of more than 0.0, it is 0.0"),
    ("yarn", "rope.scaling.yarn_beta_fast", 0.0, "should be a number of more than 0.0, it is 0.0"),
    ("yarn", "rope.freq_base", 1.0, "should be a number of more than 1.0, it is 1.0"),
    ("yarn", "context_length", 0, "should be a count from 1"),
    ("tiny-llama", "block_count", True, "should be a count from 1 to .* it is True"),
    ("tiny-gemma3", "attention.sliding_window_pattern", 2.5, "should be a count from 0 to .* it is 2.5"),
    ("ernie4_5-moe", "interleave_moe_layer_step", 0, "should be a count from 1"),
]  # fmt: skip


@pytest.mark.parametrize("name, key, value, says", SAID)
def test_what_no_pass_does_is_refused_by_name(folder, name, key, value, says):
    with kit.open(written(folder, name)) as file:
        described = SimpleNamespace(path=file.path, architecture=file.architecture, tensors=file.tensors)
        described.metadata = {**file.metadata, f"{file.architecture}.{key}": value}
        with pytest.raises(ModelError, match=says) as caught:
            read_config(described)
    assert f"{file.architecture}.{key}" in str(caught.value)


@pytest.mark.parametrize("original, kind", [(100, "longrope"), (300, "longrope"), (100, None), (300, None)])
def test_factors_of_long_contexts_are_applied_whatever_the_file_calls_them(folder, tmp_path, original, kind):
    """Files of Phi-3.5 and Phi-4-mini that Ollama converted have no rope.scaling.type. A pass over more positions than the
    original context takes the long factors."""
    llama_cpp.needed()

    def change(metadata, tensors):
        metadata |= {"phi3.rope.scaling.attn_factor": 1.19, "phi3.rope.scaling.original_context_length": original}
        metadata |= {"phi3.rope.scaling.type": kind} if kind else {}
        del metadata[f"phi3.{WINDOW}"]
        half = metadata["phi3.rope.dimension_count"] // 2 if "phi3.rope.dimension_count" in metadata else 32
        for number, which in enumerate(("long", "short")):
            factors = np.random.default_rng(number).uniform(1, 8, half)
            tensors[f"rope_factors_{which}.weight"] = factors.astype(np.float32)

    path = model_files.rewrite(written(folder, "tiny-phi3"), tmp_path / "long.gguf", change)
    referee = Referee()
    right = referee.logits(path, TOKENS, CONTEXT)
    referee.close()
    with kit.open(path) as file:
        got = kit.Transformer(kit.Weights(file), max_context=CONTEXT).logits(TOKENS).numpy()
    assert np.abs(got - right).max() < 1e-3 * right.std()


WRONG = (True, -1, 0, 0.0, 2.5, -2.5, float("nan"), float("inf"), 1e308, 2**31 - 1, 2**63, "x", "", [], [0], [2.5], ["x"],
    [True])  # fmt: skip


@pytest.mark.parametrize(
    "name",
    sorted(EVERY)
    if FAMILIES is ALL
    else [
        *("tiny-llama", "ernie4_5-moe", "granitehybrid", "tiny-qwen35", "tiny-deepseek2", "gemma4"),
        *("dots3note", "deepseek4", "glm5-next", "qwen4exp-ngrams"),
    ],
)
def test_no_value_of_a_key_is_a_traceback(folder, name):
    """Each key of an architecture with each type and size of value, and without one: hyperparameters, or one line."""
    with kit.open(written(folder, name)) as file:
        described = SimpleNamespace(path=file.path, architecture=file.architecture, tensors=file.tensors)
        own, refused = {**file.metadata}, 0
        names = {key for key in own if key.startswith(f"{file.architecture}.")} | {
            f"{file.architecture}.{key}" for key in KNOWN
        }
        for key in sorted(names):
            for value in WRONG:
                described.metadata = own | {key: value}
                try:
                    read_config(described)
                except ModelError as error:
                    assert "\n" not in str(error) and str(file.path) in str(error)
                    refused += 1
    assert refused > 10 * len(names)
