"""Kinds of layers that choose positions or have states of their own: against llama.cpp at lengths around every period,
continued, cut, in batches, in slots; and the bytes that a pass touches, counted."""

import dataclasses

import kind_files
import llama_cpp
import numpy as np
import pytest
import reference_dots3note
import reference_gemma3n
import reference_hy_v4
import reference_phimoe
import torch
import torch.nn.functional as F
from test_family_files import TOKENS, changed, decode, errors, model_of

import kit
import kit.hf
from kit.errors import ModelError
from kit.gguf.cut import cut
from kit.gguf.uses import bytes_used, uses_of
from kit.model import cpu_ops
from kit.model.architectures import ARCHITECTURES
from kit.model.hyperparameters import read_config

# Positions from which layers of a file choose, at which a block ends, or a segment of a kernel.
PERIODS = {"glm-dsa": (8,), "deepseek32": (8,), "kimi-linear": (4, 16), "bailingmoe3": (4, 16), "qwen4exp": (4, 12)}
PERIODS["qwen4exp-ngrams"] = (3, 11)
PERIODS["llama4"] = (4,)
PERIODS |= {name: (8,) for name in ("step35", "afmoe", "mimo2", "phimoe", "phimoe-long")}
PERIODS["glm5-next"] = (4, 12)
PERIODS["dots3note"] = (6, 8)
PERIODS |= {"hy_v4": (8,), "hy_v4-dense": (8,)}
PERIODS["kimi-k3"] = (4, 16)
PERIODS |= {name: (8,) for name in ("gemma3n", "gemma3n-shared")}
PERIODS |= {name: (4, 16) for name in ("mamba", "falcon-mamba", "jamba")}
PERIODS["deepseek4"] = (4, 8, 20)
LENGTHS = {name: sorted({1, 2, *(each + n for each in periods for n in (-1, 0, 1))}) for name, periods in PERIODS.items()}
LONG = [token % 500 + 3 for token in range(7, 7 + 11 * 140, 11)]  # past a row of 128 positions
WORST = 1e-5  # of a token; half of all are below a third of it


MORE = {"gemma3n": 10, "gemma3n-shared": 10}  # times that: gates cut at a number that all of them move


AUTHORS = {"gemma3n": reference_gemma3n.of, "phimoe": reference_phimoe.of, "dots3note": reference_dots3note.of,
    "hy_v4": reference_hy_v4.of}  # fmt: skip


def close(got, right, name="") -> bool:
    """The error of the kit's logits, over their spread."""
    found, worst = errors(np.asarray(got), right), WORST * MORE.get(name, 1)
    return found.max() < worst and np.median(found) < worst / 3


@pytest.fixture(scope="module")
def right(folder):
    """The logits of a file by llama.cpp; or by the family's authors, where llama.cpp has another model, or GELU in a table of
    float16."""
    known = {}

    def of(name):
        if name not in known:
            path = kind_files.write(folder, name)
            known[name] = AUTHORS.get(name.partition("-")[0], llama_cpp.logits)(path, TOKENS)
        return known[name]

    return of


@pytest.mark.parametrize("name", kind_files.FILES)
def test_logits_are_llama_cpps_at_every_length(folder, right, name):
    """Of prompts, of one token after another as recorded, and of a prompt that continues."""
    model, theirs = model_of(kind_files.write(folder, name)), right(name)
    for length in (*LENGTHS[name], len(TOKENS)):
        assert close(model.logits(TOKENS[:length]), theirs[:length], name), length
    cache = model.new_cache(64)
    tokens = torch.stack([model.step([token], cache) for token in TOKENS]).numpy()
    assert close(tokens, theirs, name)
    assert {span.outcome for span in model.trace.spans if span.what == "token"} == {"", "planned"}
    for length in LENGTHS[name]:
        cache = model.new_cache(64)
        parts = [model.logits(TOKENS[:length], cache=cache), model.logits(TOKENS[length:], cache=cache)]
        assert close(torch.cat(parts), theirs, name), length


