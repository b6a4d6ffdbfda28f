"""kit.hf: transformers' models over the kit's weights, against transformers' own load of the same file in float32."""

import copy
import io
import json
import pickle

import family_files
import hf_files
import llama_cpp
import model_files
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from model_files import rewrite

import kit
import kit.hf
from kit.errors import ModelError, TokenizerError
from kit.gguf import writer
from kit.gguf.metadata import MetadataArray
from kit.gguf.uses import uses_of
from kit.hf.nn import RMSNorm
from kit.hf.stored import StoredWeight
from kit.lab.commands.cli import main
from kit.lab.explaining.measured_ways import measure
from kit.lab.predicting.order import order_of
from kit.lab.predicting.ways import BLOCKS, Way
from kit.model import budget
from kit.model.layers.rope import RopeConfig
from kit.model.rope import frequencies

TOKENS = torch.tensor([[5, 17, 99, 3, 64, 21, 7, 8, 120, 1, 33, 90]])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("hf"), {}
    return lambda name: made[name] if name in made else made.setdefault(name, hf_files.write(folder, name))


@pytest.fixture
def llama(files):
    return kit.hf.load(files("llama"))[0]


def theirs_of(path, kind=transformers.AutoModelForCausalLM):
    """transformers' own load of a file."""
    return kind.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def inputs(model):
    return {"input_ids": TOKENS} | ({"decoder_input_ids": TOKENS[:, :5]} if model.config.is_encoder_decoder else {})


def assert_equal(model, theirs):
    with torch.no_grad():
        expected, got = theirs(**inputs(theirs)).logits, model(**inputs(model)).logits
    assert (got - expected).abs().max() <= 1e-4 * expected.std()
    ours = dict(model.named_parameters())
    for key, weight in theirs.named_parameters():
        assert torch.equal(ours[key] + 0, weight), key


@pytest.mark.parametrize("name", hf_files.MODELS)
def test_logits_and_weights_equal_transformers_own(files, name):
    path = files(name)
    model, _ = kit.hf.load(path)
    assert_equal(model, theirs_of(path, type(model)))
    dense = [key for key, weight in model.named_parameters() if weight.ndim > 1 and not isinstance(weight, StoredWeight)]
    assert all("conv" in key or "A_log" in key or "gate.weight" in key for key in dense), dense


def test_a_window_that_all_layers_have(tmp_path):
    """transformers applies phi3's and so does the kit; llama.cpp does not read it (test_keys leaves the key out)."""
    path = hf_files.write(tmp_path, "phi3", lambda metadata, _: metadata.update({"attention.sliding_window": 4}))
    theirs = theirs_of(path)
    with kit.open(path) as file, torch.no_grad():
        got = kit.Transformer(kit.Weights(file), linear="dequantized").logits(TOKENS[0].tolist())
        errors = {}
        for window in (None, 4):
            theirs.config.sliding_window = window
            right = theirs(TOKENS).logits[0]
            errors[window] = float((got - right).abs().max() / right.std())
    assert errors[4] < 1e-4 and errors[None] > 0.1, errors


