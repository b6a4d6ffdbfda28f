"""The kit's kernels on a CPU that is not here, for tests/test_aarch64.py: the same calls, three times.

    python emulated.py plain FOLDER              runs them here, on the plain tier, with FOLDER/inputs.npz and FOLDER/model.gguf
                                                 (of formats FEW alone: float64 and gguf-py judge the others)
    python emulated.py compile FOLDER CPU ...    compiles for each CPU what they call, and runs nothing of it
    python emulated.py emulate FOLDER CPU ...    runs that, under emulation, and decodes FOLDER/tiles to FOLDER/tiles.npy by the
                                                 vectors for the first CPU; what surrounds them is Python there

The first and the third write their results to FOLDER/plain.npz and FOLDER/CPU.npz.
"""

import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

gc.disable()  # it takes a fifteenth of the time
MODE, FOLDER, *CPU = sys.argv[1:]
FOLDER = Path(FOLDER)
FEATURES = {"apple-m4": "+neon,+dotprod,+i8mm", "cortex-a76": "+neon,+dotprod", "cortex-a72": "+neon"}
if MODE == "plain":
    os.environ["KIT_SIMD"] = "plain"
else:
    os.environ |= {"NUMBA_CPU_FEATURES": FEATURES[CPU[0]], "NUMBA_CACHE_DIR": str(FOLDER / CPU[0])}

from kit.cpu import tasks, threads  # noqa: E402
from kit.cpu.simd import atomics, tiers, vectors  # noqa: E402

if MODE != "plain":
    tasks._setting = lambda: tuple(CPU[:1])
if MODE == "compile":
    vectors.jit = vectors.inner  # what Numba keeps on disk is for this CPU
    atomics._X86, atomics._ARM = False, True

    def compile_(function, symbol):
        import inspect

        from benchmarks.cycles import ARM, intermediate, optimized

        text = intermediate(function, len(inspect.signature(function).parameters), symbol)
        machine, module = optimized(text, symbol, ARM, CPU[0])
        return machine.emit_object(module)

    tasks._compile, tasks._load = compile_, lambda symbol, _, names: tasks._loaded.setdefault(symbol, tasks.Task(1, names))
    tiers.self_test = lambda name: tiers._probe(name) and []
    threads._pool = lambda: SimpleNamespace(run=lambda steps: 0)
if MODE == "emulate":
    vectors.jit = lambda function: function  # Numba would take half a minute

import torch  # noqa: E402

import kit  # noqa: E402
from kit.cpu import crossings, elementwise, gemm_codes, norm, operations, shapes  # noqa: E402
from kit.cpu.attention import attend  # noqa: E402
from kit.cpu.linear import linear  # noqa: E402
from kit.cpu.tiles import vector  # noqa: E402
from kit.gguf.formats import FORMATS  # noqa: E402
from kit.model.kvcache import KV_TYPES, KVCache  # noqa: E402

norm.SMALL_NORM = 0  # as a task
if MODE == "compile":
    kit.Transformer._check_finite = lambda *_: None  # what no kernel has written holds anything
gemm_codes.TILES["plain"] = gemm_codes.TILES["neon"]
gemm_codes.FASTER[1] += ("plain",)
# Which kernel is faster is nothing that an emulator knows, and code that is only compiled cannot be timed: each has its turn.
crossings.fastest = lambda _, activations, tokens, recorded=False, alike=False: (
    crossings.ROWS if tokens < 8 or recorded else crossings.TILES if activations == "int8" else crossings.FLOATS
)
FEW = ("Q4_K", "Q6_K", "Q8_0", "Q4_0")
SIXTEEN = ("Q4_K", "Q8_0")  # with activations of sixteen bits, too: by steps and by scales
PRODUCTS = (("float32", 1), ("float32", 3), ("int8", 1), ("int8", 3), ("int8", 20))  # twenty by floats are no dot products
RARE = (("float32", 3), ("int8", 1))  # of the other formats, each with code of its own: activations and tokens
# Arm's CPUs differ in dot products alone: of codes of eight bits, six and four, with steps and scales of each kind.
FORMATS_OF = {"plain": FEW} | dict.fromkeys(("cortex-a76", "cortex-a72"), FEW[:3])


def results(inputs, cpu):
    """(name, tensor) of each call; products of FEW formats alone where apple-m4 has shown the rest."""
    names = [name.partition(".")[2] for name in inputs if name.startswith("blocks.")]
    every = cpu in ("plain", "apple-m4")
    x = torch.from_numpy(inputs["x"])
    for name in FORMATS_OF.get(cpu, names):
        blocks = inputs[f"blocks.{name}"]
        columns = blocks.shape[1] // FORMATS[name].block_bytes * FORMATS[name].block_elements
        for dtype in ("float32", "float16", "bfloat16")[: every * (3 if name in FEW else 1)]:
            numbers = kit.dequantize(blocks, name, dtype)
            yield f"{name} as {dtype}", numbers.view(torch.int32 if dtype == "float32" else torch.int16)
        sixteen, floats = [("int16", 3)] * (name in SIXTEEN), [("float32", 20)] * every
        for activations, tokens in [*PRODUCTS, *floats, *sixteen] if name in FEW else RARE:
            yield (
                f"{name} times {tokens}, {activations}",
                linear(blocks, name, x[:tokens, :columns].contiguous(), activations),
            )
    if not every:
        return
    q, k, v = (torch.from_numpy(inputs[name]) for name in "qkv")  # (heads, 1, dim), (positions, kv_heads, dim)
    for kind in KV_TYPES:
        cache = KVCache(k.shape[1], k.shape[2], len(k), kind)
        cache.write(0, k, v)
        for queries, window, cap in ((q[:, :1], 0, 0.0), (q, 100, 5.0)):
            said = f"attention, {kind}, of {queries.shape[1]}"
            yield said, attend(queries, *cache.histories(), k.shape[1], len(k), 0.25, window, cap)
    yield from between(x[:10].flatten(), x[10:].flatten(), q.transpose(0, 1).contiguous())
    yield from decoded(FOLDER / "model.gguf")


