"""Generation: greedy against float64, sampling against its definition, streamed text, the command."""

import io
import json
import sys

import model_files
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from reference_model import forward

import kit
from kit.errors import ModelError
from kit.lab import progress
from kit.lab.commands.cli import main
from kit.lab.predicting import opening
from kit.model import budget
from kit.model.generate import Sampler


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_files.write(tmp_path_factory.mktemp("models"), "tiny-llama")


@pytest.fixture(scope="module")
def model(path):
    return kit.Transformer(kit.Weights(kit.open(path), kit.HashMap()))


def test_greedy_is_the_most_likely_of_float64(path, model):
    metadata, tensors = model_files.plain(path)
    sequence = [1, 300, 17]
    for _ in range(5):
        sequence.append(int(forward(sequence, metadata, tensors)[-1].argmax()))
    answer = kit.generate(model, sequence[:3], max_tokens=5, stop_at_end=False)
    assert answer.tokens == sequence[3:]
    assert answer.stopped == "max_tokens" and len(answer.seconds) == len(answer.nbytes) == 5


def test_text_in_text_out(model):
    pieces = []
    answer = kit.generate(model, "The capital of France is", max_tokens=20, on_text=pieces.append, stop_at_end=False)
    assert answer.prompt == model.tokenizer.encode("The capital of France is")
    assert "".join(pieces) == answer.text
    assert answer.text.rstrip("\ufffd") == model.tokenizer.decode([0, *answer.tokens])[: len(answer.text)].rstrip("\ufffd")


def test_it_stops_at_the_end_of_text(model, monkeypatch):
    tokens = kit.generate(model, [5, 6], max_tokens=4, stop_at_end=False).tokens
    monkeypatch.setattr(model.tokenizer, "end_tokens", {tokens[2]})
    answer = kit.generate(model, [5, 6], max_tokens=4)
    assert answer.tokens == tokens[: tokens.index(tokens[2]) + 1] and answer.stopped == "end of text"


def test_it_stops_at_the_context(path):
    model = kit.Transformer(kit.Weights(kit.open(path), kit.HashMap()), max_context=6)
    answer = kit.generate(model, [5, 6, 7], max_tokens=50, stop_at_end=False)
    assert len(answer.tokens) == 4 and answer.stopped == "context"  # the last one is not fed back


def test_a_conversation_goes_on_in_its_cache(model):
    cache = model.new_cache()
    first = kit.generate(model, [5, 6, 7], max_tokens=3, stop_at_end=False, cache=cache)
    second = kit.generate(model, [first.tokens[-1], 8, 9], max_tokens=3, stop_at_end=False, cache=cache)
    whole = kit.generate(model, [5, 6, 7, *first.tokens, 8, 9], max_tokens=3, stop_at_end=False)
    assert second.tokens == whole.tokens


def test_bytes_read_are_weights_and_cache(model):
    answer = kit.generate(model, [5, 6, 7], max_tokens=3, stop_at_end=False)
    weights = sum(model.weights.nbytes(name) for name in model.config.tensors() if name != "token_embd.weight")
    position, embedding = model.new_cache().bytes_per_position, model.file.tensors["token_embd.weight"]
    row = embedding.nbytes // embedding.shape[0]
    assert answer.nbytes == [weights + position * held + row * tokens for held, tokens in ((3, 3), (4, 1), (5, 1))]
    speed = answer.speed()
    assert speed["prefill_tokens"] == 3 and speed["decode_tokens"] == 2
    assert speed["decode_gb_per_second"] == pytest.approx(sum(answer.nbytes[1:]) / sum(answer.seconds[1:]) / 1e9)


# --- sampling


def frequencies(sampler, logits, draws=4000):
    return np.bincount([sampler(logits) for _ in range(draws)], minlength=len(logits)) / draws


LOGITS = torch.tensor([2.0, 0.5, 3.0, -1.0, 2.5, 0.0])


@pytest.mark.parametrize(
    "options,kept",
    [
        ({"temperature": 1.0}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 1.0, "top_k": 3}, [2, 4, 0]),
        ({"temperature": 2.0, "top_p": 0.7}, [2, 4]),  # 0.45 + 0.27 hold 0.7 of the probability before the temperature
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.99}, [2, 4, 0]),
        ({"temperature": 1.0, "top_p": 1e-9}, [2]),
    ],
)
def test_draws_follow_their_distribution(options, kept):
    chances = np.zeros(6)
    chances[kept] = np.exp(LOGITS.numpy()[kept] / options["temperature"])
    chances /= chances.sum()
    assert np.abs(frequencies(Sampler(**options, seed=1), LOGITS) - chances).max() < 0.03