@pytest.mark.parametrize("betas", [(32.0, 1.0), (2.0, 0.5), (64.0, 4.0)])
def test_yarn_blends_between_the_files_own_betas(betas):
    """As transformers does; llama.cpp takes 32 and 1 in every file of most families (test_keys leaves the keys out)."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fast, slow = betas
    parameters = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=256,
        rope_parameters=parameters | dict(beta_fast=fast, beta_slow=slow),
    )  # fmt: skip
    right, scale = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    got, factor = frequencies(RopeConfig(64, 1e4, 4.0, True, 64, 1.0, fast, slow))
    torch.testing.assert_close(got.float(), right, rtol=1e-5, atol=0)
    assert factor == pytest.approx(scale)


@pytest.mark.parametrize("engine", ["auto", "modules"])
@pytest.mark.parametrize("name, holds", [("qwen3_moe", "slots"), ("llama", "pinned")])
def test_within_a_budget_of_memory_the_logits_are_the_same(files, monkeypatch, engine, name, holds):
    monkeypatch.setattr(budget, "process_bytes", lambda file: 0)
    with kit.open(files(name)) as file:
        whole = budget.divide(file, "1 GiB")
    memory = whole.process + whole.history + whole.page_cache - 1000
    for way in ("blocks", "blocks-int8"):
        found = []
        for more in ({}, {"memory": memory, "policy": "LFU"}):
            model, _ = kit.hf.load(files(name), way, engine=engine, **more)
            with torch.no_grad():
                found.append([model(TOKENS).logits, model(TOKENS[:, :1]).logits])
        assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
        weights = model.get_input_embeddings().weight.source.weights
        assert (weights.experts.stats.misses > 0) if holds == "slots" else not weights.mapped
    with pytest.raises(ModelError, match="leave out cache="):
        kit.hf.load(files(name), cache=kit.LRU("1 GiB"), memory="1 GiB")
    with pytest.raises(ModelError, match=r"is too little: .* give at least"):
        kit.hf.load(files(name), memory="1 KiB")


def test_frequencies_are_divided_as_llama_3_divides_them(files, tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
    config = transformers.LlamaConfig(**hf_files.MODELS["llama"][1])
    config.rope_parameters = scaling | {"original_max_position_embeddings": 16}
    scaled = transformers.LlamaForCausalLM(config).eval()
    plain = theirs_of(files("llama"))
    scaled.load_state_dict(plain.state_dict())
    divisors = (plain.model.rotary_emb.inv_freq / scaled.model.rotary_emb.inv_freq).numpy()
    assert divisors.max() > 4
    path = hf_files.write(tmp_path, "llama", lambda _, tensors: tensors.update({"rope_freqs.weight": divisors}))
    assert_equal(kit.hf.load(path)[0], scaled)
    path = hf_files.write(tmp_path, "llama", lambda _, tensors: tensors.update({"rope_freqs.weight": divisors[1:]}))
    with pytest.raises(ModelError, match="rope_freqs"):
        kit.hf.load(path)


def without_vocabulary(path, folder):
    """A copy of a model's file: transformers would read the vocabulary for 15 s, and has its size from the configuration."""
    with kit.open(path) as file:
        kept = {key: value for key, value in file.metadata.items() if not key.startswith("tokenizer.")}
        metadata = {key: value.tolist() if isinstance(value, MetadataArray) else value for key, value in kept.items()}
        return writer.write(folder / path.name, metadata, [*file.tensors.values()], map(file.blocks, file.tensors))


@pytest.mark.slow
def test_a_trained_model_equals_transformers_own(trained, tmp_path):
    model, tokenizer = kit.hf.load(trained)
    given = {"gguf_file": without_vocabulary(trained, tmp_path).name, "config": copy.deepcopy(model.config)}
    theirs = type(model).from_pretrained(tmp_path, dtype=torch.float32, **given).eval()
    assert_equal(model, theirs)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    expected = theirs.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert torch.equal(model.generate(**prompt, max_new_tokens=16, do_sample=False), expected)


