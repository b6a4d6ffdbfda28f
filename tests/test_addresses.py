"""Memory that compiled code points to lives as long as its address; torch's defaults of dtype and device change nothing."""

import argparse
import ast
import gc
import shutil
import weakref
from pathlib import Path

import family_files
import model_files
import numpy as np
import pytest
import torch

import kit
from kit.cpu import tasks, threads
from kit.cpu.linear import Product
from kit.errors import CacheError
from kit.gguf.cut import cut
from kit.gguf.reader import GGUFFile
from kit.model.pinned import PinnedBlocks

PACKAGE = Path(kit.__file__).parent
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 12)]


class Rooms:
    """An allocator: ``array`` gives memory that is spoiled, and counted, when nothing refers to it any more."""

    def __init__(self):
        self.given = self.spoiled = 0
        self._rooms = []  # they stay, so that what reads freed memory reads NaN and not a stranger's numbers

    def array(self, values: np.ndarray) -> np.ndarray:
        self._rooms.append(room := np.array(values, order="C"))
        memory = np.asarray(memoryview(room.reshape(-1).view(np.uint8)))  # every view holds this one, and nothing else does
        weakref.finalize(memory, self._spoil, room)
        self.given += 1
        return memory.view(room.dtype).reshape(room.shape)

    def _spoil(self, room):
        room.reshape(-1).view(np.uint8)[:] = 0xFF  # NaN as float32, float16 and scale
        self.spoiled += 1


@pytest.fixture
def rooms(monkeypatch):
    """Every call for blocks gives a copy of its own; so does every float32 tensor that torch.empty makes on the CPU."""
    rooms, empty = Rooms(), torch.empty

    def copies(cls):
        right = cls.blocks
        monkeypatch.setattr(cls, "blocks", lambda self, name: rooms.array(right(self, name)))

    def fresh(*shape, dtype=None, **how):
        made = empty(*shape, dtype=dtype, **how)
        return torch.from_numpy(rooms.array(made.numpy())) if dtype is torch.float32 and made.is_cpu else made

    copies(GGUFFile)
    copies(PinnedBlocks)
    monkeypatch.setattr(torch, "empty", fresh)
    return rooms


def decode(model, tokens=TOKENS, prompt=5):
    """Logits after a prompt and after each token behind it."""
    cache = model.new_cache(len(tokens))
    first = model.step(tokens[:prompt], cache)
    steps = [first]
    for token in tokens[prompt:]:
        steps.append(model.step([token], cache))
        gc.collect(0)
    return torch.stack(steps)


def big_endian(path, target, monkeypatch):
    """A copy of a file that gguf-py's gguf-convert-endian has converted."""
    import gguf
    from gguf.scripts.gguf_convert_endian import convert_byteorder

    shutil.copy(path, target)
    monkeypatch.setattr("builtins.input", lambda *_: "YES")
    convert_byteorder(gguf.GGUFReader(target, "r+"), argparse.Namespace(order="big", dry_run=False, verbose=False))
    return target


KINDS = {  # of layers whose products take blocks in ways of their own
    **dict.fromkeys(("tiny-llama", "tiny-qwen3moe", "tiny-gpt-oss", "tiny-deepseek2", "glm4moe", "tiny-qwen35"), model_files),
    **dict.fromkeys(("gemma4-mixture", "nemotron_h_moe", "falcon-h1", "lfm2"), family_files),
}


@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_pass_holds_the_memory_of_its_addresses(folder, rooms, name, linear):
    """Every source of blocks gives copies, which are spoiled when nobody holds them."""
    path = KINDS[name].write(folder, name)
    model = kit.Transformer(path, linear=linear)
    got = decode(model)
    assert model.unplanned == "" and rooms.spoiled > 10, "nothing was freed: this shows nothing"
    unplanned = kit.Transformer(path, linear=linear)
    unplanned.unplanned = "asked for by a test"
    right = decode(unplanned)
    assert torch.allclose(got, right, rtol=1e-4, atol=1e-4 * float(right.std()))
    held = rooms.given - rooms.spoiled
    del model, unplanned
    gc.collect()
    assert rooms.given - rooms.spoiled < held / 10, "the program still holds it when the model is gone"


def test_slots_pinned_blocks_and_layers_that_were_cut_out(folder, rooms):
    """The other sources of blocks: each gives the mapped file's logits."""
    dense, mixture = (model_files.write(folder, name) for name in ("tiny-llama", "tiny-qwen3moe"))
    right, routed = decode(kit.Transformer(dense)), decode(kit.Transformer(mixture))
    assert torch.equal(decode(kit.Transformer(PinnedBlocks(kit.open(dense), 400_000), linear="fused")), right)
    weights = kit.Weights(mixture, experts=kit.Slots("3 MiB"))
    model = kit.Transformer(weights)
    assert torch.equal(decode(model), routed)
    cache = model.new_cache(8)
    model.step([3, 4], cache)
    model.step([5], cache)
    weights.close()
    with pytest.raises(CacheError, match="closed"):
        model.step([6], cache)  # the recorded pass has addresses in the slots
    with kit.open(dense) as file:
        part = decode(kit.Transformer(cut(file, [0, 1])))
    assert part.isfinite().all()