@pytest.mark.parametrize("name", kind_files.FILES)
def test_eager_tokens_batches_and_other_types_of_cache(folder, right, name):
    path, theirs = kind_files.write(folder, name), right(name)
    model = model_of(path)
    assert errors(decode(model_of(path, recorded=False)), decode(model)).max() < 1e-5
    caches, rows = [model.new_cache(64) for _ in range(2)], (TOKENS[:5], TOKENS[:13])
    both = model.batch(rows, caches, torch.tensor([4, 17]))
    assert close(both, theirs[[4, 12]], name)
    both = model.batch((TOKENS[5:14], TOKENS[13:14]), caches, torch.tensor([8, 9]))
    assert close(both, theirs[[13, 13]], name)
    first = model_of(path, kv_dtype="float16").logits(TOKENS).numpy()
    assert errors(first, theirs).min() < 5e-3  # a rounded score may choose another position
    assert np.isfinite(model_of(path, kv_dtype="q8_0").logits(TOKENS).numpy()).all()


@pytest.mark.parametrize("name", kind_files.FILES)
def test_a_cut_sequence_and_a_copy_give_what_a_new_one_gives(folder, right, name):
    model, theirs = model_of(kind_files.write(folder, name)), right(name)
    for length in LENGTHS[name]:
        cache, copy = model.new_cache(64), model.new_cache(64)
        model.logits(TOKENS[:length], cache=cache)
        mark = cache.mark()
        for token in (7, 9, 11, 5):
            model.step([token], cache)
        cache.back_to(mark)
        copy.take(cache)
        for own in (cache, copy):
            rest = [model.step([token], own) for token in TOKENS[length : length + 6]]
            assert close(torch.stack(rest), theirs[length : length + 6], name)
    cache.truncate(0)
    assert close(model.logits(TOKENS, cache=cache), theirs, name)


@pytest.mark.parametrize("name", kind_files.FILES)
def test_a_token_touches_the_bytes_that_are_told(folder, name):
    """Counted by the spans of a recorded token at several depths: each matrix once, and of each state what Memory says."""
    model = model_of(kind_files.write(folder, name))
    config, weights = model.config, bytes_used(uses_of(model.file))
    tables = {name for name, info in model.file.tensors.items() if len(info.shape) > 1}
    matrices = {name for name in tables if not any(part in f"{name}." for part in ("conv1d", "ssm_a.", "_norm", "_coef."))}
    expected = sum(use.nbytes * use.used // use.of for use in uses_of(model.file) if use.name in matrices and not use.is_rows)
    expected += sum(info.nbytes for name, info in model.file.tensors.items() if "altup_router." in name)  # it is asked twice
    for depth in (*LENGTHS[name], 25):
        cache = model.new_cache(64)
        model.logits(TOKENS[:depth], cache=cache)
        model.trace.clear()
        model.step([TOKENS[depth]], cache)
        read = {what: 0 for what in ("linear", "attention", "index")}
        for span in model.trace.spans:
            read[span.what] = read.get(span.what, 0) + span.nbytes
        remembered = [layer.mixer.memory for layer in config.layers]
        assert read["attention"] + read["index"] == sum(each.read(depth + 1) - 4 * each.fixed for each in remembered)
        states = sum(read.get(what, 0) for what in ("convolution", "delta net", "mamba", "pool"))
        tokens = sum(state["tokens"].nbytes for state in cache.states if "tokens" in getattr(state, "parts", {}))
        assert states == 2 * (sum(4 * each.fixed for each in remembered) - tokens)
        assert read["linear"] == expected <= weights
    held = model.new_cache(64)
    assert sum(each.held(128) for each in remembered) == 128 * held.bytes_per_position + held.fixed_bytes


WHERE_STORED = {
    "mimo2": ("attn_sinks",),
    "kimi-k3": ("attn_gate", "ffn_routed_norm"),
}  # without which it is another valid model


@pytest.mark.parametrize("name", kind_files.FILES)
def test_every_tensor_is_needed_and_another_is_refused(folder, name):
    file = kit.open(kind_files.write(folder, name))
    config = read_config(file)
    # keys and values of a layer that takes another's: files have them, and no pass reads them
    idle = {
        f"blk.{number}.{name}.weight"
        for number, layer in enumerate(config.layers) if getattr(layer.mixer, "source", None) is not None
        for name in ("attn_k", "attn_v", "attn_k_norm")
    }  # fmt: skip
    idle |= {tensor for tensor in file.tensors if tensor.split(".")[-2] in WHERE_STORED.get(config.architecture, ())}
    for tensor in sorted(set(file.tensors) - {*config.optional_tensors(), *idle, "output.weight"}):
        with pytest.raises(ModelError, match=r"the tensor '.*' (is missing|has shape|has no place)") as caught:
            read_config(changed(file, without=[tensor]))
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=f"the tensor 'blk.1.attn_q.scale' has no place in a {config.architecture} model"):
        read_config(changed(file, more=["blk.1.attn_q.scale"]))