def test_a_chat_template_is_the_files_own(smollm2):
    """SmolLM2's: ChatML with a system's turn before the first; its tokens are those of llama.cpp."""
    _, tokenizer = kit.hf.load(smollm2)
    turns = [{"role": "user", "content": "What is the capital of  France?"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    said = [("system", system), ("user", turns[0]["content"])]
    assert text == "".join(f"<|im_start|>{who}\n{what}<|im_end|>\n" for who, what in said) + "<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert [ids] == llama_cpp.tokenize(smollm2, [text.encode()])


def test_generating_equals_transformers_own_with_every_way(files):
    path = files("gemma3")  # sliding windows of 8
    theirs = theirs_of(path)
    expected = theirs.generate(TOKENS, max_new_tokens=24, do_sample=False)
    for arguments in ({"weights": "blocks"}, {"weights": "float32"}, {"cache": kit.LRU("64 KiB")}):
        model, _ = kit.hf.load(path, **arguments)
        assert torch.equal(model.generate(TOKENS, max_new_tokens=24, do_sample=False), expected), arguments


def test_a_long_prompt_equals_transformers_own(files, llama, monkeypatch):
    monkeypatch.setattr("kit.model.linear._PIECE", 1000)  # in several pieces, the last a short one
    tokens = torch.arange(200)[None] * 7 % 128
    path = files("llama")
    theirs = theirs_of(path)
    with torch.no_grad():
        torch.testing.assert_close(llama(tokens).logits, theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_activations_of_eight_bits_are_near(files):
    exact, rounded = (kit.hf.load(files("llama"), weights)[0](TOKENS).logits for weights in ("blocks", "blocks-int8"))
    assert 0 < (rounded - exact).std() < 0.05 * exact.std()


@pytest.mark.parametrize("policy", ["NoCache", "LRU", "Pinned", "HashMap", "CyclicAware"])
def test_a_replay_counts_what_the_live_cache_counted(files, policy):
    capacity = [] if policy in ("NoCache", "HashMap") else ["100 KiB"]
    make = lambda: getattr(kit, policy)(*capacity)  # noqa: E731
    trace = kit.Trace()
    model, _ = kit.hf.load(files("qwen3_moe"), cache=make(), trace=trace)
    model.generate(TOKENS, max_new_tokens=5, do_sample=False)
    live, replayed = model.lm_head.weight.source.weights.store.stats, kit.replay(trace, make())
    assert live.hits + live.misses > 0
    for count in ("hits", "misses", "evictions", "entries", "resident_bytes"):
        assert getattr(live, count) == getattr(replayed, count), count


def test_the_trace_has_every_product_and_pass(files):
    trace = kit.Trace()
    model, _ = kit.hf.load(files("llama"), trace=trace)
    model.generate(TOKENS, max_new_tokens=3, do_sample=False)
    frame = trace.frame()
    linear = frame[frame.what == "linear"]
    assert (frame.what == "token").sum() == 3
    assert linear.token.value_counts().to_dict() == {0: 15, 1: 15, 2: 15}  # 7 a layer and the output
    assert set(linear[linear.layer == 1].tensor) == {f"blk.1.{part}.weight" for part in PARTS}
    assert linear.nbytes.iloc[0] == kit.open(files("llama")).tensors[linear.tensor.iloc[0]].nbytes


def test_a_trace_that_nobody_asked_for_holds_one_pass(llama):
    llama.generate(TOKENS, max_new_tokens=5, do_sample=False, eos_token_id=None)
    frame = llama.lm_head.weight.source.weights.trace.frame()
    assert (frame.what == "token").sum() == 1 and (frame.what == "linear").sum() == 15


def adapted(model, **options):
    """The model with adapters of peft."""
    import peft  # here: two seconds, which other workers save

    return peft.get_peft_model(model, peft.LoraConfig(**options))


PARTS = "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_adapter_learns(files, name):
    torch.manual_seed(0)
    targets = {"llama": ["q_proj", "down_proj"], "gpt2": ["c_attn"]}[name]
    model, _ = kit.hf.load(files(name))
    model = adapted(model, target_modules=targets, fan_in_fan_out=name == "gpt2")
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.2


def test_gradients_equal_those_of_float32(files, llama):
    path = files("llama")
    theirs = theirs_of(path)
    gradients = []
    for model in (llama, theirs):
        x = torch.ones(1, 4, 64, requires_grad=True)
        model(inputs_embeds=x).logits.square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4 * gradients[1].std().item())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"])
def test_a_copy_is_small_and_equal(llama, again):
    assert len(pickle.dumps(llama)) < 40_000
    assert torch.equal(again(llama)(TOKENS).logits, llama(TOKENS).logits)


def test_a_state_dict_goes_out_and_comes_back(llama):
    memory = io.BytesIO()
    torch.save(llama.state_dict(), memory)
    memory.seek(0)
    state = torch.load(memory, weights_only=False)
    assert llama.load_state_dict(state).missing_keys == []
    assert state.keys() == transformers.LlamaForCausalLM(llama.config).state_dict().keys()


def test_half_precision_around_the_products(llama):
    expected = llama(TOKENS).logits
    got = llama.to(torch.bfloat16)(TOKENS).logits
    assert got.dtype == torch.bfloat16 and (got.float() - expected).std() < 0.05 * expected.std()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda model: model.to("meta"), "cannot be moved"),
        (lambda model: torch.nn.init.zeros_(model.lm_head.weight), "read-only"),
        (lambda model: adapted(model, target_modules=["q_proj"]).merge_and_unload(), "read-only"),
        (lambda model: model.save_pretrained("nowhere"), "not saved again"),
        (lambda model: kit.hf.load(model.lm_head.weight.source.weights.file, weights="int3"), "choose one of blocks"),
        (lambda model: kit.hf.load(model.lm_head.weight.source.weights.file, device="cuda"), "runs only on the CPU"),
        (lambda model: pickle.dumps(kit.hf.load(model.lm_head.weight.source.weights.file, cache=kit.HashMap())[0]), "cache"),
    ],
)
def test_what_it_cannot_do_it_says(llama, act, words):
    with pytest.raises(ModelError, match=words):
        act(llama)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, tensors: tensors.update({"blk.0.extra.weight": np.zeros((4, 4), np.float32)}), "blk.0.extra.weight"),
        (lambda _, tensors: tensors.pop("blk.1.ffn_up.weight"), "model.layers.1.mlp.up_proj.weight"),
        (lambda _, tensors: tensors.update({"blk.0.ffn_up.weight": np.zeros((32, 64), np.float32)}), "blk.0.ffn_up.weight"),
        (lambda _, tensors: tensors.pop("token_embd.weight"), "token_embd.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, change, words):
    path = hf_files.write(tmp_path, "llama", change)
    with pytest.raises(ModelError, match=words) as error:
        kit.hf.load(path)
    assert str(path) in str(error.value)


def test_an_architecture_without_tables_is_named(files, tmp_path):
    path = rewrite(
        files("llama"), tmp_path / "other.gguf", lambda metadata, _: metadata.update({"general.architecture": "rwkv6"})
    )
    with pytest.raises(ModelError, match=r"other\.gguf.*rwkv6.*kit explain works"):
        kit.hf.load(path)


def test_an_overflow_is_said_with_its_module(files):
    """As of Gemma in float16, which transformers answers with NaN and <pad>."""
    model, _ = kit.hf.load(files("llama"))
    model.to(torch.float16)
    ids = torch.tensor([[5, 17, 99]])
    assert model(ids).logits.isfinite().all()
    model.model.layers[1].post_attention_layernorm.weight.data.fill_(60000)
    for run in (lambda: model(ids), lambda: model.generate(ids, max_new_tokens=2)):
        with pytest.raises(ModelError, match=r"overflows float16, first in model\.layers\.1\.post_attention_layernorm; keep"):
            run()
    model.to(torch.bfloat16)
    assert model(ids).logits.isfinite().all()


def test_a_module_of_a_tensor_that_is_no_matrix_is_an_error(files):
    with pytest.raises(ModelError, match=r"'output_norm\.weight' has shape \(\d+,\), expected a matrix"):
        kit.nn.Linear(files("llama"), "output_norm.weight")
    with pytest.raises(ModelError, match="expected a matrix"):
        kit.nn.Embedding(files("llama"), "output_norm.weight")


def test_modules_alone(files):
    file = kit.open(files("starcoder2"))
    weights = kit.Weights(file)
    linear, embedding = kit.nn.Linear(file, "blk.0.ffn_up.weight"), kit.nn.Embedding(file.path, "token_embd.weight")
    x = embedding(TOKENS)
    assert torch.equal(x, weights["token_embd.weight"][TOKENS])
    expected = x @ weights["blk.0.ffn_up.weight"].T + weights["blk.0.ffn_up.bias"]
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ModelError, match=r"blk\.9"):
        kit.nn.Linear(file, "blk.9.ffn_up.weight")


