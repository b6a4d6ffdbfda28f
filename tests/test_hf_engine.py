"""kit.hf's engine: the kit's own pass under transformers gives the tokens of transformers' modules over the same blocks."""

import copy
import threading
import warnings

import hf_files
import pytest
import torch
import transformers

import kit
import kit.hf
from kit.errors import ModelError
from kit.hf.held import CACHE, Held
from kit.model.architectures import ARCHITECTURES

TOKENS = torch.tensor([[5, 17, 99, 3, 64, 21, 7, 8, 120, 1, 33, 90]])
PADDED = torch.tensor([[0, 0, 0, 5, 17, 99], [3, 64, 21, 7, 8, 120], [0, 1, 33, 90, 2, 4]])
MASK = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]])
PLACES = (MASK.cumsum(1) - 1).clamp(0)
APART = ("falcon", "mamba")  # modules with names of their own, which kit.hf does not compare with the kit's layers
NAMES = [name for name in hf_files.MODELS if name not in APART and hf_files.ARCHITECTURES.get(name, name) in ARCHITECTURES]
WAYS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 20, "temperature": 1.5},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """``both(name)``: the file's model by the kit's engine and by the modules; a warning of the engine is an error."""
    folder, made = tmp_path_factory.mktemp("engine"), {}

    def pair(name):
        if name not in made:
            path = hf_files.write(folder, name)
            made[name] = kit.hf.load(path, trace=kit.Trace())[0], kit.hf.load(path, engine="modules")[0]
        return made[name]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="kit.hf")
        yield pair


def generate(model, ids=TOKENS, **how):
    torch.manual_seed(0)
    return model.generate(ids, **{"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0} | how)


def outcomes(model):
    """Of each pass since the last call: "planned", "" for another of the kit's; and none for one by the modules."""
    trace = model.forward._own.trace
    frame = trace.frame()
    trace.clear()
    names = set(frame[frame.what == "norm"].token)  # the modules have no spans for norms
    return [outcome for token, outcome in frame[frame.what == "token"][["token", "outcome"]].values if token in names]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (number % 3 > 0)) for number, name in enumerate(NAMES)]
)
def test_logits_and_every_way_to_generate(both, name):
    ours, modules = both(name)
    outcomes(ours)
    with torch.no_grad():
        got, expected = ours(TOKENS).logits, modules(TOKENS).logits
    assert (got - expected).abs().max() <= 1e-4 * expected.std()
    assert outcomes(ours) == [""]
    for way, how in WAYS.items():
        assert torch.equal(generate(ours, **how), generate(modules, **how)), way
        assert len(outcomes(ours)) == 16, way
    for mask in (MASK, torch.ones_like(MASK)):
        got, expected = (generate(model, PADDED, attention_mask=mask) for model in (ours, modules))
        assert torch.equal(got, expected)
        assert len(outcomes(ours)) == 16


@pytest.mark.parametrize("name", sorted(hf_files.MODELS.keys() - NAMES))
def test_where_the_kit_has_no_pass_both_engines_are_the_modules(both, name):
    assert all("forward" not in vars(model) and "generate" not in vars(model) for model in both(name))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [0, 1], ids=["auto", "modules"])
def test_a_compiled_model_gives_the_tokens_of_the_modules(both, engine):
    model, expected = copy.deepcopy(both("llama")[engine]), generate(both("llama")[1])
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="eager")(TOKENS).logits, model(TOKENS).logits)
    model.compile(backend="eager")
    assert torch.equal(generate(model), expected)


def test_a_token_is_a_recorded_pass(both):
    ours, _ = both("llama")
    outcomes(ours)
    generate(ours.to("cpu"))
    assert outcomes(ours) == [""] + ["planned"] * 15
    generate(ours, PADDED[:2], attention_mask=MASK[:2])
    assert outcomes(ours) == [""] + ["planned"] * 30


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_what_the_cache_gives_away_is_transformers_own(both, name):
    ours, modules = both(name)
    with torch.no_grad():
        mine, theirs = (model(PADDED, attention_mask=MASK, position_ids=PLACES)[CACHE] for model in (ours, modules))
    assert type(mine) is Held and mine.get_seq_length() == theirs.get_seq_length() == 6
    for layer, expected in zip(mine.layers, theirs.layers, strict=True):
        for part in ("keys", "values"):
            for row, pad in enumerate((3, 0, 1)):
                got, wanted = getattr(layer, part)[row, :, pad:], getattr(expected, part)[row, :, pad:]
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert type(mine) is transformers.DynamicCache and not hasattr(mine, "rows")


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_prompt_goes_on_from_a_cache(both, name):
    ours, modules = both(name)
    whole = generate(modules)
    with torch.no_grad():
        for model in (ours, modules):
            for own in (None, transformers.DynamicCache(config=model.config), transformers.DynamicCache()):
                cache = model(TOKENS[:, :7], past_key_values=own, use_cache=True)[CACHE]  # the old name is taken, too
                assert own is None or cache is own
                kept = copy.deepcopy(cache)
                assert torch.equal(generate(model, **{CACHE: cache}), whole)
                assert kept.get_seq_length() == 7
                assert torch.equal(generate(model, **{CACHE: kept}), whole)
            assert cache.get_seq_length() == len(whole[0]) - 1
            if model is ours:
                cache.crop(7 - cache.get_seq_length())
                assert torch.equal(generate(model, **{CACHE: cache}), whole)