def test_up_to_top_k_positions_a_sparse_layer_is_the_dense_kind_bit_for_bit(folder, tmp_path):
    file = kind_files.FILES["deepseek32"]()
    for name in [name for name in file.tensors if ".indexer." in name]:
        del file.tensors[name]
    file.metadata = {key.replace("deepseek32", "deepseek2"): value for key, value in file.metadata.items()}
    file.metadata = {key: value for key, value in file.metadata.items() if ".indexer." not in key}
    file.metadata["general.architecture"] = "deepseek2"
    sparse, dense = (model_of(path) for path in (kind_files.write(folder, "deepseek32"), file.write(tmp_path / "dense.gguf")))
    assert torch.equal(sparse.logits(TOKENS[:8]), dense.logits(TOKENS[:8]))
    assert torch.equal(*(torch.stack([model.step([token], cache) for token in TOKENS[:8]])
                         for model in (sparse, dense) for cache in [model.new_cache(16)]))  # fmt: skip
    assert not torch.allclose(sparse.logits(TOKENS)[-1], dense.logits(TOKENS)[-1], atol=1e-3)


def test_gemma3n_differs_from_llama_cpp_by_its_table_of_gelu_alone(folder, monkeypatch):
    """With GELU from float16 to float16 the logits of a prompt are nearer by far; and llama.cpp divides the squares of gates by
    one less than their number, which this file's key takes into account."""
    path = kind_files.write(folder, "gemma3n")
    theirs, model = llama_cpp.logits(path, TOKENS), model_of(path)
    plain = errors(model.logits(TOKENS).numpy(), theirs)
    gelu = lambda x: F.gelu(x.half().float(), approximate="tanh").half().float()  # noqa: E731
    monkeypatch.setitem(cpu_ops.ACTIVATIONS, "gelu", lambda gate, up: gelu(gate) * up)
    rounded = errors(model.logits(TOKENS).numpy(), theirs)
    assert np.median(plain) < 3e-3 and np.median(rounded) < 3e-4 and rounded.max() < 1e-3


@pytest.mark.parametrize(
    "name, same, change",
    [
        ("dots3note", 8, {"index_layout": "neox"}),
        ("hy_v4", 1, {"rope": "interleaved"}),
        ("hy_v4-dense", 1, {"rope": "interleaved"}),
    ],
)
def test_what_differs_from_llama_cpp_are_the_pairs_that_rope_turns_alone(folder, monkeypatch, name, same, change):
    """With its pairs the logits are llama.cpp's, and ``same`` tokens with both: before a layer chooses, or RoPE turns."""
    path, architecture = kind_files.write(folder, name), name.partition("-")[0]
    theirs = llama_cpp.logits(path, TOKENS)
    found = errors(model_of(path).logits(TOKENS).numpy(), theirs)
    assert found[:same].max() < WORST and found[same:].min() > 1e-2
    row = dataclasses.replace(ARCHITECTURES[architecture], **change)
    monkeypatch.setitem(ARCHITECTURES, architecture, row)
    assert close(model_of(path).logits(TOKENS), theirs)


