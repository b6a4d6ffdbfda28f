"""Perplexity and quality against their definitions, and perplexity against llama.cpp on the same tokens."""

import json
import math
import re
from types import SimpleNamespace

import hf_files
import llama_cpp
import model_files
import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.codec.container import CompressedFile
from kit.codec.weights import CompressedWeights
from kit.cpu import linear
from kit.errors import ModelError
from kit.lab.commands.cli import main
from kit.lab.compressor import compress
from kit.lab.measuring.intervals import error_of_mean
from kit.lab.predicting import divergence, perplexity, quality
from kit.lab.predicting.losses import format_kl
from kit.lab.predicting.perplexity import windows
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS, LAZY, Way
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize
from kit.model.hyperparameters import read_config
from kit.model.tokenizer import tokenizer_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("models") / "m.gguf", "tiny-llama")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_MODELS", str(tmp_path))
    return tmp_path


def surprisals(logits, tokens, first):
    """-log softmax, in float64 by numpy, of tokens[first:] after logits (tokens, vocabulary)."""
    logits = np.asarray(logits, np.float64)
    largest = logits.max(1)
    sums = np.log(np.exp(logits - largest[:, None]).sum(1)) + largest
    return [sums[i - 1] - logits[i - 1, tokens[i]] for i in range(first, len(tokens))]


@given(length=st.integers(0, 40), context=st.integers(2, 12), stride=st.integers(1, 11), bos=st.sampled_from([None, 99]))
def test_windows_score_every_token_once(length, context, stride, bos):
    ids, begin = list(range(length)), [] if bos is None else [bos]
    if stride >= context:
        with pytest.raises(ModelError, match="give a stride from 1 to"):
            list(windows(ids, bos, context, stride))
        return
    scored = []
    for window, first in windows(ids, bos, context, stride):
        assert len(window) <= context and first >= 1
        assert window[: len(begin)] == begin
        assert window[len(begin) :] == list(range(window[len(begin)], window[-1] + 1))
        if scored:
            assert first >= context - stride  # what came before it is context
        scored += window[first:]
    assert scored == ids[1 - len(begin) :]


@pytest.mark.parametrize("bos", [None, 1])
def test_perplexity_equals_llama_cpp(path, bos):
    ids = np.random.default_rng(1).integers(3, 500, 100).tolist()
    with kit.open(path) as file:
        found = perplexity.perplexity(kit.Transformer(kit.Weights(file)), ids, bos, context=40, stride=20)
    theirs = [
        number
        for window, first in windows(ids, bos, 40, 20)
        for number in surprisals(llama_cpp.logits(path, window), window, first)
    ]
    assert found.surprisal == pytest.approx(theirs, rel=1e-2)  # llama.cpp rounds activations to INT8 blocks
    assert found.value == pytest.approx(np.exp(np.mean(theirs)), rel=1e-3)
    alone = found.value * np.std(theirs, ddof=1) / np.sqrt(len(theirs))  # if each token were independent of its neighbors
    assert alone / 2 < found.error < 4 * alone
    assert found.passed == sum(len(window) for window, _ in windows(ids, bos, 40, 20))


def test_surprisal_is_minus_log_softmax():
    logits, targets = torch.randn(70, 33) * 9, torch.randint(0, 33, (70,)).tolist()
    expected = -logits.double().log_softmax(1)[range(70), targets]
    assert torch.from_numpy(perplexity.surprisal(logits, targets)).allclose(expected)


def test_no_surprisal_is_too_large():
    """Beyond e^709, which no float64 holds, the perplexity is infinite."""
    found = perplexity.Perplexity(np.array([700.0, 800.0]), 2, 1.0)
    assert found.value == found.error == math.inf and perplexity.power(709) == math.exp(709)
    assert math.isnan(perplexity.power(math.nan))
    nearly, never = torch.tensor([[800.0, 0.0]]), torch.tensor([[1]])
    columns = divergence._columns(*divergence._each(nearly, 2 * nearly, never[0]).numpy())
    assert columns["perplexity"] == columns["ratio"] == math.inf and columns["kl"] == 0


def test_a_text_without_a_token_to_score(path):
    with kit.open(path) as file, pytest.raises(ModelError, match="too few to score"):
        perplexity.perplexity(kit.Transformer(kit.Weights(file)), [5])


