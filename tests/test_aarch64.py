"""The tier neon without such a machine: under QEMU it has the bits of the plain tier here and of gguf-py; its products are
float64's."""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import model_files
import numpy as np
import products
import pytest

import kit
import kit.codec
from kit.gguf.formats import FORMATS
from kit.lab.exactness import random_blocks
from kit.quants import reference
from kit.system.paths import ROOT

WORKER = Path(__file__).with_name("emulated.py")
EMULATED = ROOT / "build" / "aarch64" / "python"  # of tests/aarch64.sh
CPUS = ("apple-m4", "cortex-a76", "cortex-a72")  # as LLVM calls them: with I8MM, with dot products of int8 alone, with neither
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        not EMULATED.exists(), reason="no aarch64 under QEMU: tests/aarch64.sh build/aarch64 .venv/bin/python makes one"
    ),
]


@pytest.fixture(scope="module")
def inputs(folder):
    """Blocks of every format with a rest where rows may have one, activations, queries, keys and values; beside them in the
    folder a tiny model, tiles of ``inputs["tiles"]``, and what each CPU made of them all."""
    random, arrays = np.random.default_rng(0), {}
    for name in sorted(reference.FORMATS):
        elements = FORMATS[name].block_elements
        columns = 512 + {256: 0, 1: 48, 64: 64}.get(elements, 96)
        arrays[f"blocks.{name}"] = random_blocks(name, 18 * columns // elements).reshape(18, -1)
    shapes = {"x": (20, 640), "q": (8, 20, 64), "k": (300, 2, 64), "v": (300, 2, 64)}
    arrays |= {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays["tiles"] = random.normal(0, 3, (64, 256)).cumsum(axis=1).astype(np.int64).astype(np.int8)  # differences are coded
    np.savez(folder / "inputs.npz", **arrays)
    tiles = kit.codec.encode(arrays["tiles"])
    assert tiles.predictor == "left"
    (folder / "tiles").write_bytes(tiles.to_bytes())
    model_files.write(folder, "tiny-llama", "Q4_K_M").rename(folder / "model.gguf")
    _run(sys.executable, "plain", folder)
    _run(sys.executable, "compile", folder, *CPUS)
    arrays["compiled"] = set(folder.glob("*/*.o"))
    _run(EMULATED, "emulate", folder, *CPUS)
    return arrays


def _run(python, mode, *arguments):
    path = os.pathsep.join([str(ROOT), str(Path(kit.__file__).parents[1])])
    # QEMU hung for good in a child that was forked beside a thread of OpenBLAS
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([python, WORKER, mode, *arguments], env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("cpu", CPUS)
def test_every_bit_is_that_of_the_plain_tier_here(cpu, folder, inputs):
    found, plain = np.load(folder / f"{cpu}.npz"), np.load(folder / "plain.npz")
    shared = [name for name in plain if name in found]
    assert len(shared) == (len(plain) if cpu == "apple-m4" else 17)
    wrong = [name for name in shared if found[name].tobytes() != plain[name].tobytes()]
    assert [name for name in wrong if not name.startswith("fused")] == []
    for name in wrong:  # torch's own arithmetic in a model differs from CPU to CPU
        assert np.abs(found[name] - plain[name]).max() < 1e-5 and found[name].argmax() == plain[name].argmax(), name


@pytest.mark.parametrize("name", sorted(reference.FORMATS))
def test_every_format_is_that_of_gguf_py_and_of_float64(name, folder, inputs):
    found = np.load(folder / "apple-m4.npz")
    numbers = gguf.quants.dequantize(inputs[f"blocks.{name}"], gguf.GGMLQuantizationType[name]).astype(np.float32)
    assert found[f"{name} as float32"].tobytes() == numbers.tobytes()
    times = [key for key in found if key.startswith(f"{name} times")]
    assert len(times) == (6 + (name in ("Q4_K", "Q8_0")) if f"{name} as float16" in found else 2)
    for key in times:
        tokens, accuracy = key.removeprefix(f"{name} times ").split(", ")
        w = numbers.reshape(len(numbers), -1).astype(np.float64)
        x = inputs["x"][: int(tokens), : w.shape[1]]
        products.check(name, found[key], w, x, accuracy, fine=len(x) >= 16)


def test_tiles_decode_equally(folder, inputs):
    assert np.array_equal(np.load(folder / "tiles.npy"), inputs["tiles"])


def test_all_that_ran_is_what_llvm_made_for_the_cpu(folder, inputs):
    assert set(folder.glob("*/*.o")) == inputs["compiled"]
