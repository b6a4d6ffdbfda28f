"""Compressed inference: the INT8 model's tokens whatever the cache and decoder; true counters; report 004's caches."""

import numpy_decoder  # noqa: F401  the decoder "numpy"
import pytest
import torch

import kit
from kit.cache.policies.base import LRU, HashMap
from kit.cache.policies.cyclic import CyclicAware
from kit.cache.policies.pinned import Pinned
from kit.cache.prefetch import Prefetcher
from kit.codec.codings import quantize
from kit.codec.container import CompressedFile
from kit.codec.weights import CompressedWeights
from kit.errors import CodecError, ModelError
from kit.lab.compressor import compress
from kit.lab.findings.faults import TwoLevels
from kit.lab.synthetic.write import synthesize

PROMPT = [1, 5, 9, 200]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return kit.open(synthesize(tmp_path_factory.mktemp("linear") / "tiny.gguf", "tiny-llama"))


@pytest.fixture(scope="module")
def file(source):
    return CompressedFile(compress(source.path, source.path.with_name("tiny.tiles.gguf")))


class Uncompressed(kit.Weights):
    """The INT8 model without any codec: each matrix of a linear layer quantized and scaled back."""

    def load(self, name):
        weight = super().load(name)
        if weight.ndim < 2 or name == "token_embd.weight":
            return weight
        values, scales = quantize(weight)
        return torch.from_numpy(values) * torch.from_numpy(scales)[:, None]


def generate(model, tokens=8):
    """Greedy tokens and the logits they came from."""
    cache, step, chosen, rows = model.new_cache(32), list(PROMPT), [], []
    for _ in range(tokens):
        logits = model.step(step, cache)
        rows.append(logits)
        step = [int(logits.argmax())]
        chosen += step
    return chosen, torch.stack(rows)


CACHES = {
    "none": lambda: None,
    "all": HashMap,
    "lru": lambda: LRU("256 KiB"),
    "pinned": lambda: Pinned("256 KiB"),
    "cyclic": lambda: CyclicAware("256 KiB"),
    "two levels": lambda: TwoLevels(LRU("256 KiB")),
}


@pytest.fixture(scope="module")
def reference(source):
    return generate(kit.Transformer(Uncompressed(source, kit.HashMap())))


@pytest.mark.parametrize("tokens", [2, 8, 9, 16, 17, 200])
def test_a_prompt_of_any_length(source, file, tokens):
    """Many tokens are multiplied by torch, since the kernels of many tokens have no INT8 of a scale a row."""
    prompt = [number % 500 for number in range(3, 3 + tokens)]
    right = kit.Transformer(Uncompressed(source, kit.HashMap())).logits(prompt)
    torch.testing.assert_close(kit.Transformer(CompressedWeights(file)).logits(prompt), right, atol=1e-3, rtol=1e-3)


DECODERS = ("scalar-binary", "scalar-table", "numpy", "simd")


@pytest.mark.parametrize("cache, decoder", [(c, "interleaved") for c in CACHES] + [("none", d) for d in DECODERS])
def test_tokens_are_those_of_the_uncompressed_int8_model(reference, file, cache, decoder):
    expected, right = reference
    weights = CompressedWeights(file, CACHES[cache](), decoder=decoder, threads=1)
    tokens, logits = generate(kit.Transformer(weights, linear=weights.linear))
    assert tokens == expected
    assert torch.allclose(logits, right, rtol=0, atol=1e-5)


def test_every_linear_takes_them(source, file):
    """Compressed weights are also a mapping of float tensors, which any other linear variant can use."""
    weights = CompressedWeights(file, HashMap())
    expected = kit.Transformer(Uncompressed(source, kit.HashMap())).logits(PROMPT)
    assert torch.allclose(kit.Transformer(weights).logits(PROMPT), expected, rtol=0, atol=1e-5)
    assert set(weights) == set(source.tensors) and len(weights) == len(source.tensors)
    assert all(weights.nbytes(name) == 4 * weights[name].numel() for name in weights)


def test_products_from_blocks_are_an_error_at_once(file):
    with pytest.raises(ModelError, match="linear 'fused-int8' needs ggml blocks, but this file is compressed"):
        kit.Transformer(CompressedWeights(file), linear="fused-int8")


def test_prefetch_changes_no_token(file):
    expected, _ = generate(kit.Transformer(plain := CompressedWeights(file, HashMap()), linear=plain.linear))
    weights = CompressedWeights(file, None)
    weights.store.ahead_bytes = weights.unpacked_bytes
    plan = [(layer.name, layer.size, layer.load) for layer in weights.layers.values()]
    with Prefetcher(weights.store, plan):
        tokens, _ = generate(kit.Transformer(weights, linear=weights.linear))
    assert tokens == expected
    assert weights.store.stats.prefetched > 0