def test_a_list_of_windows_may_leave_out_the_layers_that_predict(tmp_path, folder):
    """As the converter of dots3note writes it, whose files have one: it is of the layers that a pass runs, or of all."""
    plain = model_of(kind_files.write(folder, "dots3note")).logits(TOKENS)
    for last in ((), (True,)):
        file = kind_files.dots3note()
        for name, more in (("head_count", (8,)), ("sliding_window_pattern", last)):
            file.metadata[f"dots3note.attention.{name}"] += list(more)
        file.metadata |= {"dots3note.block_count": 6, "dots3note.nextn_predict_layers": 1}
        file.layer(5, nextn__eh_proj=(128, 256), nextn__enorm=128, nextn__hnorm=128)
        path = file.write(tmp_path / f"{len(last)}.gguf")
        assert torch.equal(model_of(path).logits(TOKENS), plain)
        part = read_config(cut(kit.open(path), [1, 2]))
        assert [layer.mixer for layer in part.layers] == [layer.mixer for layer in model_of(path).config.layers[1:3]]


# four layers, as many as rows of its table: a list that is not of layers looks like one
@pytest.mark.parametrize("name", sorted({*kind_files.FILES} - {"qwen4exp-ngrams"}))
def test_the_first_layers_of_a_file_are_what_they_are_in_it(folder, name):
    """As kit explain takes them to measure: lists of all layers are cut with them, and counted by them."""
    file = kit.open(kind_files.write(folder, name))
    part, whole = read_config(cut(file, [0, 1])).layers, read_config(file).layers
    assert [layer.mixer for layer in part] == [layer.mixer for layer in whole[:2]]


CHUNK = 8192


@pytest.mark.slow
def test_a_chunk_ends_at_its_last_position(tmp_path):
    """Of a prompt that ends beyond it, of one that continues across it, and of tokens as recorded. A query attends to thousands
    of positions, whose sums differ by their order."""
    tokens, last = [int(token) for token in np.random.default_rng(5).integers(3, 500, CHUNK + 12)], slice(CHUNK - 6, None)
    path = kind_files.llama4().write(tmp_path / "chunks.gguf")
    model, theirs = model_of(path), llama_cpp.logits(path, tokens)[last]
    caches = [model.new_cache(len(tokens)) for _ in range(2)]
    model.logits(tokens[: CHUNK - 6], -1, caches[0])
    caches[1].take(caches[0])
    recorded = torch.stack([model.step([token], caches[0]) for token in tokens[last]])
    for got in (model.logits(tokens)[last], model.logits(tokens[last], cache=caches[1]), recorded):
        assert errors(got.numpy(), theirs).max() < 10 * WORST


def test_each_chunk_is_a_sequence_of_its_own(tmp_path, monkeypatch):
    """In a model whose layers all have chunks, here of eight positions; prompts, and tokens as recorded."""
    row = dataclasses.replace(ARCHITECTURES["llama4"], chunk=8)
    monkeypatch.setitem(ARCHITECTURES, "llama4", row)
    model = model_of(kind_files.llama4(3).write(tmp_path / "local.gguf"))
    alone = torch.cat([model.logits(TOKENS[first : first + 8]) for first in range(0, len(TOKENS), 8)])
    cache = model.new_cache(64)
    recorded = torch.stack([model.step([token], cache) for token in TOKENS])
    parts, cache = [], model.new_cache(64)
    for first, stop in ((0, 1), (1, 7), (7, 8), (8, 17), (17, len(TOKENS))):
        parts.append(model.logits(TOKENS[first:stop], cache=cache))
    for got in (model.logits(TOKENS), torch.cat(parts), recorded):
        assert close(got, alone.numpy())
    memory = model.config.layers[0].mixer.memory
    assert [memory.seen(positions) for positions in (1, 7, 8, 9, 16, 17)] == [1, 7, 8, 1, 8, 1]