def between(x, y, heads):
    """What lies between products, where no tiny model here has it."""
    for name in ("silu", "gelu", "squared_relu", "clamped", "sigmoid"):
        out = torch.zeros_like(x)
        assert operations.run(name, x, y, out)
        yield name, out
    for name, factor in (("add", 0.22), ("scale", 12.0), ("clamp", 0.5)):
        out = x.clone()
        assert operations.run(name, *(out, y)[: 2 if name == "add" else 1], factor=factor)
        yield name, out
    table = y[: 2 * heads[:, 0].numel()].reshape(len(heads), 2, -1)  # torch's sines differ from CPU to CPU
    for layout in ("interleaved", "neox"):
        out = heads.clone()
        assert operations.run(layout, out, table)
        yield layout, out
    out = torch.zeros(2, len(x) // 2)
    assert operations.run("norm", x.view_as(out), out, 1e-5, y[: len(x) // 2], x[: len(x) // 2], offset=1.0)
    yield "LayerNorm", out
    program, both = threads.Program(), torch.zeros(2, len(x))
    program.add_together(
        [(elementwise.compiled("silu"), (x.data_ptr(), y.data_ptr(), out.data_ptr(), len(x)), 2) for out in both]
    )
    program.run()
    yield "two steps at once", both
    yield from recurrent_layers(x)


def recurrent_layers(x):
    """The kinds of layers that hold a state, over 6,400 numbers: 3 tokens of 2 heads of 20, and of 300 channels."""
    of_head, channels = x[:120].view(3, 2, 20), x[:900].view(3, 300)
    state = torch.zeros(shapes.state_shape(2, 20, 20))
    rows, gates, a, out = x[:240].view(3, 80), (of_head[..., 0], of_head[..., 1]), -x[:2].abs(), torch.zeros(3, 2, 20)
    operations.run("delta net", rows, *gates, of_head, a, x[2:4], state, x[:20], 1, 1e-6, out)
    yield "delta net", torch.cat([out.flatten(), state.flatten()])
    state = torch.zeros(shapes.state_shape(2, 20, 20))
    operations.run("mamba2", rows, gates[0], of_head, a, x[2:4], x[4:6], state, 1, out)
    yield "Mamba-2", torch.cat([out.flatten(), state.flatten()])
    state = torch.zeros(3, 300)
    out = torch.zeros(3, 300)
    operations.run("convolution", channels, x[:1200].view(4, 300), state, out, x[:300], silu=True)
    yield "convolution", torch.cat([out.flatten(), state.flatten()])


@tasks.task
def tile_steps(tier):
    return lambda task, states, lanes, slots, at, end, to, count, table: steps(
        tier, states, lanes, slots, at, end, to, count, table
    )


@tasks.task
def tile_sums():
    return lambda task, address, count: np.int64(sums(address, count))


steps, sums = vector.steps, vector.sums


def decoded(path):
    """Logits of a prompt and of what it goes on with."""
    with kit.open(path) as file:
        for way in ("fused", "fused-int8"):
            model = kit.Transformer(kit.Weights(file), linear=way, kv_dtype="float16")
            cache, tokens = model.new_cache(16), [5, 9, 3, 7]
            for _ in range(8):
                logits = model.step(tokens, cache)
                tokens = [int(logits.argmax())]
                yield f"{way} after {cache.length}", logits.clone()


def run(cpu):
    found = {name: tensor.numpy() for name, tensor in results(np.load(FOLDER / "inputs.npz"), cpu)}
    if MODE != "compile":
        np.savez(FOLDER / f"{cpu}.npz", **found)


if MODE == "plain":
    run("plain")
    sys.exit()
assert len(os.listdir("/proc/self/task")) <= 2, "a fork beside a thread may hang; QEMU has one of its own"
for cpu in CPU:  # imports take longer than what they are for
    if not os.fork():
        os.environ |= {"NUMBA_CPU_FEATURES": FEATURES[cpu], "NUMBA_CACHE_DIR": str(FOLDER / cpu)}
        CPU[0] = cpu
        tasks.features.cache_clear()
        for name in ("lead", "serve", "alone", "now") if MODE == "compile" else ():
            threads._of_queue(name)
        run(cpu)
        os._exit(0)
    assert os.wait()[1] == 0, cpu
of_tiles = tile_steps("neon"), tile_sums()
if MODE == "compile":
    sys.exit()

from kit.codec import tiles  # noqa: E402
from kit.cpu.tiles import predictors  # noqa: E402

in_steps, in_sums = tasks.function(of_tiles[0], 9), tasks.function(of_tiles[1], 3)
vector.steps = lambda tier, *arguments: in_steps(0, *map(int, arguments))
vector.sums = lambda *arguments: np.uint8(in_sums(0, *map(int, arguments)))
one = tiles.Tiles.from_bytes((FOLDER / "tiles").read_bytes())
found, status = np.empty((len(one), one.layout.rows * one.layout.columns), np.uint8), np.ones(len(one), np.uint8)
vector.decode_simd(tiles.streams_of(one), 0, len(one), found, status)
assert status.tolist() == [0]
predictors.undo(found[0], one.layout.predictor, *one.shape)
np.save(FOLDER / "tiles.npy", found.view(np.int8).reshape(one.shape))