def test_layers_of_any_model_are_replaced(files):
    file = kit.open(files("llama"))
    model = torch.nn.Sequential(torch.nn.Embedding(128, 64), torch.nn.Linear(64, 96), torch.nn.Linear(96, 1))
    expected = copy.deepcopy(model)
    kit.nn.replace_linears(model, file, {"0": "token_embd.weight", "1": "blk.0.ffn_up.weight"})
    for layer, name in ((0, "token_embd.weight"), (1, "blk.0.ffn_up.weight")):
        expected[layer].weight = torch.nn.Parameter(kit.Weights(file)[name])
    torch.testing.assert_close(model(TOKENS), expected(TOKENS))
    for mapping in ({"1": "blk.0.ffn_down.weight"}, {"7": "token_embd.weight"}):
        with pytest.raises(ModelError, match=next(iter(mapping))):
            kit.nn.replace_linears(model, file, mapping)


@pytest.mark.parametrize(("name", "count"), [("llama", 5), ("gemma3", 13), ("t5", 12), ("starcoder2", 0)])
def test_norms_with_the_same_numbers_are_the_kits(files, name, count):
    model, _ = kit.hf.load(files(name))
    norms = [module for module in model.modules() if isinstance(module, RMSNorm)]
    assert len(norms) == count
    if norms:
        x = torch.randn(4, len(norms[0].weight))
        before = norms[0](x)
        norms[0].weight.data.mul_(2)
        assert not torch.equal(norms[0](x), before)