@pytest.mark.parametrize("ratios, stacked", [((128, 4), True), ((4, 128), False)])
def test_a_row_of_128_positions_begins_at_its_128th(tmp_path, ratios, stacked):
    """Of a prompt, and of one that ends before it and goes on as recorded, with the groups' matrices as a stack and as one."""
    path = kind_files.deepseek4(ratios, stacked).write(tmp_path / "rows.gguf")
    model, theirs = model_of(path), llama_cpp.logits(path, LONG)
    assert close(model.logits(LONG), theirs)
    cache = model.new_cache(len(LONG))
    first = model.logits(LONG[:124], cache=cache)
    tokens = [model.step([token], cache) for token in LONG[124:]]
    assert close(torch.cat([first, torch.stack(tokens)]), theirs)
    assert read_config(model.file).layers[0].mixer.memory.seen(128) == (9 if ratios[0] == 128 else 12)


WRONG = {  # file -> key -> values (None: left out) of which the error names the key
    "glm-dsa": {
        "attention.indexer.types": [[1, 0, 1], [0, 0, 1, 0], [1, 0, 2, 0]], "attention.indexer.top_k": [None],
        "rope.scaling.factor": [4.0],
    },
    "deepseek32": {"attention.indexer.key_length": [None], "attention.indexer.head_count": [0]},
    "qwen4exp": {
        "attention.sliding_window": [2], "attention.compress_ratios": [[0, 4, 0], [0, 3, 0, 3]],
        "hyper_connection.low_rank": [None], "hyper_connection.count": [1],
    },
    "kimi-linear": {"kda.head_dim": [None]},
    "bailingmoe3": {"kda.gate_lower_bound": [None], "kda.safe_gate": [False]},
    "qwen4exp-ngrams": {
        "ple.layers": [[0, 2], [4]], "ple.head_offsets": [[0, 50, 100]], "ple.head_vocab_sizes": [[50, 0, 50, 50]],
    },
    "deepseek4": {
        "attention.compress_ratios": [[0, 4, 64, 4], [0, 4, 128]], "attention.compress_rope_freq_base": [None],
        "hyper_connection.count": [3], "hyper_connection.sinkhorn_iterations": [None], "expert_gating_func": [2],
        "swiglu_clamp_exp": [[1.0, 1.0]],
    },
    "glm5-next": {
        "attention.indexer.kpool": [3, None], "attention.indexer.kpool_select_tail": [False],
        "attention.indexer.types": [[1, 1]], "kda.gate_lower_bound": [0.0],
    },
    "mamba": {"ssm.state_size": [None], "ssm.dt_b_c_rms": [1]},
    "jamba": {"attention.head_count_kv": [[0, 2]]},
    "llama4": {"attention.sliding_window": [0], "expert_used_count": [None], "attention.chunk_size": [4096]},
    "step35": {
        "attention.sliding_window": [None], "attention.sliding_window_pattern": [None, [True, False]],
        "swiglu_clamp_shexp": [[1.0, 1.0]], "attention.head_count": [[4, 8]],
    },
    "kimi-k3": {
        "attn_res.block_size": [None], "activation.situ_beta": [None, 0.0], "activation.situ_linear_beta": [None],
        "attention.head_count_kv": [[0, 1]],
    },
    "phimoe": {"attention.layer_norm_rms_epsilon": [None], "expert_used_count": [None], "expert_weights_scale": [2.0]},
    "mimo2": {
        "attention.sliding_window": [None], "attention.sliding_window_pattern": [[True, False]],
        "attention.head_count_kv": [[2, 4]],
    },
    "dots3note": {
        "attention.kv_lora_rank_swa": [None], "attention.key_length_swa": [64], "attention.value_length_mla_swa": [None],
        "attention.sliding_window": [None], "attention.sliding_window_pattern": [[True, False]],
        "attention.indexer.types": [[1, 1, 0, 1, 0], [0, 1]],
    },
    "hy_v4": {
        "hyper_connection.count": [3], "hyper_connection.magnitude": [None, 0.0], "hyper_connection.epsilon": [None],
        "hyper_connection.sinkhorn_iterations": [20], "swiglu_clamp_exp": [[1.0, 1.0]], "swiglu_clamp_shexp": [1.0],
        "attention.indexer.types": [[0, 1, 1, 0]],
    },
    "gemma3n": {"altup.num_inputs": [3], "altup.active_idx": [1], "activation_sparsity_scale": [[1.0]]},
}  # fmt: skip
LEFT_OUT = {  # file -> tensors that the error names
    "qwen4exp-ngrams": ["per_layer_token_embd.weight"], "qwen4exp": ["blk.2.hc_ffn_inject.weight"],
    "deepseek4": ["blk.2.attn_compressor_ape.weight"], "deepseek32": ["blk.1.indexer.k_norm.bias"],
    "glm5-next": ["blk.1.indexer_compressor_ape.weight"], "jamba": ["blk.0.ssm_b_norm.weight"],
    "step35": ["blk.1.attn_gate.weight"], "afmoe": ["blk.0.attn_gate.weight"],
    "kimi-k3": ["blk.2.ffn_res_score.weight", "output_res_score.weight"], "phimoe": ["blk.1.ffn_gate_inp.weight"],
    "mimo2": ["blk.1.attn_v.weight"], "dots3note": ["blk.0.attn_k_norm.weight", "blk.1.indexer.proj.weight"],
    "hy_v4": ["blk.1.attn_sinks.weight", "blk.1.hc_attn_base.weight"], "gemma3n": ["altup_unembd_proj.weight"],
}  # fmt: skip
BAD = [  # (file, keys, a tensor that is left out, what the error names)
    ("glm-dsa", {"attention.indexer.types": [1, 1, 1, 0]}, "", "blk.1.indexer.attn_q_b.weight"),
    ("kimi-linear", {"ssm.conv_kernel": 5}, "", "blk.0.ssm_conv1d_q.weight"),
    ("bailingmoe3", {"kda.gate_lower_bound": 1.0}, "", "a lowest value of 1 for the log of a decay"),
    ("qwen4exp", {"ple.layers": [0]}, "", "ple.ngram_size"),
    ("qwen4exp-ngrams", {"ple.layers": [1]}, "", "has no place"),
    ("qwen4exp-ngrams", {"ple.head_offsets": [0, 50, 100, 190]}, "", "per_layer_token_embd.weight"),
    ("qwen4exp-ngrams", {"embedding_length_per_layer_input": 16}, "", "4 rows of 16 elements"),
    ("deepseek4", {"attention.sliding_window": 18}, "", "a choice among 16 positions in a window of 18"),
    ("deepseek4", {"attention.output_group_count": 3}, "", "4 heads in 3 groups"),
    ("deepseek4", {"hash_layer_count": 2}, "", "blk.1.ffn_gate_tid2eid.weight"),
    ("glm5-next", {"rope.dimension_count": None}, "", "attention.key_length"),
    ("glm5-next", {"kda.gate_lower_bound": 1.0}, "", "a lowest value of 1 for the log of a decay"),
    ("mamba", {"ssm.time_step_rank": 32}, "", "blk.0.ssm_x.weight"),
    ("jamba", {}, "blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_exps.weight"),
    ("kimi-k3", {"expert_latent_length": 32}, "", "blk.1.ffn_routed_down.weight"),
    ("kimi-k3", {"expert_latent_length": None}, "", "blk.1.ffn_routed_down.weight"),
    ("phimoe", {"expert_used_count": 9}, "", "9 of 8 experts"),
    ("phimoe", {"expert_gating_func": 1}, "", "expert_gating_func' should be absent"),
    ("mimo2", {"attention.value_length": 96}, "", "values of 96 elements, keys of 64"),
    ("mimo2", {"attention.value_length": None}, "", "blk.0.attn_v.weight"),
    ("dots3note", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "", "rope.scaling.type"),
    ("hy_v4", {"attention.indexer.top_k": None}, "", "blk.0.indexer.attn_q_b.weight"),
    ("hy_v4", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "", "rope.scaling.type"),
    ("hy_v4-dense", {"attention.indexer.top_k": 8}, "", "attention.indexer.key_length"),
    *((name, {key: value}, "", key) for name, keys in WRONG.items() for key, values in keys.items() for value in values),
    *((name, {}, tensor, tensor) for name, tensors in LEFT_OUT.items() for tensor in tensors),
]


