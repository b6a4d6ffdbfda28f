"""Experts whose products are computed at once, compared with the same experts one by one."""

import kind_files
import pytest
import torch

import kit
from kit.cpu.linear import Activations, linear
from kit.cpu.operations import run
from kit.gguf.formats import FORMATS
from kit.lab.exactness import random_blocks
from kit.lab.synthetic.write import synthesize
from kit.model import grouped
from kit.model.cpu_ops import CpuOps


class Alone(CpuOps):
    def alone(self, stacks, tokens):
        return True


def passed(path, ops, how, tokens):
    with kit.open(path) as file:
        model = kit.Transformer(kit.Weights(file), linear=how)
        model.ops = ops
        logits = model.logits(tokens)
        spans = [span for span in model.trace.spans if "_exps." in span.tensor and span.what == "linear"]
    assert all(span.start <= span.end for span in spans)
    return logits, sorted((span.tensor, span.layer, span.token, span.nbytes) for span in spans)


@pytest.mark.parametrize("how", ["fused", "fused-int8", "dequantized"])
@pytest.mark.parametrize("family", ["tiny-qwen3moe", "tiny-gpt-oss", "llama4"])
def test_groups_have_the_bits_and_the_spans_of_experts_alone(tmp_path, monkeypatch, family, how):
    """gpt-oss has biases of its experts, llama4 weighs what they take."""
    path, tokens = tmp_path / "m.gguf", [number % 50 for number in range(40)]
    path = kind_files.llama4().write(path, "Q8_0") if family == "llama4" else synthesize(path, family)
    monkeypatch.setattr(grouped, "_ROWS", 48)
    alone, right = passed(path, Alone, how, tokens)
    logits, spans = passed(path, CpuOps, how, tokens)
    assert torch.equal(logits, alone) and spans == right and len({tensor for tensor, *_ in spans}) > 6


def test_a_group_has_as_many_experts_as_its_rows_allow(monkeypatch):
    """Expert 2 has too many tokens for a group, 0 and 1 fit one, and 5 is all that is left."""
    monkeypatch.setattr(grouped, "_ROWS", 5)
    chosen = torch.tensor([[2, 0], [1, 2], [2, 1], [2, 0], [5, 2], [2, 1]])
    share = torch.arange(12.0).view(6, 2)
    made = list(grouped.groups(chosen, share, lambda tokens: tokens > 5))
    assert [(str(group), group.sizes) for group in made] == [("0,1", [2, 3]), ("2", [6]), ("5", [1])]
    assert [group.token.tolist() for group in made] == [[0, 3, 1, 2, 5], [0, 1, 2, 3, 4, 5], [4]]
    for group in made:
        rows = zip([e for e, n in zip(group.experts, group.sizes, strict=True) for _ in range(n)], group.token, strict=True)
        assert group.share[:, 0].tolist() == [share[token][chosen[token] == expert].item() for expert, token in rows]
    assert [group.experts for group in grouped.groups(chosen, share, lambda tokens: True)] == [[0], [1], [2], [5]]


@pytest.mark.parametrize(("tokens", "rows", "size"), [(5, 1, 16), (7, 37, 40), (3, 64, 1040)])
def test_rows_are_taken_and_mixed_as_torch_does(tokens, rows, size):
    """In widths that are no multiple of a vector or of a task's columns."""
    generator = torch.Generator().manual_seed(rows)
    x, y = (torch.randn(n, size, generator=generator) for n in (tokens, rows))
    index, shares = torch.randint(tokens, (rows,), generator=generator), torch.rand(rows, 1, generator=generator)
    out = torch.empty(rows, size)
    assert run("take", x, index, out) and torch.equal(out, x[index])
    right = x.double().index_add_(0, index, y.double() * shares.double())
    assert run("mix", x, y, index, shares) and (x - right).abs().max() < 1e-5


def test_several_products_share_records_where_their_layouts_are_equal():
    """Each is that of its matrix alone, of formats whose records differ too."""
    sizes, places = [3, 20, 1, 20, 7], [4, 0, 1, 5, 2]
    x = torch.randn(sum(sizes), 512, generator=torch.Generator().manual_seed(0))
    several = Activations.several(x, sizes)
    for qtype, how in [("Q4_K", "int8"), ("Q4_K", "int8"), ("Q6_K", "int8"), ("F16", "int8"), ("Q8_0", "float32")]:
        blocks = random_blocks(qtype, 6 * 33 * 512 // FORMATS[qtype].block_elements, 0).reshape(6, 33, -1)
        parts = zip(places, x.split(sizes), strict=True)
        right = torch.cat([linear(blocks[place], qtype, part, how) for place, part in parts])
        assert torch.equal(several.products(blocks, places, qtype, how), right)