def test_text_comes_as_it_is_made(files):
    pieces = []
    answer = kit.hf.generate(files("llama"), [5, 17, 99], 6, on_text=pieces.append, stop_at_end=False)
    assert "".join(pieces) == answer.text and len(answer.tokens) == 6
    with pytest.raises(ModelError, match="at least 1"):
        kit.hf.generate(files("llama"), [5], 0)


@pytest.mark.parametrize("name", ["bloom", "t5"])
def test_the_command_goes_on_where_the_kit_has_no_pass(files, name, monkeypatch):
    path = files(name)
    model, _ = kit.hf.load(path)
    out = model.generate(torch.tensor([[5, 17, 99]]), max_new_tokens=4, do_sample=False)[0].tolist()
    arguments = ["generate", str(path), "--tokens", "5,17,99", "-n", "4", "--ignore-end", "--json"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    answer = json.loads(done.stdout)
    assert (answer["tokens"], answer["via"]) == (out[-len(answer["tokens"]) :], "transformers")
    assert len(answer["tokens"]) == 4 and answer["decode_gb_per_second"] > 0
    asked, generate = [], kit.hf.generate
    monkeypatch.setattr(kit.hf, "generate", lambda *arguments, **ways: asked.append(ways) or generate(*arguments, **ways))
    for option in ([], ["--linear", "fused-int8"], ["--cache", "none"]):
        assert CliRunner().invoke(main, [*arguments, *option]).exit_code == 0
    for ways in asked[::2], asked[1::2]:  # each by a throw-away pass before, in the same way
        assert [way.get("weights") for way in ways] == ["blocks", "blocks-int8", None]
        assert ["cache" in way for way in ways] == [False, False, True]


SELDOM = "enc.", "cross_attn_k", "cross_attn_v", "ssm_a"  # asked for with a prompt alone, and a vector a row


@pytest.mark.parametrize("name", ["bloom", "t5", "mamba", "llama"])
def test_the_order_of_use_and_a_measured_way_through_transformers(files, name):
    with kit.open(files(name)) as file:
        order = order_of(file, 2, "transformers" if name in ("llama", "mamba") else "")
        assert (order.via, order.reason) == ("transformers", "")
        matrices = {tensor for tensor, info in file.tensors.items() if len(info.shape) == 2 and info.elements >= 64 * 64}
        matrices = {tensor for tensor in matrices if not any(part in tensor for part in SELDOM)}
        assert matrices - set(order.names) <= {"token_embd.weight"}  # rows of it
        blocks, limited = (measure(way, file, order, 2) for way in (BLOCKS, Way("LRU", 1 << 14, "bfloat16")))
        assert (blocks.result - limited.result).std() < 0.05 * blocks.result.std()
        assert len(blocks.samples) == 2 and limited.row["resident"] <= 1 << 14


def test_via_names_whose_pass_it_is(files, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda: pytest.fail("measured first"))
    change = lambda metadata, _: metadata.update({"general.architecture": "rwkv6"})  # noqa: E731
    other = rewrite(files("llama"), tmp_path / "other.gguf", change)
    cases = (files("bloom"), "kit", "'bloom' is not supported"), (other, "transformers", "cannot configure 'rwkv6'")
    for path, via, words in cases:
        with kit.open(path) as file, pytest.raises(ModelError, match=words):
            order_of(file, 2, via)
        done = CliRunner().invoke(main, ["explain", str(path), "--via", via])
        assert done.exit_code == 2 and words in done.output


def test_a_tokenizer_that_nobody_knows(files, tmp_path):
    change = lambda metadata, _: metadata.update({"tokenizer.ggml.model": "odd", "tokenizer.ggml.tokens": ["a"] * 128})  # noqa: E731
    path = rewrite(files("bloom"), tmp_path / "odd.gguf", change)
    with pytest.raises(TokenizerError, match=r"'odd'.*kit\.hf\.model_over\(kit\.hf\.Source\.of\(kit\.open\(path\)\)\)"):
        kit.hf.load(path)
    assert kit.hf.model_over(kit.hf.Source.of(kit.open(path)))(input_ids=TOKENS).logits.isfinite().all()


def test_the_vocabulary_goes_both_ways_and_is_read_late(files, tmp_path):
    kind = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0] * 128}
    _, tokenizer = kit.hf.load(rewrite(files("llama"), tmp_path / "v.gguf", lambda metadata, _: metadata.update(kind)))
    assert "tokens" not in vars(tokenizer.own)  # no second copy of every text
    vocabulary = tokenizer.get_vocab()
    assert len(tokenizer) == len(vocabulary) == 128
    assert tokenizer.convert_ids_to_tokens(list(vocabulary.values())) == list(vocabulary)
    assert tokenizer.convert_tokens_to_ids(list(vocabulary)) == list(vocabulary.values())
    assert tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]}) == 1
    assert tokenizer.convert_tokens_to_ids("<extra>") == 128 and tokenizer.eos_token_id == 2