def test_the_modules_of_transformers_hold_the_blocks_of_their_products(folder, rooms):
    path = model_files.write(folder, "tiny-llama")
    blocks, x = kit.open(path).blocks("blk.0.attn_q.weight"), torch.randn(1, 256)
    product, right = Product(blocks, "F32"), x @ torch.from_numpy(blocks.view(np.float32).copy()).T
    del blocks
    gc.collect()
    assert torch.allclose(product(x), right, atol=1e-4)
    own = kit.Transformer(path)
    model, _ = kit.hf.load(path, engine="modules")
    out = [model(torch.tensor([TOKENS[:5]]))]
    for token in TOKENS[5:]:
        out.append(model(torch.tensor([[token]]), past_key_values=out[-1].past_key_values))
        gc.collect(0)
    got, right = torch.stack([each.logits[0, -1] for each in out]), decode(own)
    assert torch.allclose(got, right, rtol=1e-3, atol=1e-3 * float(right.std())) and rooms.spoiled


@pytest.mark.parametrize("name, qtype", [("tiny-llama", "Q4_K_M"), ("tiny-qwen3moe", "Q8_0"), ("tiny-deepseek2", "F32")])
def test_a_big_endian_file_gives_the_logits_of_the_little_endian_one(folder, monkeypatch, name, qtype):
    """Prompt, each token, a split copy, transformers' modules; the swapped copy of a stack of experts is made once."""
    path = model_files.write(folder, name, qtype)
    other = big_endian(path, folder / f"big-{name}-{qtype}.gguf", monkeypatch)
    right, model = decode(kit.Transformer(path)), kit.Transformer(other)
    assert model.file.byteorder == "big" and model.unplanned == ""
    assert torch.equal(decode(model), right)
    if name == "tiny-qwen3moe":
        stacks = [model.file.blocks("blk.0.ffn_up_exps.weight") for _ in range(2)]
        assert np.shares_memory(*stacks)
    if name == "tiny-llama":
        ids = torch.tensor([TOKENS])
        modules = [kit.hf.load(each, engine="modules")[0](ids).logits for each in (path, other)]
        assert torch.equal(*modules)


def test_a_closed_split_file_stays_mapped_for_a_recorded_pass(folder):
    path = model_files.write(folder, "tiny-llama")
    first, _ = model_files.split(path, folder, 12)
    model = kit.Transformer(first)
    maps = [weakref.ref(each.data) for each in model.file._files]
    cache, other = model.new_cache(16), model.new_cache(16)
    for each in (cache, other):
        model.step(TOKENS[:3], each)
        model.step(TOKENS[3:4], each)
    right = model.step([5], other)
    model.file.close()
    gc.collect()
    assert all(each() is not None for each in maps)
    assert torch.equal(model.step([5], cache), right)


def test_a_program_holds_what_is_added_and_set_and_lets_go_of_what_is_replaced():
    task = tasks.Task(0, ("x", "n"))
    program, alive = threads.Program(), lambda refs: [ref() is not None for ref in refs]
    arrays = [np.zeros(8) for _ in range(6)]
    refs = [weakref.ref(array) for array in arrays]
    program.add(task, dict(x=arrays[0], n=1))
    program.add(task, (arrays[1], 2))
    program.add(task, dict(x=None, n=3))
    program.set([2], x=arrays[2])
    program.set([0, 1], x=arrays[3])
    del arrays[:4]
    gc.collect()
    assert all(alive(refs))
    program.set([2], x=arrays.pop(0))
    program.set([0, 1], x=arrays.pop(0))
    gc.collect()
    assert alive(refs)[2:] == [False, False, True, True]
    assert tasks.address_of(None) == 0 and tasks.address_of(np.int64(7)) == 7


# ---- who may take an address: (module, function) -> why that memory stays

ADDRESSES = {
    ("cpu.tasks", "address_of"): "the arguments of a step, which the program holds",
    ("cpu.threads", "address"): "the program's own steps",
    ("cpu.threads", "__init__"): "the pool's own queue",
    ("cpu.threads", "run"): "the steps of this call",
    ("cpu.activations", "address"): "a cached array of an order, never freed",
    ("cpu.codes", "*"): "a constant of the module",
    ("cpu.buffers", "_aligned"): "to align, not to keep",
    ("cpu.simd.tiers", "*"): "arrays of this call",
    ("cpu.tiles.vector", "*"): "arrays of this call, or constants of the module",
    ("cuda.dequantize", "run"): "whether it is aligned",
    ("model.plan", "vector"): "which vector it is",
    ("model.plan", "plus"): "which vector it is",
    ("model.parts", "__init__"): "of the program's own steps",
    ("model.slots", "__init__"): "of the slots, which the weights hold and ``close`` refuses",
    ("system", "*"): "calls of the system",
    ("system.rows", "*"): "calls of the system",
    ("lab.findings.offload", "address"): "in the map, or in what ``_given`` holds",
    ("lab.engines.requantize", "*"): "arrays of this call",
}