def test_greedy_takes_the_first_of_equals():
    assert Sampler()(torch.tensor([1.0, 3.0, 3.0])) == 1


def test_a_seed_repeats_itself(model):
    texts = [
        kit.generate(model, [5, 6], max_tokens=12, temperature=1.5, seed=seed, stop_at_end=False).tokens for seed in (3, 3, 4)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("options,message", [
    ({"temperature": -1.0}, "temperature is -1.0"), ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_k": -1}, "top_k is -1"), ({"top_p": 0.0}, "top_p is 0.0"), ({"top_p": 1.5}, "top_p is 1.5"),
    ({"seed": 2**70}, "seed is 1180591620717411303424"), ({"seed": -(2**63) - 1}, "seed is -9223372036854775809"),
    ({"max_tokens": 0}, "max_tokens is 0"),
])  # fmt: skip
def test_settings_out_of_range(model, options, message):
    with pytest.raises(ModelError, match=message):
        kit.generate(model, [5], **options)


# --- the command


def run(*args):
    return CliRunner().invoke(main, ["generate", *map(str, args)])


def test_the_command_streams_text_and_reports_speed(path, model):
    result = run(path, "-p", "The capital of France is", "-n", 8, "--ignore-end")
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(main, ["generate", "-p", "x"]).exit_code == 2  # no model is named
    by_option = CliRunner().invoke(main, ["generate", "--model", str(path), "-p", "The capital of France is", "-n", "8"])
    answer = kit.generate(model, "The capital of France is", max_tokens=8, stop_at_end=False)
    assert answer.text.startswith(by_option.stdout.rstrip("\n"))
    assert result.stdout == answer.text + "\n"
    for word in ("first token", "prefill", "decode", "tok/s", "GB/s read", "peak memory", "kernels", "straight from the file"):
        assert word in result.stderr


@pytest.mark.parametrize("cache,shown", [("none", "NoCache"), ("lru:1MiB", "LRU('1MiB')"), ("pinned:2MB", "Pinned('2MB')")])
def test_the_command_as_json(path, model, cache, shown):
    options = ("--attention", "chunked", "--kv", "float16", "--linear", "matmul", "--cache", cache)
    result = run(path, "--tokens", "5,6 7", "-n", 4, "--json", "--ignore-end", *options)
    values = json.loads(result.stdout)
    assert values["tokens"] == kit.generate(model, [5, 6, 7], max_tokens=4, stop_at_end=False).tokens
    assert values["prompt"] == [5, 6, 7] and shown in values["cache"] and values["peak_memory_bytes"] > 2**20
    assert values["decode_tokens"] == 3 and values["prefill_gb_per_second"] > 0


@pytest.mark.parametrize("args,message", [
    (("-p", "a", "--tokens", "1"), "give exactly one of -p, --prompt-file and --tokens"),
    (("-p", "a", "--linear", "fused", "--backend", "reference"), "--backend has no effect"),
    (("-p", "a", "--top-k", "5"), "--top-k has no effect at --temperature 0"),
    (("-p", "a", "--system", "b"), "--system has no effect"), (("--tokens", "5", "--chat"), "--chat has no effect"),
    (("-p", "a", "--chat-template-kwargs", "{}"), "--chat-template-kwargs has no effect without a chat"),
    (("-p", "a", "--chat"), "has no chat template"), (("-p", "a", "--cache", "lru:1"), "1 bytes? write 1GiB"),
    ((), "give exactly one of -p, --prompt-file and --tokens"), (("--tokens", "1,x"), "is not a list of token ids"),
    (("-p", "a", "--cache", "most"), "not one of none, all, auto, lru:SIZE"),
    (("-p", "a", "--attention", "magic"), "'magic' is not known; choose one of"), (("-p", "a", "--backend", "magic"), "magic"),
    (("--tokens", "999"), "token 999 is outside the vocabulary of 512"),
    (("-p", "", "--context", "9999"), "context 9999 is not possible"),
])  # fmt: skip
def test_the_command_fails_in_one_line(path, args, message):
    result = run(path, *args)
    assert result.exit_code == 2 and message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "options", [("--memory", "1GiB", "--linear", "dequantized"), ("--policy", "LFU")], ids=["memory", "policy"]
)
def test_commands_that_run_a_model_refuse_by_one_table(path, options):
    """kit generate and kit perplexity open a model by one function."""
    commands = (["generate", str(path), "-p", "a"], ["perplexity", str(path)])
    ran = [CliRunner().invoke(main, [*command, *options]) for command in commands]
    assert [each.exit_code for each in ran] == [2, 2]
    assert len({each.stderr.partition(": see kit")[0] for each in ran}) == 1 and "has no effect" in ran[0].stderr