@pytest.mark.parametrize("name, keys, without, says", BAD)
def test_what_is_wrong_is_named_in_one_line(tmp_path, name, keys, without, says):
    file = kind_files.FILES[name]()
    for key, value in keys.items():
        file.metadata[f"{file.architecture}.{key}"] = value
    file.metadata = {key: value for key, value in file.metadata.items() if value is not None}
    file.tensors.pop(without, None)
    with pytest.raises(ModelError) as caught:
        read_config(kit.open(file.write(tmp_path / "bad.gguf")))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("experts", [[0, 8], [-1, 3], [2, 2]])
def test_a_table_of_experts_that_are_not_there_is_refused(tmp_path, experts):
    """Before the kernel takes one for an address: of a prompt, and of a recorded token."""
    file = kind_files.deepseek4()
    file.tensors["blk.0.ffn_gate_tid2eid.weight"][9] = experts
    model = model_of(file.write(tmp_path / "table.gguf"))
    cache = model.new_cache(8)
    model.logits([1, 2], cache=cache)
    model.step([3], cache)
    for way in (lambda: model.logits([9]), lambda: model.step([9], cache)):
        with pytest.raises(ModelError, match="table of experts by token"):
            way()


MIXTURES = "glm-dsa kimi-linear qwen4exp-ngrams deepseek4 glm5-next jamba llama4 step35 afmoe mimo2 phimoe kimi-k3".split()


