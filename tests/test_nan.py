"""What is not finite stays so wherever the kit stores numbers: keys and values of every type, activations of every width."""

import model_files
import numpy as np
import pytest
import torch

import kit
from kit.cpu.linear import linear
from kit.errors import ModelError
from kit.gguf.formats import FORMATS
from kit.model.kvcache import KVCache
from kit.model.layers.kind import KV_TYPES
from kit.products import PRODUCTS

BAD = [float("nan"), -float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("kind", KV_TYPES)
@pytest.mark.parametrize("bad", BAD)
def test_keys_and_values_keep_what_is_not_finite(kind, bad):
    """One in each place of a head, by a prompt and by one token."""
    numbers = torch.randn(64, 2, 64, generator=torch.Generator().manual_seed(0))
    for number in range(64):
        numbers[number, 1, number] = bad
    cache = KVCache(2, 64, 128, kind)
    cache.write(0, numbers, numbers)
    for position in range(64):
        cache.write(64 + position, numbers[position : position + 1], numbers[position : position + 1])
    for each in cache.read(128):
        stored = each.view(2, 2, 64, 64)  # heads, ways to write, positions, elements
        assert stored[0].isfinite().all()
        assert not stored[1].diagonal(dim1=1, dim2=2).isfinite().any()


@pytest.mark.parametrize("kind", KV_TYPES)
@pytest.mark.parametrize("name", ["attn_k", "attn_v"])
def test_a_weight_that_is_not_finite_is_named_with_every_type_of_cache(folder, name, kind):
    def change(metadata, tensors):
        tensors[f"blk.1.{name}.weight"][3, 5] = np.nan

    path = model_files.rewrite(model_files.write(folder, "tiny-llama"), folder / f"nan-{name}.gguf", change)
    model = kit.Transformer(path, kv_dtype=kind)
    with pytest.raises(
        ModelError, match=rf"the tensor 'blk.1.{name}.weight' holds NaN or infinite weights, the first at \(3, 5\)"
    ):
        model.logits([3, 4, 5])


@pytest.mark.parametrize("tokens", [1, 4, 40])
@pytest.mark.parametrize("activations", PRODUCTS)
@pytest.mark.parametrize("qtype", ["Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "F16", "F32"])
def test_activations_keep_what_is_not_finite(qtype, activations, tokens):
    """In each place of 16, and in the last one: no output is finite, and a token without one is untouched."""
    format, columns = FORMATS[qtype], 512
    weights = np.random.default_rng(0).integers(1, 60, (3, format.nbytes(columns))).astype(np.uint8)
    x = torch.randn(tokens + 1, columns, generator=torch.Generator().manual_seed(1))
    for place in (*range(16), columns - 1):
        for bad in BAD[:3:2]:
            y = x.clone()
            y[0, place] = bad
            got, right = linear(weights, qtype, y[:tokens], activations), linear(weights, qtype, x[:tokens], activations)
            assert not got[0].isfinite().any(), (place, bad)
            assert torch.equal(got[1:], right[1:])
