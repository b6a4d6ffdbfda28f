"""The Triton kernels on a GPU at real sizes: random inputs, outputs poisoned before, against the same references.

python -m pytest tests/test_triton_gpu.py
"""

import numpy as np
import pytest
import torch
from test_triton import FUSED, NAMES, random_blocks, same_bits

import kit
from kit.codec import CodecProfile
from kit.gguf.formats import FORMATS
from kit.lab.synthetic.write import synthesize

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def poisoned():
    """Make torch.empty return memory that is not zero: a gigabyte of 0xA5 is freed to the allocator before each test."""
    torch.full((1 << 30,), 0xA5, dtype=torch.uint8, device="cuda")
    yield
    torch.cuda.synchronize()  # an error of this test's kernels is reported here, and not in the next test


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("qtype", NAMES)
def test_every_format_is_bit_exact(qtype, dtype):
    rng = np.random.default_rng()
    blocks = random_blocks(qtype, 2**24 // FORMATS[qtype].block_elements + 3, rng).reshape(-1)
    right = kit.dequantize(blocks, qtype, dtype, backend="reference")
    out = torch.full(right.shape, -12345.0, dtype=right.dtype, device="cuda")
    kit.dequantize(torch.from_numpy(blocks).cuda(), qtype, dtype, backend="triton", out=out)
    assert same_bits(out.cpu().float().numpy(), right.float().numpy())


@pytest.mark.parametrize("rows, columns, tokens", [(4099, 12800, tokens) for tokens in (1, 2, 3, 8, 64)] + [(257, 2304, 1)])
@pytest.mark.parametrize("qtype", FUSED)
def test_linear_layers_from_blocks(qtype, rows, columns, tokens):
    """Rows that are no multiple of a program's (8 or 4), columns that are no multiple of a step's."""
    from kit.cuda.linear import linear

    rng = np.random.default_rng()
    if qtype in ("F16", "BF16", "F32"):
        weight = torch.randn(rows, columns).to({"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[qtype])
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
    tiles = kit.codec.encode(matrix, CodecProfile((predictor,), 128, 16, False))
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


def random_matrices(*shapes):
    rng = np.random.default_rng()
    return {f"w{i}": np.clip(rng.normal(0, 30, shape), -127, 127).astype(np.int8) for i, shape in enumerate(shapes)}


@pytest.mark.parametrize("compressed", [True, False])
def test_streams_keep_bytes_and_order_while_matrices_are_in_use(compressed):
    """Each use takes longer than a copy, so that a buffer written too early gives wrong numbers."""
    from kit.lab.on_device.compressed import Streamed

    plain = random_matrices((4096, 4096), (1024, 4096), (4096, 4096), (300, 1000), (12800, 4096), (1024, 4096))
    matrices = {name: kit.codec.encode(matrix, threads=8) for name, matrix in plain.items()} if compressed else plain
    stream = Streamed(matrices)
    assert all(matrix.host.is_pinned() for matrix in stream.matrices.values())
    for _ in range(2):
        seen = {}
        for name, matrix in stream:
            torch.cuda._sleep(10_000_000)
            seen[name] = matrix.clone()
        assert list(seen) == list(plain)
        assert all(np.array_equal(matrix.cpu().numpy(), plain[name]) for name, matrix in seen.items())


def test_streams_wait_for_the_device_once_a_pass():
    from kit.lab.on_device.compressed import Streamed

    plain = random_matrices(*[(1024, 1024)] * 6)
    stream = Streamed({name: kit.codec.encode(matrix) for name, matrix in plain.items()})
    for _ in stream:  # compiles
        pass
    torch.cuda.set_sync_debug_mode("error")
    try:
        for name, matrix in stream:
            total = matrix.view(torch.int32).sum()
            if name == "w5":
                torch.cuda.set_sync_debug_mode("default")  # what comes now is the one wait
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert total.item() == plain["w5"].view(np.int32).sum()


def test_a_streams_damaged_tile_is_named():
    from kit.lab.on_device.compressed import Streamed

    tiles = {name: kit.codec.encode(matrix) for name, matrix in random_matrices(*[(512, 512)] * 3).items()}
    serial = bytearray(tiles["w1"].to_bytes())
    serial[-1000] ^= 0x55
    tiles["w1"] = kit.codec.Tiles.from_bytes(bytes(serial), "w1")
    with pytest.raises(kit.KitError, match="w1: tile 3 of 4"):
        for _ in Streamed(tiles):
            pass


def test_experts_stream_through_a_small_device_cache(tmp_path):
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    file = kit.open(synthesize(tmp_path / "experts.gguf", "tiny-qwen3moe"))
    right, prompt = kit.Transformer(kit.Weights(file, kit.NoCache())), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with pytest.raises(kit.KitError, match="CUDA graphs do not support a mixture of experts"):
        DeviceTransformer(DeviceWeights(file), graphs=True)
    for policy in (kit.HashMap(), kit.LRU("200 KiB")):
        model = DeviceTransformer(DeviceWeights(file, policy, kit.HashMap(), ahead="1 MiB"))
        expected = right.logits(prompt)
        assert (model.logits(prompt) - expected).abs().max() <= 1e-4 * expected.std()
        expected = right.logits([8, 7])
        assert (model.logits([8, 7]) - expected).abs().max() <= 1e-4 * expected.std()


def test_a_grown_and_shortened_cache_gives_the_same_logits(tmp_path):
    """Graphs of both sizes: 250 positions, grown past 256, cut back to 250, and on again."""
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    file = kit.open(synthesize(tmp_path / "model.gguf", "tiny-llama"))
    model = DeviceTransformer(DeviceWeights(file))
    cache, tokens = model.new_cache(600), [int(token) for token in np.random.default_rng().integers(0, 500, 260)]
    assert cache.capacity == 0
    model.step(tokens[:250], cache)
    first = [model.step([token], cache) for token in tokens[250:]]
    assert cache.capacity == 512 and list(cache.graphs) == [512]
    cache.truncate(250)
    again = [model.step([token], cache) for token in tokens[250:]]
    assert cache.capacity == 512 and sorted(cache.graphs) == [256, 512]
    right = kit.Transformer(kit.Weights(file, kit.NoCache())).logits(tokens)[250:]
    for logits in (first, again):
        assert (torch.stack(logits) - right).abs().max() <= 1e-4 * right.std()


def test_a_cache_without_room_is_one_clear_error():
    from kit.lab.on_device.device_kvcache import DeviceKVCache

    cache = DeviceKVCache(40 * [(8, 128)], 1 << 30, "float32", torch.device("cuda"))
    cache.reserve(256)
    with pytest.raises(kit.KitError, match="too little memory for a KV cache of 67108864 positions"):
        cache.reserve(1 << 26)
    assert cache.capacity == 256 and not any(keys.any() for keys in cache.keys)


def test_graphs_give_the_transformers_tokens(tmp_path):
    """Across the borders of two graphs (256 and 512 positions); the logits of the CPU's float32 pass."""
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    file = kit.open(synthesize(tmp_path / "model.gguf", "tiny-qwen3"))
    theirs, ours = kit.Transformer(kit.Weights(file, kit.NoCache())), DeviceTransformer(DeviceWeights(file), max_context=600)
    prompt = [int(token) for token in np.random.default_rng().integers(0, 500, 250)]
    right = theirs.logits(prompt)
    assert ((ours.logits(prompt) - right).abs().max() <= 1e-4 * right.std()).all()
    answer = kit.generate(ours, prompt, max_tokens=300, stop_at_end=False)
    right = theirs.logits(prompt + answer.tokens[:-1])[len(prompt) - 1 :]
    best, chosen = right.max(1).values, right.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert (best - chosen <= 1e-3 * right.std()).all(), "a token that was not the most likely one"


def test_blocks_stream_through_a_small_device_cache(tmp_path):
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    file = kit.open(synthesize(tmp_path / "model.gguf", "tinyllama-1.1b", layers=2))
    weights = DeviceWeights(file, kit.LRU("20 MiB"), kit.HashMap(), ahead="60 MiB")
    with pytest.raises(kit.KitError, match="does not keep"):
        DeviceTransformer(weights, max_context=64)
    model = DeviceTransformer(weights, max_context=64, graphs=False)
    right = kit.Transformer(kit.Weights(file, kit.NoCache())).logits([1, 5, 9])
    for _ in range(3):
        assert (model.logits([1, 5, 9]) - right).abs().max() <= 1e-4 * right.std()
    assert weights.store.stats.prefetched and weights.store.stats.evictions


def test_the_device_is_measured():
    from kit.lab.measuring.gpu import probe_device

    found = probe_device()
    assert all(len(found["samples"][name]) and found[name] > 0 for name in found["methods"])
