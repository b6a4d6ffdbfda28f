"""Equal scores of a router: every pass takes the lowest number first, so a prompt and what follows meet the same experts."""

import family_files
import kind_files
import llama_cpp
import model_files
import numpy as np
import pytest
import row_files
import torch

import kit
from kit.cpu.operations import run
from kit.gguf.keys import SIGMOID, SOFTMAX
from kit.model.best_experts import best_experts
from kit.model.layers.mixture import Routing

TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 150)]


def routers(tensors):
    """Names of the matrices that score a file's experts."""
    return [name for name, tensor in tensors.items() if "ffn_gate_inp." in name and tensor.ndim == 2]


def mixes(row):
    """Whether a model of the table has a layer with experts."""
    return "expert_count" in row.more and row.more.get("leading_dense_block_count", 0) < row.layers


MIXTURES = {  # every family of the tests' tables whose file has a router
    **{name: model_files for name, row in (model_files.MODELS | model_files.FAMILIES).items() if mixes(row)},
    **{
        name: files
        for files in (family_files, row_files, kind_files)
        for name in files.FILES
        if routers(files.FILES[name]().tensors)
    },
}


def errors(got, right):
    return float((((got - right) ** 2).mean(-1).sqrt() / right.std(-1)).max())


def tied(folder, name, rows):
    """A file of a family whose routers have equal ``rows`` (weights, biases of scores and of the choice)."""

    def change(metadata, tensors):
        assert routers(tensors)
        for router in routers(tensors):
            layer = router.partition("ffn_gate_inp")[0]
            for each in (router, *(f"{layer}{bias}" for bias in ("ffn_gate_inp.bias", "exp_probs_b.bias", "exp_probs_b"))):
                if each in tensors:
                    tensors[each][rows] = tensors[each][rows].mean(0) * (3 if each == router else 1)  # they are often chosen

    path, files = folder / f"tied-{len(rows)}-{name}.gguf", MIXTURES[name]
    if files is model_files:
        return model_files.rewrite(model_files.write(folder, name), path, change)
    file = files.FILES[name]()
    change(file.metadata, file.tensors)
    return file.write(path)


@pytest.mark.parametrize(
    "name, rows",
    [
        *(pytest.param(name, [1, 2, 3], marks=[pytest.mark.slow] * (number % 5 > 0)) for number, name in enumerate(MIXTURES)),
        ("tiny-qwen3moe", [0, 1, 2, 3]),
    ],
    ids=[*MIXTURES, "tiny-qwen3moe"],
)
def test_a_prompt_and_a_recorded_pass_choose_the_same_of_equal_experts(folder, name, rows):
    path = tied(folder, name, rows)
    model, other = kit.Transformer(path), kit.Transformer(path)
    other.unplanned = "asked for by a test"
    at_once, steps = model.logits(TOKENS[:24]), {}
    for each in (model, other):
        cache = each.new_cache(len(TOKENS))
        first = each.step(TOKENS[:2], cache)
        steps[each] = torch.stack([first, *(each.step([token], cache) for token in TOKENS[2:24])])
    assert model.unplanned == "" and errors(steps[model], steps[other]) < 1e-4
    assert errors(steps[model], at_once[1:]) < 1e-4
    last = min(150, model.max_context)  # many tokens are another product
    alone = torch.stack([model.logits(TOKENS[:n], -1)[0] for n in range(last - 2, last + 1)])
    assert errors(model.logits(TOKENS[:last], -3), alone) < 1e-4


def test_three_equal_rows_give_llama_cpps_logits(folder):
    path = tied(folder, "tiny-qwen3moe", [1, 2, 3])
    theirs = torch.from_numpy(llama_cpp.logits(path, TOKENS[:30]))
    assert errors(kit.Transformer(path).logits(TOKENS[:30]), theirs) < 1e-4


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("groups, groups_used", [(1, 1), (4, 2), (8, 3)])
def test_all_equal_scores_choose_the_first(groups, groups_used, sigmoid):
    """Of experts, of groups, of sigmoids that are 1 or as small as they get; for each of several tokens."""
    routing = Routing(4, SIGMOID if sigmoid else SOFTMAX, True, 1.0, groups, groups_used)
    for score in (0.0, 30.0, 90.0, -200.0):
        scores = torch.full((5, 32), score)
        scores[3, 17] = score + 1 if not sigmoid or score == 0 else score
        chosen, share = torch.empty(5, 4, dtype=torch.int64), torch.empty(5, 4)
        run("route", scores, chosen, share, routing)
        assert chosen[0].tolist() == chosen[4].tolist() == [0, 1, 2, 3]
        assert score < -100 or torch.allclose(share[0], torch.tensor(0.25))  # of almost nothing there is a least sum
        assert chosen.tolist() == best_experts(scores, routing)[1].sort(-1).values.tolist()
