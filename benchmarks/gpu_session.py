"""The first hour on a GPU: parts in order of value, each in its own process with a time limit, and saved when it ends.

    python -m benchmarks.gpu_session [--out FOLDER] [--part NAME]... [--tiny]

Each part appends one line of JSON to FOLDER/session.jsonl: name, rows, seconds, and the error if it failed. A failed part
does not stop the next one; parts that are done are not repeated. No network is needed. ``--tiny`` runs every part on tiny
shapes with kernels interpreted on the CPU, as a test of this script.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import torch

from kit.gguf.formats import FORMATS
from kit.system.paths import ROOT, models_folder

_FAST = {"Q4_K": 0.80, "Q6_K": 0.70, "Q8_0": 0.85}  # shares of read bandwidth that products are to reach
_OTHERS = [name for name, format in FORMATS.items() if format.codes and name not in _FAST]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_blocks(qtype: str, rows: int, columns: int) -> torch.Tensor:
    """Random blocks of a matrix on the device."""
    from kit.lab.exactness import random_blocks

    count = rows * columns // FORMATS[qtype].block_elements
    some = random_blocks(qtype, min(count, 2**16))
    return torch.from_numpy(np.resize(some, (count, some.shape[1])).reshape(rows, -1)).to(_device())


def _median(work, samples: int) -> float:
    from kit.lab.measuring.gpu import time_on_device

    return float(np.median(time_on_device(work, samples)))


def product_seconds(blocks: torch.Tensor, qtype: str, tokens: int = 1, samples: int = 20) -> float:
    """Median seconds of the product of a matrix with packed activations."""
    from kit.cuda.linear import apply, pack_activations

    columns = blocks.shape[1] // FORMATS[qtype].block_bytes * FORMATS[qtype].block_elements
    x = pack_activations(torch.randn(tokens, columns, device=_device()))
    return _median(lambda: apply(blocks, qtype, x), samples)


def dequantize_seconds(blocks: torch.Tensor, qtype: str, out: torch.Tensor, samples: int = 20) -> float:
    """Median seconds of dequantizing to ``out``."""
    import kit

    return _median(lambda: kit.dequantize(blocks, qtype, out.dtype, "triton", out), samples)


def device_model(name: str):
    """A transformer on the device, of a model file in the models folder, which is written if it does not exist.

    "tiny": one layer of 32 columns, which the interpreter runs in seconds, for a product is one of its programs.
    """
    import kit
    from kit.cuda import linear
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer
    from kit.lab.synthetic.geometry import GEOMETRIES
    from kit.lab.synthetic.write import synthesize

    if name == "tiny":
        linear.rows_of_a_program = lambda format, rows, tokens: 512 // tokens
    path = models_folder() / (name if name.endswith(".gguf") else f"{name}-Q4_K_M.gguf")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = dict(layers=1, hidden_size=32, intermediate_size=32, heads=4, kv_heads=2, head_dim=8)
        synthesize(path, replace(GEOMETRIES["tiny-llama"], **shape) if name == "tiny" else name)
    file = kit.open(path)
    return file, DeviceTransformer(DeviceWeights(file))


# ---- the parts: tiny -> rows


def limits(tiny: bool) -> list[dict]:
    """The measured limits of the device."""
    from kit.lab.measuring.gpu import probe_device

    if not torch.cuda.is_available():
        return [{"name": "none: kernels are interpreted on the CPU", "read_gbps": 1.0, "copy_gbps": 1.0}]
    return [{"name": torch.cuda.get_device_name()} | probe_device()]


def logits(tiny: bool) -> list[dict]:
    """A model's logits on the device against the CPU's, and memory after many tokens."""
    import kit

    names = ["tiny"] if tiny else ["gemma-3-270m-q4_k_m.gguf", "tinyllama-1.1b", "granite-3.3-8b"]
    rows = []
    for name in names:
        if name.endswith(".gguf") and not (models_folder() / name).exists():
            rows.append({"model": name, "error": "not in the models' folder"})
            continue
        file, model = device_model(name)
        prompt = list(range(3, 5 if tiny else 11))
        right = kit.Transformer(kit.Weights(file), linear="fused").logits(prompt)
        error = float((model.logits(prompt).cpu() - right).abs().max() / right.std())
        kit.generate(model, prompt, max_tokens=1 if tiny else 4, stop_at_end=False)
        held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        answer = kit.generate(model, prompt, max_tokens=2 if tiny else 2000, stop_at_end=False)
        after = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        seconds = float(np.median(answer.seconds[1:]))
        row = {"model": name, "largest_error_of_spread": error, "right": error < 1e-3, "tokens_per_second": 1 / seconds}
        rows.append(row | {"memory_grown_bytes": after - held, "tokens": len(answer.tokens)})
        del model
    return rows


def gemv(tiny: bool, names=tuple(_FAST)) -> list[dict]:
    """Products of one token with blocks: share of the read bandwidth."""
    rows, columns = (8, 2048) if tiny else (12800, 4096)
    read, found = limits(tiny)[0]["read_gbps"], []
    for qtype in names:
        blocks = device_blocks(qtype, rows, columns)
        seconds = product_seconds(blocks, qtype, samples=2 if tiny else 50)
        share = blocks.nbytes / seconds / read / 1e9
        found.append({"format": qtype, "us": 1e6 * seconds, "share_of_read": share, "aim": _FAST.get(qtype)})
    return found


def dequantize(tiny: bool, names=tuple(_FAST)) -> list[dict]:
    """Dequantizing 100 MB to bfloat16: exactness, and share of the traffic that a copy reaches."""
    import kit

    rows, columns = (2, 2048) if tiny else (12800, 4096)
    copy, found = limits(tiny)[0]["copy_gbps"], []
    for qtype in names:
        blocks = device_blocks(qtype, rows, columns)
        out = torch.empty(rows, columns, dtype=torch.bfloat16, device=_device())
        few = blocks[:64].cpu().numpy()
        kit.dequantize(blocks[:64], qtype, "bfloat16", "triton", out[:64])
        exact = torch.equal(out[:64].cpu(), kit.dequantize(few, qtype, "bfloat16", "reference"))
        seconds = dequantize_seconds(blocks, qtype, out, 2 if tiny else 20)
        share = (blocks.nbytes + out.nbytes) / seconds / copy / 1e9
        found.append({"format": qtype, "exact": exact, "us": 1e6 * seconds, "share_of_copy": share, "aim": 0.85})
    return found


def tests(tiny: bool) -> list[dict]:
    """The whole GPU test suite."""
    done = _run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/test_triton_gpu.py"])
    return [{"exit_code": done.returncode, "summary": done.stdout.strip().splitlines()[-1:], "failed": _failed(done.stdout)}]


def _failed(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]


def prefill(tiny: bool) -> list[dict]:
    """A prompt of 2,048 tokens."""
    file, model = device_model("tiny" if tiny else "tinyllama-1.1b")
    prompt = [int(token) for token in np.random.default_rng(0).integers(3, 500, 2 if tiny else 2048)]
    seconds = _median(lambda: model.logits(prompt), 1 if tiny else 5)
    matrices = sum(info.elements for info in file.tensors.values() if len(info.shape) > 1)
    return [{"tokens": len(prompt), "seconds": seconds, "gflops_per_second": 2 * matrices * len(prompt) / seconds / 1e9}]


def tiles(tiny: bool) -> list[dict]:
    """Tiles decoded on the device; streamed from pinned memory against plain INT8; nvCOMP beside them."""
    from benchmarks._gpu_codec import nvcomp_row, streaming_rows, tile_rows

    if tiny:
        from kit import codec
        from kit.codec.triton import decode_on_device, upload

        matrix = np.random.default_rng(0).integers(-9, 9, (4, 300)).astype(np.int8)
        exact = np.array_equal(decode_on_device(upload(codec.encode(matrix))).numpy(), matrix)
        return [{"kernel": "decode 1 tile", "exact": exact}]
    rows = tile_rows()
    return rows + streaming_rows(limits(tiny)[0]) + [nvcomp_row(rows)]


def other_formats(tiny: bool) -> list[dict]:
    """Every other format, both ways."""
    names = _OTHERS[:2] if tiny else _OTHERS
    return dequantize(tiny, names) + gemv(tiny, names)


def reproduce(tiny: bool) -> list[dict]:
    """The notebooks, quick, on the device: pages and records go to FOLDER/reproduce."""
    out = Path(os.environ.get("KIT_GPU_SESSION", "results/gpu")) / "reproduce"
    more = ["--help"] if tiny else ["--profile", "quick", "--device", "cuda", "--out", str(out)]
    done = _run([sys.executable, "-c", "from kit.lab.commands.cli import main; main()", "reproduce", *more])
    return [{"exit_code": done.returncode, "tail": done.stdout.strip().splitlines()[-12:]}]


def _run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


PARTS = {  # in order of worth, with their limits in seconds
    limits: 60, gemv: 120, dequantize: 120, logits: 420, tiles: 180, tests: 420, prefill: 120, other_formats: 300,
    reproduce: 600,
}  # fmt: skip


# ---- the session


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--out", default="results/gpu", type=click.Path(path_type=Path), help="Folder of session.jsonl.")
@click.option("--part", "names", multiple=True, type=click.Choice([part.__name__ for part in PARTS]))
@click.option("--tiny", is_flag=True, help="Tiny shapes, and without a GPU interpreted kernels.")
@click.option("--alone", is_flag=True, hidden=True, help="Run the part in this process and print its rows.")
def main(out, names, tiny, alone):
    """Run all parts, or those named, that are not done yet."""
    chosen = {part.__name__: (part, limit) for part, limit in PARTS.items() if not names or part.__name__ in names}
    if alone:
        for part, _ in chosen.values():
            click.echo("\n" + json.dumps(part(tiny)))
        return
    out.mkdir(parents=True, exist_ok=True)
    log = out / "session.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    done = {line["part"] for line in map(json.loads, lines) if not line["error"]}
    for name, (_, limit) in chosen.items():
        if name in done:
            continue
        line = _line(name, tiny, limit, out)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        said = line["error"] or f"{len(line['rows'])} rows"
        click.echo(f"{name:14} {line['seconds']:7.1f} s  {said}")


def _line(name: str, tiny: bool, limit: float, out: Path) -> dict:
    """Run one part in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu_session", "--alone", "--part", name, *(["--tiny"] if tiny else [])]
    environment = os.environ | {"KIT_GPU_SESSION": str(out.absolute())} | ({"TRITON_INTERPRET": "1"} if tiny else {})
    started, rows, error = time.time(), [], ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=ROOT, env=environment)
        if done.returncode:
            error = done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
        else:
            rows = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        error = f"not done after {limit} s"
    except (ValueError, IndexError) as wrong:
        error = f"{type(wrong).__name__}: {wrong}"
    return {"part": name, "started": started, "seconds": time.time() - started, "error": error, "rows": rows}


if __name__ == "__main__":
    main()