def test_as_many_tokens_as_asked_whatever_their_length():
    """16 characters a token were cut out: of a text whose tokens are longer, fewer were scored, silently."""

    class Runs:
        def encode(self, text, special, ends):
            return [len(run) for run in text.split("|") if run]

    text = "|".join(["x" * 100] * 500)
    assert perplexity.encode(Runs(), text, 400) == [100] * 400
    assert perplexity.encode(Runs(), text, 10**23) == perplexity.encode(Runs(), text) == [100] * 500


def test_a_text_with_fewer_tokens_than_asked_is_said(path, tmp_path):
    (tmp_path / "t.txt").write_text("the of and to in " * 30)
    run = lambda *options: CliRunner().invoke(main, ["perplexity", str(path), "--text", str(tmp_path / "t.txt"), *options])  # noqa: E731
    few = run("--tokens", str(10**23))
    assert few.exit_code == 0 and re.search(r"kit: warning: .*t.txt has [\d,]+ tokens, fewer than --tokens 1000", few.stderr)
    assert "fewer than" not in run().stderr + run("--tokens", "20").stderr


def test_the_command(path, tmp_path):
    (tmp_path / "t.txt").write_text("the of and to in " * 30)
    run = lambda *options: CliRunner().invoke(main, ["perplexity", str(path), *options])  # noqa: E731
    text = ("--text", str(tmp_path / "t.txt"), "--context", "32")
    facts = json.loads(run(*text, "--json").output)
    assert facts["stride"] == 16 and facts["tokens"] > 100 and facts["tokens_per_second"] > 0
    assert run(*text).output.startswith(f"{facts['perplexity']:.3f} ± {facts['error']:.3f}")
    rounded = json.loads(run(*text, "--json", "--dtype", "bfloat16").output)
    assert 0 < abs(rounded["perplexity"] / facts["perplexity"] - 1) < 0.01
    assert json.loads(run("--tokens", "60", "--json").output)["tokens"] == 60
    assert run("--dtype", "float16", "--linear", "fused").exit_code == 2


def test_what_generate_runs_through_transformers_has_a_perplexity(tmp_path, monkeypatch):
    """The kit has no pass for bloom; transformers' own logits give the same surprisals."""
    kind, sizes = hf_files.MODELS["bloom"]
    monkeypatch.setitem(hf_files.MODELS, "bloom", (kind, sizes | {"vocab_size": 512}))
    words = GEOMETRIES["tiny-llama"].vocabulary.metadata()
    source = hf_files.write(tmp_path, "bloom")
    path = model_files.rewrite(source, tmp_path / "words.gguf", lambda metadata, _: metadata.update(words))
    run = lambda *options: CliRunner().invoke(main, ["perplexity", "--tokens", "60", "--context", "40", *options, "--json"])  # noqa: E731
    told = json.loads(run(str(path)).stdout)
    model, tokenizer = kit.hf.load(path)
    ids = perplexity.encode(tokenizer.own, perplexity.english(), 60)
    nats = [
        surprisals(model(torch.tensor([window])).logits[0].detach().numpy(), window, first)
        for window, first in windows(ids, tokenizer.own.bos, 40, 20)
    ]
    assert told["perplexity"] == pytest.approx(math.exp(np.concatenate(nats).mean()), rel=1e-4) and told["linear"] == "fused"
    rounded = json.loads(run(str(path), "--linear", "fused-int8").stdout)
    assert rounded["perplexity"] == pytest.approx(told["perplexity"], rel=0.1)
    refused = run(str(path), "--kv", "q8_0")
    assert refused.exit_code == 2 and "--kv has no effect on bloom, which runs through" in refused.stderr
    refused = run(str(hf_files.write(tmp_path, "t5")))
    assert refused.exit_code == 2 and "no perplexity" in refused.stderr and refused.stderr.count("\n") == 1