def test_candidates_from_the_prompt_are_taken_or_dropped(both):
    ours, modules = both("llama")
    ids = TOKENS.repeat(1, 2)
    assert torch.equal(*(generate(model, ids, prompt_lookup_num_tokens=3) for model in (ours, modules)))


def test_a_streamer_gets_each_token(both):
    class Streamer(list):
        def put(self, value):
            self.extend(value.flatten().tolist())

        def end(self):
            self.append(None)

    said = Streamer()
    out = generate(both("llama")[0], streamer=said)
    assert said == [*out[0].tolist(), None]


def test_two_threads_generate_on_one_model(both):
    ours, modules = both("llama")
    prompts = [TOKENS, TOKENS[:, 3:], TOKENS[:, :5], TOKENS.flip(1)]
    expected = [generate(modules, ids, max_new_tokens=30) for ids in prompts]
    for model in (ours, modules):
        found = [None] * len(prompts)

        def work(numbers, model=model, found=found):
            for number in numbers:
                found[number] = model.generate(
                    prompts[number], max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0
                )

        threads = [threading.Thread(target=work, args=(numbers,)) for numbers in ((0, 1), (2, 3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(map(torch.equal, found, expected))


def test_torch_has_its_threads_for_a_prompt_and_after_a_text(both):
    ours, _ = both("llama")
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        with pytest.MonkeyPatch.context() as patch:
            logits = type(ours.forward)._logits
            patch.setattr(type(ours.forward), "_logits", lambda *given: seen.append(torch.get_num_threads()) or logits(*given))
            generate(ours, TOKENS.repeat(1, 2), max_new_tokens=3)
        assert seen == [3, 1, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_results_have_the_forms_that_transformers_gives(both):
    ours, modules = both("llama")
    with torch.no_grad():
        for how in (
            {"logits_to_keep": 1},
            {"logits_to_keep": 5},
            {"logits_to_keep": torch.tensor([2, 7])},
            {"attention_mask": MASK, "position_ids": PLACES, "input_ids": PADDED, "logits_to_keep": 2},
            {"position_ids": torch.arange(12)[None]},
        ):
            got, expected = (model(**{"input_ids": TOKENS} | how).logits for model in (ours, modules))
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        got, expected = (model(TOKENS, use_cache=False, return_dict=False) for model in (ours, modules))
        assert len(got) == len(expected) == 1
    with pytest.raises(ModelError, match="outside the vocabulary"):
        ours(torch.tensor([[5, 128]]))
    with pytest.raises(ModelError, match="choose one of auto, modules"):
        kit.hf.load(ours.forward._own.file, engine="fast")


def hook(model):
    model.model.layers[1].register_forward_hook(lambda *_: None)


NEEDS = {  # words of the warning -> (what is done to the model before, what it is given)
    "output_hidden_states was given": (None, {"output_hidden_states": True}),
    "output_attentions was given": (None, {"output_attentions": True}),
    "labels was given": (None, {"labels": TOKENS}),
    "inputs_embeds was given": (None, {"input_ids": None, "inputs_embeds": torch.ones(1, 4, 64)}),
    "a hook on model.layers.1": (hook, {}),
    "model.norm.weight was changed": (lambda model: model.model.norm.weight.data.mul_(1.5), {}),
    "model.layers.0.mlp was changed": (lambda model: setattr(model.model.layers[0], "mlp", torch.nn.Identity()), {}),
    "training mode": (lambda model: model.train(), {}),
    "its numbers are bfloat16": (lambda model: model.to(torch.bfloat16), {}),
    "its weights have gradients": (lambda model: model.requires_grad_(True) and model.lm_head.requires_grad_(False), {}),
    "a StaticCache that the kit": (None, {CACHE: "static"}),
    "hides a token after others": (None, {"attention_mask": torch.tensor([[1] * 9 + [0] * 3])}),
    "padding without position_ids": (None, {"attention_mask": torch.tensor([[0] * 3 + [1] * 9])}),
    "the positions do not count": (None, {"position_ids": torch.arange(12)[None] * 2}),
    "more tokens than its context of 64": (None, {"input_ids": torch.arange(70)[None]}),
}


@pytest.mark.parametrize("words", NEEDS)
def test_what_needs_the_modules_runs_by_them_with_one_line(both, words):
    change, given = NEEDS[words]
    ours, modules = map(copy.deepcopy, both("llama"))
    if change:
        for model in (ours, modules):
            change(model)
    found = []
    for model in (ours, modules):
        cache = {CACHE: transformers.StaticCache(model.config, 12)} if CACHE in given else {}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                found.append(model(**{"input_ids": TOKENS} | given | cache).logits)
                cache = {name: transformers.StaticCache(model.config, 12) for name in cache}
        lines = [str(line.message) for line in said if "kit.hf" in str(line.message)]
        assert len(lines) == (model is ours)
        assert all(words in line and "llama.gguf" in line for line in lines)
    assert torch.equal(found[0], found[2])


def test_a_hook_in_the_middle_of_a_text_hands_the_cache_over(both):
    ours, modules = map(copy.deepcopy, both("llama"))
    seen, found = [], []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in (ours, modules):
            cache = model(PADDED, attention_mask=MASK, position_ids=PLACES)[CACHE]
            handle = model.lm_head.register_forward_hook(lambda *_: seen.append(1))
            mask = torch.cat([MASK, torch.ones(3, 1, dtype=torch.int64)], 1)
            positions = mask.sum(1)[:, None] - 1
            given = {CACHE: cache, "attention_mask": mask, "position_ids": positions}
            found.append(model(torch.tensor([[9], [8], [7]]), **given).logits)
            handle.remove()
    assert len(seen) == 2
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert torch.equal(*(generate(model) for model in (ours, modules)))


def test_right_padding_and_static_caches_give_the_tokens_of_the_modules(both):
    ours, modules = map(copy.deepcopy, both("llama"))
    for how in ({"attention_mask": MASK.flip(1)}, {"attention_mask": MASK, "cache_implementation": "static"}):
        with pytest.warns(UserWarning, match="uses transformers' modules"):
            got = generate(ours, PADDED, **how)
        assert torch.equal(got, generate(modules, PADDED, **how))


def test_a_file_of_which_the_two_read_another_number_runs_by_the_kit_alone(tmp_path):
    path = hf_files.write(tmp_path, "gemma3", lambda metadata, _: metadata.update({"attention.sliding_window": 4}))
    kit.hf.load(path)
    path = hf_files.write(tmp_path, "llama", lambda metadata, _: metadata.update({"rope.scaling.factor": 4.0}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = kit.hf.load(path)
        assert torch.allclose(model(TOKENS[:1]).logits[0], kit.Transformer(path).logits(TOKENS[0].tolist()), atol=1e-5)
    another = r"llama\.gguf: .*transformers reads from this file another RoPE than the kit, so its modules would give other"
    with pytest.raises(kit.KitError, match=another):
        model(TOKENS, output_hidden_states=True)
    with pytest.raises(kit.KitError, match=another):
        kit.hf.load(path, engine="modules")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "weights"),
    [("smollm2-135m", "blocks"), ("smollm2-135m", "float32"), ("gemma-3-270m", "blocks")],
    indirect=["trained"],
)
def test_a_trained_model_gives_the_tokens_of_the_modules(trained, weights):
    (ours, tokenizer), (modules, _) = (kit.hf.load(trained, weights, engine=engine) for engine in ("auto", "modules"))
    prompts = tokenizer(["The capital of France is", "Once upon a time, there"], return_tensors="pt", padding=True)
    ids, mask = prompts["input_ids"], prompts["attention_mask"]
    for way, how in [*WAYS.items()][: 1 if weights == "float32" else None]:  # how weights are held changes no way to choose
        one = {"attention_mask": mask[:1], "eos_token_id": None}
        assert torch.equal(*(generate(model, ids[:1], **how | one) for model in (ours, modules))), way
    assert torch.equal(*(generate(model, ids, attention_mask=mask) for model in (ours, modules)))


@pytest.mark.slow
def test_rounded_activations_of_both_engines_are_nearer_to_each_other_than_to_exact_ones(smollm2):
    """Each token is the first: over several, a code that falls to the other side changes all after it in 30 layers."""
    ids = kit.hf.load(smollm2)[1]("The capital of France is Paris, and", return_tensors="pt")["input_ids"].T
    models = (
        kit.hf.load(smollm2, weights, engine=engine)[0]
        for weights, engine in (("blocks-int8", "auto"), ("blocks-int8", "modules"), ("blocks", "auto"))
    )
    ours, modules, exact = (torch.cat([model(row[None]).logits for row in ids]) for model in models)
    assert 2 * (ours - modules).std(-1).median() < (modules - exact).std(-1).median()


@pytest.mark.parametrize("engine", ["auto", "modules"])
def test_a_file_of_small_pages_is_looked_at_once_after_the_first_pass(tmp_path, engine, monkeypatch):
    """As kit.Transformer does, by either engine (kit.gguf.large_pages)."""
    looked = []
    monkeypatch.setattr("kit.gguf.reader.GGUFFile.enlarge_pages", lambda file, trace: looked.append(file.path))
    model, _ = kit.hf.load(hf_files.write(tmp_path, "llama"), engine=engine)
    assert looked == []
    for _ in range(2):
        with torch.no_grad():
            model(TOKENS)
        assert looked == [model.lm_head.weight.source.weights.file.path]