@pytest.mark.parametrize(
    "beyond, policy", [(1 << 30, "HashMap"), (4 << 20, "Pinned"), (0, "NoCache"), (-budget.LIBRARIES, None)]
)
def test_auto_keeps_what_fits_beside_the_largest_matrix_and_the_process(path, beyond, policy, monkeypatch):
    """Under small limits of memory: as many of the weights as fit, none, or an error before the first is dequantized."""
    free = budget.LIBRARIES + budget.RUNNING + budget.COMPILING + beyond
    monkeypatch.setattr(budget, "memory_available", lambda: free)
    with kit.open(path) as file:
        if policy:
            assert type(opening.policy_of("auto", file, 4 << 20)) is getattr(kit, policy)
        else:
            with pytest.raises(ModelError, match=r"weight' takes 512.0 KiB once it is dequantized, and 130.0 MiB are free"):
                opening.policy_of("auto", file, 4 << 20)


def test_what_is_timed_is_warm(path, monkeypatch):
    """A throw-away pass comes first, over other weights: kernels are there, and the cache that was asked for is empty."""
    passes = []
    plain = kit.Transformer.step

    def step(self, tokens, cache):
        passes.append((len(tokens), self.weights.store.stats.misses))
        return plain(self, tokens, cache)

    monkeypatch.setattr(kit.Transformer, "step", step)
    values = json.loads(run(path, "--tokens", ",".join(["5"] * 40), "-n", 4, "--json", "--cache", "all", "--ignore-end").stdout)
    assert [count for count, _ in passes] == [32, 1, 1, 40, 1, 1, 1]
    assert [misses for _, misses in passes][3] == 0 and values["kernels_seconds"] > 0


def test_a_prompt_from_a_file_and_from_standard_input(path, tmp_path):
    right = run(path, "-p", "The capital of France is", "-n", 4).stdout
    (tmp_path / "prompt.txt").write_text("The capital of France is\n")
    assert run(path, "--prompt-file", tmp_path / "prompt.txt", "-n", 4).stdout == right
    piped = CliRunner().invoke(main, ["generate", str(path), "-p", "-", "-n", "4"], input="The capital of France is\n")
    assert piped.stdout == right


@pytest.mark.parametrize("how", ["argument", "file", "standard input"])
def test_a_prompt_that_is_not_utf8_is_refused(path, tmp_path, how):
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    arguments = {"argument": ["-p", "caf\udce9"], "file": ["--prompt-file", str(tmp_path / "latin1.txt")]}.get(how, ["-p", "-"])
    result = CliRunner().invoke(main, ["generate", str(path), *arguments], input=b"caf\xe9")
    assert result.exit_code == 2 and "not UTF-8 at" in result.stderr and result.stderr.count("\n") == 1


def test_a_prompt_has_a_bar_on_a_terminal_and_none_in_a_file(path, monkeypatch):
    """The bar counts the operations of a pass up to all of them, and is gone before the first token's text."""
    monkeypatch.setattr(progress, "_DELAY", 0)
    for terminal in (True, False):
        shown = io.StringIO()
        shown.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", shown)
        trace = progress.PromptTrace()
        model = kit.Transformer(kit.Weights(path, trace=trace))
        kit.generate(model, [5, 6], max_tokens=1)
        operations = sum(span.what not in ("access", "read", "dequantize") for span in trace.spans)
        trace.clear()
        trace.begin()
        bar = trace.bar
        bar.mininterval = 0
        kit.generate(model, [5] * 40, max_tokens=2, on_text=lambda _, trace=trace: None if trace.bar is None else pytest.fail())
        assert trace.bar is None and ("100%|" in shown.getvalue()) == terminal
        assert (bar.total == bar.n == operations) or not terminal