def test_counts_of_a_pass(file):
    """One access a layer and token; with no cache each decodes, with room for all each decodes once."""
    for cache, decodes in ((None, 3 * 15), (HashMap(), 15)):
        weights = CompressedWeights(file, cache)
        generate(kit.Transformer(weights, linear=weights.linear), tokens=3)
        frame = weights.trace.frame()
        assert (frame["what"] == "access").sum() == 3 * 15
        assert (frame["what"] == "unpack").sum() == decodes == weights.store.stats.misses


def test_lru_over_a_cyclic_scan_never_hits_and_pinned_does(file):
    """Report 004's 20 of 155 entries, here 5 of 15: LRU 0, pinned 5/15 after the first pass."""
    for policy, hits in ((LRU(5), 0), (Pinned(5), 3 * 5)):
        weights = CompressedWeights(file, policy, by="entries")
        generate(kit.Transformer(weights, linear=weights.linear), tokens=4)
        assert (weights.store.stats.hits, weights.store.stats.entries) == (hits, 5)


def test_an_inner_cache_hides_the_outer_one(file):
    """Report 004, before its fix: the outer cache sees each layer once and never hits; the inner one holds the model."""
    cache = TwoLevels(LRU(5))
    weights = CompressedWeights(file, cache, by="entries")
    generate(kit.Transformer(weights, linear=weights.linear), tokens=4)
    assert (cache.stats.hits, cache.stats.misses, cache.stats.entries) == (0, 15, 5)
    assert len(cache.inner) == 15


def test_memory_is_used_again(file):
    """Without a cache matrices share memory, except for one that is still referenced."""
    weights = CompressedWeights(file)
    name = "blk.0.ffn_up.weight"
    held = weights.layers[name].values()
    copy = held.clone()
    places = {weights.layers[f"blk.{layer}.ffn_up.weight"].values().data_ptr() for layer in (0, 1, 0, 1)}
    assert len(places) == 1 and held.data_ptr() not in places
    assert torch.equal(held, copy)


# ---- finding weights by name


def by_last_part(tensors, path):
    """What matching by the last part of a name does: the first tensor that ends like the path."""
    last = path.split(".", 2)[2]
    return next(name for name in tensors if name.endswith(last))


def test_matching_by_the_last_part_gives_every_block_the_weights_of_block_0(file):
    paths = [f"blk.{layer}.attn_q.weight" for layer in range(2)]
    assert {by_last_part(file.matrices, path) for path in paths} == {"blk.0.attn_q.weight"}
    weights = CompressedWeights(file, HashMap())
    assert [weights.layer(path).name for path in paths] == paths
    first, second = (weights.layer(path).values() for path in paths)
    assert not torch.equal(first, second)
    with pytest.raises(ModelError, match=r"no compressed matrix 'attn_q\.weight'"):
        weights.layer("attn_q.weight")
    with pytest.raises(ModelError, match="no tensor 'attn_norm"):
        weights["attn_norm.weight"]


def test_an_unknown_decoder_is_an_error_at_once(file):
    with pytest.raises(CodecError, match="scalar-table"):
        CompressedWeights(file, decoder="gpu")


def test_a_damaged_tile_names_the_tensor_in_the_middle_of_a_token(file, tmp_path):
    content = bytearray(file.path.read_bytes())
    info = file.gguf.tensors["blk.1.ffn_gate.weight.tiles"]
    content[info.offset + info.nbytes // 2] ^= 1
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    weights = CompressedWeights(CompressedFile(path))
    with pytest.raises(CodecError, match=r"damaged\.gguf: blk\.1\.ffn_gate\.weight: tile \d of"):
        kit.Transformer(weights, linear=weights.linear).logits(PROMPT)


def test_rows_of_a_coded_embedding(tmp_path):
    """Tied embeddings are a linear layer and an embedding at once."""
    source = kit.open(synthesize(tmp_path / "tied.gguf", "tiny-granite"))
    assert "output.weight" not in source.tensors
    weights = CompressedWeights(CompressedFile(compress(source.path, tmp_path / "out.gguf")), HashMap())
    expected = kit.dequantize(source.blocks("token_embd.weight")[[3, 8]], source.tensors["token_embd.weight"].qtype)
    rows = weights.rows("token_embd.weight", torch.tensor([3, 8]))
    assert torch.allclose(rows, expected, atol=expected.abs().max().item() / 100)
    assert kit.Transformer(weights, linear=weights.linear).logits(PROMPT).isfinite().all()