def _functions(tree):
    """(name of the innermost function or "", node) for each node."""
    stack = [("", tree)]
    while stack:
        name, node = stack.pop()
        yield name, node
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else name
        stack += [(inner, child) for child in ast.iter_child_nodes(node)]


def _modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"), ast.parse(path.read_bytes())


def test_only_these_take_an_address():
    """What is new here names the array as an argument of its step, or says who holds the memory."""
    known = set()
    for module, tree in _modules():
        for function, node in _functions(tree):
            of_array = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "ctypes"
            if of_array or (isinstance(node, ast.Attribute) and node.attr in ("data_ptr", "__array_interface__")):
                known.add((module, function) if (module, function) in ADDRESSES else (module, "*"))
    assert known == set(ADDRESSES)


# ---- torch's defaults

MAKES = set(
    "empty zeros ones full arange tensor as_tensor rand randn randint randperm normal linspace logspace eye scalar_tensor "
    "range empty_strided tril_indices triu_indices Tensor FloatTensor".split()
)


def test_every_allocation_names_its_dtype_and_device():
    """torch.set_default_dtype and set_default_device change what is not named; ``new_...`` and ``..._like`` take a tensor's."""
    bare = []
    for module, tree in _modules():
        nodes = list(ast.walk(tree))
        made = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch"]
        calls = {id(node.func): {keyword.arg for keyword in node.keywords} for node in nodes if isinstance(node, ast.Call)}
        for node in made:  # a function that is passed on is called without them
            named = calls.get(id(node), set())
            if (
                node.attr in MAKES
                and not {"dtype", "device"} <= named
                and not (node.attr == "Tensor" and id(node) not in calls)
            ):
                bare.append(f"kit.{module}:{node.lineno}: {ast.unparse(node)}")
    assert not bare


@pytest.fixture(params=["float64", "float16", "bfloat16", "meta"])
def default(request):
    """A default of torch while a test runs."""
    if request.param == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(getattr(torch, request.param))
    yield request.param
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


RUNS = {  # of each way to run a file: name of the file, what makes its logits
    **{f"{name} {linear}": (name, dict(linear=linear)) for name, linear in (
        ("tiny-llama", "fused"), ("tiny-llama", "fused-int8"), ("tiny-llama", "dequantized"), ("tiny-llama", "loop"),
        ("tiny-qwen3moe", "fused"), ("tiny-gpt-oss", "fused"), ("tiny-deepseek2", "fused"), ("tiny-qwen35", "fused"),
        ("granitehybrid", "fused"), ("command-r", "fused"), ("llama3", "fused"), ("yarn", "fused"),
    )},
    **{f"tiny-llama {name}": ("tiny-llama", dict(attention=name)) for name in ("blas", "sdpa", "chunked", "loop")},
    **{f"tiny-llama {kind}": ("tiny-llama", dict(kv_dtype=kind)) for kind in ("float16", "q8_0")},
}  # fmt: skip


@pytest.fixture(scope="module")
def right(folder):
    """The logits of each of RUNS without a default of torch's, made once."""
    made = {}

    def of(run):
        if run not in made:
            dtype, device = torch.get_default_dtype(), torch.get_default_device()
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
            made[run] = logits(folder, run)
            torch.set_default_dtype(dtype)
            torch.set_default_device(device if device.type != "cpu" else None)
        return made[run]

    return of


def logits(folder, run):
    name, how = RUNS[run]
    model = kit.Transformer(model_files.write(folder, name), **how)
    rows, caches = (TOKENS[:3], TOKENS[3:8]), [model.new_cache(16) for _ in range(2)]
    both = model.batch(rows, caches, torch.tensor([2, 7], dtype=torch.int64, device="cpu"))
    return torch.cat([decode(model), model.logits(TOKENS), both])


@pytest.mark.parametrize("run", RUNS)
def test_a_default_of_torch_changes_no_logits(folder, right, run, default):
    wanted = right(run)
    assert wanted.dtype is torch.float32 and torch.equal(logits(folder, run), wanted)


def test_a_default_of_torch_changes_nothing_under_transformers(folder, default):
    path = model_files.write(folder, "tiny-llama")
    own = kit.Transformer(path)
    right, ids = own.logits(TOKENS), torch.tensor([TOKENS], dtype=torch.int64, device="cpu")
    for engine in ("auto", "modules"):
        model, _ = kit.hf.load(path, engine=engine)
        assert model.dtype is torch.float32
        got = model(ids).logits[0]
        assert got.dtype is torch.float32 and torch.allclose(got, right, rtol=1e-3, atol=1e-3 * float(right.std())), engine


def test_a_default_of_torch_changes_no_dequantization_and_no_code(default):
    for qtype in ("Q4_K", "Q6_K", "IQ4_NL", "F16", "BF16"):
        size = kit.gguf.formats.FORMATS[qtype].block_bytes
        blocks = np.tile(np.arange(size, dtype=np.uint8) % 60, (4, 8))
        ways = [kit.dequantize(blocks, qtype, backend=backend) for backend in ("cpu", "plain", "reference")]
        assert all(each.dtype is torch.float32 and each.device.type == "cpu" for each in ways)
        assert all(torch.equal(each, ways[0]) for each in ways), qtype
