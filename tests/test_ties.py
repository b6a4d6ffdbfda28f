"""Equal scores of a router: every pass takes the lowest number first, so a prompt and what follows meet the same experts."""

import family_files
import llama_cpp
import model_files
import numpy as np
import pytest
import torch

import kit
from kit.cpu.operations import run
from kit.gguf.keys import SIGMOID, SOFTMAX
from kit.model.cpu_ops import best_experts
from kit.model.layers.mixture import Routing

TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 150)]
MIXTURES = {
    **dict.fromkeys(("tiny-qwen3moe", "tiny-gpt-oss", "granitemoe", "glm4moe", "tiny-deepseek2", "qwen3next"), model_files),
    **dict.fromkeys(("lfm2moe", "gemma4-mixture", "olmoe", "minimax-m2", "bailingmoe2", "nemotron_h_moe"), family_files),
}


def errors(got, right):
    return float((((got - right) ** 2).mean(-1).sqrt() / right.std(-1)).max())


def tied(source, folder, rows):
    """A copy of a file whose routers have equal ``rows`` (weights, biases of scores and of the choice)."""

    def change(metadata, tensors):
        routers = [name for name in tensors if "ffn_gate_inp." in name and tensors[name].ndim == 2]
        assert routers
        for name in routers:
            biases = (name.replace("weight", "bias"), name.replace("ffn_gate_inp.weight", "exp_probs_b.bias"))
            for each in (name, *biases):
                if each in tensors:
                    tensors[each][rows] = tensors[each][rows].mean(0) * (3 if each == name else 1)  # they are often chosen

    return model_files.rewrite(source, folder / f"tied-{len(rows)}-{source.name}", change)


@pytest.mark.parametrize("name, rows", [*((name, [1, 2, 3]) for name in MIXTURES), ("tiny-qwen3moe", [0, 1, 2, 3])])
def test_a_prompt_and_a_recorded_pass_choose_the_same_of_equal_experts(folder, name, rows):
    path = tied(MIXTURES[name].write(folder, name), folder, rows)
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
    path = tied(model_files.write(folder, "tiny-qwen3moe"), folder, [1, 2, 3])
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