@pytest.mark.parametrize("options,message", [
    (["--text", "latin1.txt"], "latin1.txt: not UTF-8 at byte 3"), (["--text", "two.txt"], "too few to score"),
    (["--text", "none.txt"], "none.txt: No such file"), (["--context", "999999"], "windows have 2 to 2048"),
    (["--context", "8", "--stride", "8"], "--stride 8: give at most 7"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(path, tmp_path, monkeypatch, options, message):
    """`217685 ± nan` of two letters, a context cut in silence, replaced characters: none of these is an answer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 " * 99)
    (tmp_path / "two.txt").write_text("a")
    result = CliRunner().invoke(main, ["perplexity", str(path), *options])
    assert result.exit_code == 2 and message in result.stderr and "nan" not in result.output


# --- quality


def decoded(model, tokens):
    """Logits after each token, one token at a time."""
    cache = model.new_cache(len(tokens))
    return torch.stack([model.step([token], cache) for token in tokens])


def live(file, name, folder):
    """The model of precision ``name``, as it runs outside of quality()."""
    if name == "INT8 tiles":
        weights = CompressedWeights(CompressedFile(compress(file.path, folder / "m.kit")))
        return kit.Transformer(weights, linear=weights.linear)
    dtype = {"float16": "float16", "bfloat16": "bfloat16"}.get(name, "float32")
    linear = {f"{way} activations": f"fused-{way}" for way in ("int8", "int16")}
    linear = (linear | {"float16": "dequantized", "bfloat16": "dequantized"}).get(name, "fused")
    kv = {"float16 KV": "float16", "q8_0 KV": "q8_0"}.get(name, "float32")
    return kit.Transformer(kit.Weights(file, dtype=dtype), linear=linear, kv_dtype=kv)


@pytest.mark.parametrize("name", quality.PRECISIONS)
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-granite"])
def test_what_is_measured_is_what_runs(tmp_path, model, name):
    """The logits that quality compares are those of the way itself, decoded token by token; granite's embedding is tied."""
    tokens = list(range(5, 29))
    with kit.open(synthesize(tmp_path / "m.gguf", model)) as file:
        measured = quality._source(quality.model_of(file, quality.PRECISIONS[name]), len(tokens), few=False).step(tokens)
        running = decoded(live(file, name, tmp_path), tokens)
        exact = quality.model_of(file, quality.PRECISIONS["float32"]).logits(tokens)
    apart = (running - measured).square().mean().sqrt()
    if name == "float32":
        assert apart < 1e-5 * exact.std()
    else:
        # of float32 sums: those of a float16 cache lie little above it; int16 rounds so finely that a layer changes the next
        noise = (1e-4 if name == "int16 activations" else 2e-6) * exact.std()
        assert apart < 0.2 * (running - exact).square().mean().sqrt() + noise


def test_quality_by_its_definition(path, cached):
    with kit.open(path) as file:
        table = quality.quality(file, ["float32", "INT8 tiles"], tokens=20)
        exact = quality.model_of(file, quality.PRECISIONS["float32"], attention="blas")
        rounded = quality.model_of(file, quality.PRECISIONS["INT8 tiles"], attention="blas")
        bos = exact.tokenizer.bos
        ids = [bos, *perplexity.encode(exact.tokenizer, perplexity.english(), 19)]
        p = exact.logits(ids)[:-1].double().log_softmax(1)
        q = rounded.logits(ids)[:-1].double().log_softmax(1)
    p, q, ids = p[9:], q[9:], ids[9:]  # of 19 positions the first 9 are context: a longer text has 16 of them
    kl = (p.exp() * (p - q)).sum(1)
    row = table.loc["INT8 tiles"]
    assert row.kl == pytest.approx(float(kl.mean()), rel=1e-6) and row.kl > 0
    assert row.kl_error == pytest.approx(float(kl.std()) / 10**0.5, rel=1e-6)
    assert row.perplexity == pytest.approx(float(torch.exp(-q[range(10), ids[1:]].mean())), rel=1e-6)
    assert row.ratio == pytest.approx(row.perplexity / table.loc["float32"].perplexity, rel=1e-6)
    assert table.loc["float32"].kl == 0 and table.loc["float32"].same == 1 and row.tokens == 10


def test_from_blocks_a_few_tokens_at_a_time_give_the_logits_of_all_at_once(path):
    ids = [*range(1, 2 * quality._AT_ONCE + 4)]
    with kit.open(path) as file:
        model = quality.model_of(file, quality.Precision(), attention="blas")
        whole = model.logits(ids)
        source = quality._source(model, len(ids), few=True)
        parts = torch.cat([source.step(ids[:9]), source.step(ids[9:])])
        assert torch.allclose(parts, whole, rtol=0, atol=1e-4 * float(whole.std()))


@pytest.mark.parametrize("rounds", [True, False])
def test_the_divergence_of_a_way_is_that_of_the_pass_whose_speed_is_shown(path, monkeypatch, rounds):
    """Where products of floats multiply a prompt, 16 bits round nothing of it: "KL 0 nats" stood over a decode that rounds."""
    monkeypatch.setattr(quality, "rounds_alike", lambda activations: rounds)
    with kit.open(path) as file:
        model = quality.model_of(file, quality.PRECISIONS["int16 activations"], attention="blas")
        asked, logits = [], model.logits
        monkeypatch.setattr(model, "logits", lambda ids, *given: asked.append(len(ids)) or logits(ids, *given))
        quality._source(model, 40, few=False).step([*range(1, 41)])
    assert max(asked) <= quality._AT_ONCE if not rounds else asked == [40]
    assert quality._AT_ONCE < linear.FEWEST, "what the kernels of a decode multiply"


class Told:
    """A model in place of one that computes: its logits follow from the tokens."""

    def __init__(self, file, precision, asked):
        self.linear, self.asked = SimpleNamespace(activations=precision.linear.partition("-")[2] or None), asked
        self.tokenizer, self.config = tokenizer_of(file), read_config(file)

    def new_cache(self, context):
        return None

    def logits(self, ids, start, cache):
        self.asked.append(len(ids))
        return torch.sin(torch.outer(torch.tensor(ids, dtype=torch.float32), torch.arange(400.0)))


@pytest.fixture
def told(monkeypatch):
    """How many tokens each pass of models in place of those that compute was asked for."""
    asked = []
    monkeypatch.setattr(quality, "model_of", lambda file, precision, **_: Told(file, precision, asked))
    monkeypatch.setattr(perplexity, "encode", lambda tokenizer, text, count: [*range(2, 2 + count)])
    return asked


@pytest.mark.parametrize("rounds", [True, False])
def test_a_way_that_rounds_is_asked_a_few_tokens_at_a_time_of_short_texts_or_where_prompts_do_not_round(
    path, cached, monkeypatch, told, rounds
):
    monkeypatch.setattr(quality, "rounds_alike", lambda activations: rounds)
    few = quality._AT_ONCE
    parts = lambda count: [few] * (count // few) + [count % few] * (count % few > 0)  # noqa: E731
    with kit.open(path) as file:
        weights = sum(info.elements for info in file.tensors.values())
        for tokens, more in ((20, 0), (21, 1)):  # one multiplication too many, one too few
            monkeypatch.setattr(quality, "_FEW", weights * tokens + more)
            told.clear()
            quality.quality(file, ["float32", "int8 activations"], tokens=tokens)
            asked = parts(tokens - 1) if more or not rounds else [tokens - 1]  # the last one predicts none
            assert sorted(told) == sorted([tokens - 1, *asked]), "float32 rounds nothing"
        told.clear()
        quality.from_blocks(file, 40, "fused-int8").step([*range(1, 41)])
        assert told == ([40] if rounds else parts(40)), "at once where products of a prompt round as well"


def test_what_computes_the_same_text_elsewhere_is_a_row_next_to_the_precisions(path, cached, told):
    with kit.open(path) as file:
        model = Told(file, quality.Precision(), [])
        peer = quality.LogitSource(lambda ids: model.logits(ids, 0, None) + 3.0)  # of the same probabilities
        table = quality.quality(file, ["float32", "INT8 tiles"], tokens=20, others={"peer": peer})
        assert [*table.index] == ["float32", "INT8 tiles", "peer"] and [*table.command] == ["", "--dtype int8", ""]
        assert table.loc["peer"].kl == pytest.approx(0, abs=1e-9) and table.loc["peer"].ratio == pytest.approx(1)
        passes = len(told)
        again = quality.quality(file, ["float32"], tokens=20, others={"peer": None})
        assert again.loc["peer"].kl == table.loc["peer"].kl and len(told) == passes == 2, "measured once"
        assert {*quality.kept(file, 20)} == {"float32", "INT8 tiles", "peer"} and quality.kept(file, 19) == {}


def test_a_file_whose_text_takes_minutes_is_measured_only_when_asked(path, cached, monkeypatch, told):
    monkeypatch.setattr(divergence, "tokens_for", lambda weights: 0)
    with kit.open(path) as file:
        assert quality.kept(file) == {}
        with pytest.raises(ModelError, match="add --thorough"):
            quality.quality(file)
        assert told == [] and quality.quality(file, ["float32"], tokens=8).loc["float32"].kl == 0


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3moe"])
def test_weights_are_rounded_as_their_formats_are_defined(tmp_path, name):
    """float16: each number; INT8: of matrices, an expert's too, to a 127th of the largest of its row."""
    with kit.open(model_files.write(tmp_path, name)) as file:
        plain, half, int8 = kit.Weights(file), *(
            quality.Rounded(file, quality.PRECISIONS[one].weights) for one in ("float16", "INT8 tiles")
        )  # fmt: skip
        assert max(info.shape[0] for info in file.tensors.values()) > quality._ROUNDED_ROWS
        for tensor in [f"{each}[3]" if "_exps" in each else each for each in file.tensors]:
            weight, rounded = plain.load(tensor), int8.load(tensor)
            assert torch.equal(half.load(tensor), weight.half().float())
            looked_up = tensor == "token_embd.weight" and "output.weight" in file.tensors
            if weight.ndim == 1 or looked_up:
                assert torch.equal(rounded, weight)
                continue
            step = weight.abs().amax(1, keepdim=True) / 127
            assert ((rounded - weight).abs() <= step * 0.5001).all()
            assert ((rounded / step) - (rounded / step).round()).abs().max() < 1e-3


def test_what_a_precision_rounds_is_said_with_its_divergence_where_that_is_known():
    table = pd.DataFrame({"kl": 0.0017, "kl_error": 0.0001, "tokens": 1024}, ["float32", "int8 activations"])
    said = quality.lost("int8 activations")
    assert said == "activations rounded to 8 bits" and "KL" not in quality.lost("float32", table)
    numbers = lambda text: re.findall(r"\d\S*", text.removeprefix(said))  # noqa: E731
    assert numbers(quality.lost("int8 activations", table)) == ["0.0017", "0.0001", "1,024"]
    assert numbers(quality.lost("int8 activations", table.drop(columns="tokens"))) == ["0.0017", "0.0001"]
    assert all("not measured" in quality.lost("int8 activations", each) for each in ("why not", table[:1]))


@given(st.integers(3, 700), st.integers(1, 60))
def test_the_estimator_scores_each_position_once_whatever_its_steps(tokens, most):
    """Against the definition over all positions at once; sources take the same tokens in the same steps."""
    random = torch.Generator().manual_seed(tokens)
    truth, other = torch.randn(2, tokens, 7, generator=random)
    window = torch.randint(7, (tokens,), generator=random).tolist()
    sources = {"all": divergence.recorded(other), "some": divergence.recorded(other)._replace(most=most)}
    found = divergence.compare(window, divergence.recorded(truth), sources)
    first = min(16, (tokens - 1) // 2)
    p, q = (side[first:-1].double().log_softmax(1) for side in (truth, other))
    kl = (p.exp() * (p - q)).sum(1)
    assert found["all"]["tokens"] == tokens - 1 - first and found["all"]["kl"] == pytest.approx(float(kl.mean()))
    assert found["some"]["tokens"] == min(most, len(kl)) and found["some"]["kl"] == pytest.approx(float(kl[:most].mean()))
    theirs, ours = (-side[range(len(kl)), window[first + 1 :]] for side in (p, q))
    value, ratio = (float(each.mean().exp()) for each in (ours, ours - theirs))
    assert found["all"]["perplexity"] == pytest.approx(value) and found["all"]["ratio"] == pytest.approx(ratio)
    assert found["all"]["same"] == pytest.approx(float((p.argmax(1) == q.argmax(1)).double().mean()))
    errors = error_of_mean(kl.numpy()), value * error_of_mean(ours.numpy()), ratio * error_of_mean((ours - theirs).numpy())
    told = [found["all"][f"{name}_error"] for name in ("kl", "perplexity", "ratio")]
    assert told == pytest.approx(errors, nan_ok=True)


@pytest.mark.parametrize(("kl", "error", "said"), [
    (0.0017, 0.0001, "0.0017 ± 0.0001"), (0.10, 0.10, "less than 0.3"), (0.061, 0.06, "less than 0.2"), (0.0, 0.0, "0"),
    (0.1, 0.05, "0.1 ± 0.05"), (0.1, 0.051, "less than 0.2"),
    (0.38, math.nan, "not known"), (math.nan, math.nan, "not measured"), (4e-9, 1e-10, "4e-09 ± 1e-10"), (4e-11, 1e-12, "0"),
    (0.00136, 6e-5, "0.0014 ± 0.00006"), (1e-4, 1e-5, "0.0001 ± 0.00001"), (9.9e-5, 1e-5, "9.9e-05 ± 1e-05"),
])  # fmt: skip
def test_no_divergence_is_printed_whose_error_rivals_it(kl, error, said):
    assert format_kl(kl, error) == said


def test_a_model_of_2e9_weights_has_all_positions_and_a_very_large_one_none_but_thoroughly():
    scored = lambda *given: divergence.tokens_for(*given) - 1 - divergence.CONTEXT  # noqa: E731
    assert [scored(weights) for weights in (1e8, 1.5e9, 2e9)] == [1024] * 3
    assert 200 < scored(8e9) < 300 and divergence.tokens_for(70e9) == 0 and scored(70e9, True) == 1024
    assert scored(2.05e12 / 128) == 128 and divergence.tokens_for(2.05e12 / 127) == 0


def test_a_window_begins_as_the_file_begins_a_text_and_fits_the_context(monkeypatch):
    monkeypatch.setattr(perplexity, "encode", lambda tokenizer, text, count: [*range(count)])
    assert divergence.window_of(SimpleNamespace(bos=7), 10, 4) == [7, 0, 1, 2]
    assert divergence.window_of(SimpleNamespace(bos=None), 3, 9) == [0, 1, 2]


def test_quality_is_measured_once(path, cached, monkeypatch):
    with kit.open(path) as file:
        first = quality.quality(file, ["float16 KV"], tokens=8)
        both = quality.quality(file, ["float16 KV", "q8_0 KV"], tokens=8)
        monkeypatch.setattr(divergence, "compare", None)
        monkeypatch.setattr(divergence, "tokens_for", lambda weights: 8)
        assert {name: row["kl"] for name, row in quality.kept(file).items()} == both["kl"].to_dict()
        assert quality.quality(file, ["float16 KV", "q8_0 KV"], tokens=8).equals(both)
        assert both.loc["float16 KV"].equals(first.loc["float16 KV"])
    with kit.open(model_files.write(cached, "tiny-granite")) as other:
        assert quality.kept(other) == {}
        with pytest.raises(TypeError):
            quality.quality(other, ["float16 KV"], tokens=8)
    monkeypatch.setattr(quality, "_CODE", quality._CODE[:-1])
    with kit.open(path) as file, pytest.raises(TypeError):  # as if the code had changed
        quality.quality(file, ["float16 KV"], tokens=8)


def test_every_way_has_a_precision():
    assert [way.precision for way in (LAZY, BLOCKS, BLOCK_WAYS[-1])] == ["float32", "float32", "int8 activations"]
    assert Way("LRU", 1, "bfloat16").precision == "bfloat16"
    assert Way("Pinned", 1, "int8").precision == "INT8 tiles"


@pytest.mark.slow
def test_a_trained_model_is_as_surprised_as_in_llama_cpp(trained):
    """Equal within a tolerance, because llama.cpp rounds activations, which changes single tokens by percents."""
    with kit.open(trained) as file:
        model = quality.model_of(file, quality.PRECISIONS["float32"])
        start = [model.tokenizer.bos] * ("gemma" in str(trained))  # which is at a loss without it
        ids = [*start, *perplexity.encode(model.tokenizer, perplexity.english(), 24)]
        ours = perplexity.surprisal(model.logits(ids)[:-1], ids[1:])
    moved = ours - surprisals(llama_cpp.logits(trained, ids), ids, 1)
    assert np.abs(moved).mean() < 0.3 and abs(moved.mean()) < 3 * error_of_mean(moved)
    assert 3 < np.exp(ours.mean()) < 300