@pytest.mark.parametrize("name", [*MIXTURES, "dots3note", "hy_v4"])
def test_a_mixture_of_these_families_runs_from_slots_bit_for_bit(folder, name):
    """Experts in a few slots, as under ``--memory``: the same tokens."""
    path = kind_files.write(folder, name)
    weights = kit.Weights(kit.open(path), experts=kit.Slots("1 MiB"))
    slots, plain = (kit.Transformer(each, linear="fused") for each in (weights, kit.Weights(kit.open(path))))
    found = []
    for model in (slots, plain):
        cache = model.new_cache(64)
        found.append(torch.stack([model.step([token], cache) for token in TOKENS[:16]]))
    weights.close()
    assert torch.equal(*found)


@pytest.mark.parametrize("name", kind_files.FILES)
def test_through_transformers_the_logits_are_the_same_or_one_line_says_why_not(folder, name):
    """kit.hf of each family: mamba alone is in its tables, without the norms of FalconMamba."""
    path = kind_files.write(folder, name)
    try:
        model, _ = kit.hf.load(path)
    except ModelError as error:
        architecture = kind_files.FILES[name]().architecture
        assert architecture in str(error) and "\n" not in str(error) and name != "mamba"
        return
    assert name == "mamba"
    with torch.no_grad():
        theirs = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert close(model_of(path).logits(TOKENS), theirs)
