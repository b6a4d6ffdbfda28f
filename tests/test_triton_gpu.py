"""The Triton kernels on a GPU at real sizes: random inputs, outputs poisoned before, against the same references."""

import numpy as np
import pytest
import torch
from test_triton import FUSED, QTYPES, random_blocks, same_bits

import kit
from kit.codec import Profile
from kit.gguf.synthetic import synthesize
from kit.quants.formats import FORMATS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("qtype", QTYPES)
def test_every_format_is_bit_exact(qtype, dtype):
    rng = np.random.default_rng()
    blocks = random_blocks(qtype, 2**24 // FORMATS[qtype].block_elements + 3, rng).reshape(-1)
    right = kit.dequantize(blocks, qtype, dtype, backend="reference")
    out = torch.full(right.shape, -12345.0, dtype=right.dtype, device="cuda")
    kit.dequantize(torch.from_numpy(blocks).cuda(), qtype, dtype, backend="triton", out=out)
    assert same_bits(out.cpu().float().numpy(), right.float().numpy())


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("qtype", FUSED)
def test_linear_layers_from_blocks(qtype, tokens):
    from kit.gpu.linear import linear

    rows, columns, rng = 4099, 12800, np.random.default_rng()
    if qtype in ("F16", "BF16", "F32"):
        weight = torch.randn(rows, columns).to(
            {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[qtype]
        )
        blocks = weight.view(torch.uint8)
    else:
        count = rows * columns // FORMATS[qtype].block_elements
        blocks = torch.from_numpy(random_blocks(qtype, count, rng, 0.01).reshape(rows, -1))
    weight = kit.dequantize(blocks, qtype, backend="reference").cuda().double()
    x = torch.randn(tokens, columns, device="cuda")
    error = linear(blocks.cuda(), qtype, x).double() - x.double() @ weight.T
    assert (error.abs() <= 3e-6 * (x.double().abs() @ weight.abs().T)).all()


@pytest.mark.parametrize("predictor", ["none", "left", "left2", "up"])
@pytest.mark.parametrize("shape", [(8192, 8192), (300, 1000), (256, 256)])
def test_tiles(shape, predictor):
    """1,024 tiles, edges, and one alone."""
    from kit.codec.triton import decode_on_device, upload

    matrix = np.clip(np.random.default_rng().normal(0, 30, shape), -127, 127).astype(np.int8)
    tiles = kit.codec.encode(matrix, Profile((predictor,), 128, 16, False))
    out = torch.full(shape, 77, dtype=torch.int8, device="cuda")
    assert np.array_equal(decode_on_device(upload(tiles), out).cpu().numpy(), matrix)
    assert np.array_equal(kit.codec.decode(tiles, "triton"), matrix)


def test_damaged_tiles_are_an_error():
    from kit.codec.triton import decode_on_device, upload

    matrix = np.clip(np.random.default_rng().normal(0, 30, (512, 512)), -127, 127).astype(np.int8)
    serial = bytearray(kit.codec.encode(matrix).to_bytes())
    serial[-1000] ^= 0x55
    with pytest.raises(kit.KitError, match="tile 3 of 4"):
        decode_on_device(upload(kit.codec.Tiles.from_bytes(bytes(serial))))


def test_graphs_give_the_transformers_tokens(tmp_path):
    """Across the borders of two graphs (256 and 512 positions); the logits of the CPU's float32 pass."""
    from kit.gpu.transformer import DeviceTransformer
    from kit.gpu.weights import DeviceWeights

    file = kit.open(synthesize(tmp_path / "model.gguf", "tiny-qwen3"))
    theirs, ours = kit.Transformer(kit.Weights(file)), DeviceTransformer(DeviceWeights(file), max_context=600)
    prompt = [int(token) for token in np.random.default_rng().integers(0, 500, 250)]
    right = theirs.logits(prompt)
    assert ((ours.logits(prompt) - right).abs().max() <= 1e-4 * right.std()).all()
    answer = kit.generate(ours, prompt, max_tokens=300, stop_at_end=False)
    right = theirs.logits(prompt + answer.tokens[:-1])[len(prompt) - 1 :]
    best, chosen = right.max(1).values, right.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert (best - chosen <= 1e-3 * right.std()).all(), "a token that was not the most likely one"


def test_blocks_stream_through_a_small_device_cache(tmp_path):
    from kit.gpu.transformer import DeviceTransformer
    from kit.gpu.weights import DeviceWeights

    file = kit.open(synthesize(tmp_path / "model.gguf", "tinyllama-1.1b", layers=2))
    weights = DeviceWeights(file, kit.LRU("20 MiB"), kit.HashMap(), ahead="60 MiB")
    with pytest.raises(kit.KitError, match="does not keep"):
        DeviceTransformer(weights, max_context=64)
    model = DeviceTransformer(weights, max_context=64, graphs=False)
    right = kit.Transformer(kit.Weights(file)).logits([1, 5, 9])
    for _ in range(3):
        assert (model.logits([1, 5, 9]) - right).abs().max() <= 1e-4 * right.std()
    assert weights.store.stats.prefetched and weights.store.stats.evictions


def test_the_device_is_measured():
    from kit.gpu.machine import probe_device

    found = probe_device()
    assert all(len(found["samples"][name]) and found[name] > 0 for name in found["methods"])