@pytest.mark.parametrize("name", ["qwen35moe", "qwen2moe", "qwen35moe-nextn"])
def test_a_mixture_uses_its_experts_alone_and_sizes_of_its_own(tmp_path, name):
    """Through transformers' modules: an order of use is recorded, and the logits are those of the kit's own pass."""
    if name.startswith("qwen35moe"):
        path = model_files.write(tmp_path, "qwen35moe", "Q8_0")
        path = predicting(path, tmp_path / "nextn.gguf") if name.endswith("nextn") else path
    else:
        path = family_files.write(tmp_path, name, "Q8_0")
    with kit.open(path) as file:
        order = order_of(file, 2, "transformers")
        assert list(order.uses) == uses_of(file)
        experts = [part for part in order.tokens[0] if "_exps.weight[" in part]
        assert len(experts) == 2 * sum("_exps." in use.name for use in order.uses)
        model, right = kit.hf.load(file, engine="modules")[0], kit.Transformer(kit.Weights(file)).logits(TOKENS[0].tolist())
        with torch.no_grad():
            assert (model(TOKENS).logits[0] - right).abs().max() < 1e-3 * right.std()


def predicting(source, target):
    """A copy with a further layer, which predicts further tokens."""

    def change(metadata, tensors):
        metadata["qwen35moe.block_count"] = 5
        metadata["qwen35moe.nextn_predict_layers"] = 1
        for name in [name for name in tensors if name.startswith("blk.3.")]:
            tensors[name.replace("blk.3.", "blk.4.")] = tensors[name]
        tensors["blk.4.nextn.enorm.weight"] = tensors["blk.3.attn_norm.weight"]

    return rewrite(source, target, change)
