"""What a user would pick instead: llama.cpp and transformers on the same file, each in a process of its own, in turn."""

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from tqdm import tqdm

from kit.errors import KitError, ReportError
from kit.lab import llama_cpp
from kit.lab.machine import memory_available, usable_cores
from kit.units import format_bytes

PROMPT = "The capital of France is"


class _Kit:
    def __init__(self, path, context, linear):
        import kit

        self._model = kit.Transformer(kit.Weights(kit.open(path)), linear=linear, max_context=context)

    def begin(self, ids):
        self._cache = self._model.new_cache()
        return self.step(*ids)

    def step(self, *ids):
        return int(self._model.step(ids, self._cache).argmax())


class _Llama:
    def __init__(self, path, context, mode):
        self._model = llama_cpp.Llama(path, mode, context)

    def begin(self, ids):
        self._held = 0
        return self.step(*ids)

    def step(self, *ids):
        logits = self._model.logits(ids, self._held, wanted=1)
        self._held += len(ids)
        return int(logits.argmax())


class _Transformers:
    def __init__(self, path, context):
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        torch.set_num_threads(usable_cores())
        self._model, self._torch = self._load(Path(path)), torch

    def _load(self, path):
        import transformers

        return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)

    def begin(self, ids):
        self._held = None
        return self.step(*ids)

    def step(self, *ids):
        with self._torch.inference_mode():
            out = self._model(self._torch.tensor([ids]), past_key_values=self._held, use_cache=True, logits_to_keep=1)
        self._held = out.past_key_values
        return int(out.logits[0, -1].argmax())


class _InTransformers(_Transformers):
    def __init__(self, path, context, weights):
        self._weights = weights
        super().__init__(path, context)

    def _load(self, path):
        from kit.hf import load

        return load(path, self._weights)[0]


ENGINES = {
    "kit": partial(_Kit, linear="fused"),
    "kit, int8 activations": partial(_Kit, linear="fused-int8"),
    **{f"llama.cpp, {mode}": partial(_Llama, mode=mode) for mode in llama_cpp.MODES},
    "transformers": _Transformers,
    "kit in transformers": partial(_InTransformers, weights="blocks"),
    "kit in transformers, int8 activations": partial(_InTransformers, weights="blocks-int8"),
}
_PACKAGES = {"llama.cpp": "xllamacpp", "transformers": "transformers", "kit in transformers": "transformers"}
_IMPORTS = {  # what an engine's process imports before loading is timed
    "kit": ("kit.model.transformer", "kit.cpu.linear"),
    "llama.cpp": ("xllamacpp",),
    "transformers": ("torch", "transformers.modeling_utils", "transformers.modeling_gguf_pytorch_utils"),
    "kit in transformers": ("kit.hf.model", "kit.cpu.linear"),
}


def installed() -> list[str]:
    """The names in ENGINES that can run here."""
    return [name for name in ENGINES if not _missing(name)]


def _missing(name) -> str:
    package = _PACKAGES.get(name.partition(",")[0])
    return package if package and importlib.util.find_spec(package) is None else ""


def compare(path, engines=None, prompt=None, tokens=32, rounds=5, progress=False) -> pd.DataFrame:
    """One row an engine (names of ENGINES; None: all): the same greedy tokens from the same file, ``rounds`` times in turn.

    Only one process runs at a time, the others are stopped. ``prompt``: token ids (None: of PROMPT). Columns: imports, load
    and first, seconds until the engine's libraries are imported, then the file is open, then until the first token, in
    a new process with the file in the page cache; prefill, tokens a second of the prompt, median; speed, those after it, the
    median of ``samples``; resident, bytes of the process after that; mapped, those of the file itself
    among them; beyond imports, those that were not there when the libraries were; agree, leading tokens equal to the first
    engine's; reason, why the rest of the row is empty.
    """
    import kit

    with kit.open(path) as file:
        weights = kit.Weights(file)
        prompt = kit.Transformer(weights).tokenizer.encode(PROMPT) if prompt is None else list(prompt)
        path, needs = file.path, {"transformers": 2 * weights.working_set}  # it converts all to float32, one by one
    context, running, rows = len(prompt) + tokens, {}, {}
    try:
        for name in tqdm(engines or ENGINES, "peers", disable=None if progress else True):
            if rows.get(family := name.partition(",")[0], {}).get("reason"):
                rows[name] = {"reason": f"see {family}"}  # another way of an engine that cannot open the file
                continue
            try:
                running[name] = _start(name, path, context, needs.get(name, 0))
                rows[name] = {
                    "imports": running[name].imports,
                    "load": running[name].ask(load=True)[0],
                    "first": running[name].ask(begin=prompt)[0],
                    "prompts": [],
                    "samples": [],
                    "reason": "",
                }
            except KitError as error:
                rows[name] = {"reason": str(error).replace(str(path), path.name)}
                if name in running:
                    running.pop(name).close()
        said = {}
        for _ in range(rounds):
            for name, engine in running.items():
                rows[name]["prompts"].append(len(prompt) / engine.ask(begin=prompt)[0])
                seconds, said[name] = engine.ask(steps=tokens - 1)
                rows[name]["samples"].append((tokens - 1) / seconds)
        for name, engine in running.items():
            rows[name] |= {
                "resident": engine.memory(), "mapped": engine.mapped(path),
                "prefill": float(np.median(rows[name].pop("prompts"))),
                "speed": float(np.median(rows[name]["samples"])), "agree": _agree(said[name], next(iter(said.values()))),
            }  # fmt: skip
            rows[name]["beyond imports"] = rows[name]["resident"] - engine.base
    finally:
        for engine in running.values():
            engine.close()
    columns = ["imports", "load", "first", "prefill", "speed", "samples", "resident", "beyond imports", "mapped", "agree"]
    columns += ["reason"]
    return pd.DataFrame.from_dict(rows, "index").reindex(columns=columns).rename_axis("engine")


def of_run(lab, path) -> pd.DataFrame:
    """The engines of a run beside each other on one file, 8 tokens after a prompt of 4: measured by the first notebook that
    asks, and read from the run's peers.json by the others, so that their figures agree. Not by plain transformers, which would
    convert the file for minutes."""
    kept = lab.out / "peers.json"
    told = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if told.get("file") != Path(path).name or told["by"] == lab.notebook:
        engines = [name for name in installed() if name != "transformers"]
        rows = compare(path, engines, prompt=[1, 5, 9, 2], tokens=8, rounds=3).to_dict("index")
        told = {"file": Path(path).name, "by": lab.notebook, "engines": rows}
        kept.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    table = pd.DataFrame.from_dict(told["engines"], "index").rename_axis("engine").rename(columns={"speed": "tok/s"})
    return table.reindex(columns=["load", "first", "tok/s", "agree", "resident", "reason"])


def _agree(tokens, others) -> int:
    pairs = list(zip(tokens, others, strict=True))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _start(name, path, context, need) -> "_Process":
    if package := _missing(name):
        raise ReportError(f"{name}: not installed: pip install {package}")
    if need > (room := memory_available()):
        raise ReportError(f"{name}: needs about {format_bytes(need)} to load this file, {format_bytes(room)} are free")
    return _Process(name, path, context)


class _Process:
    """An engine behind two pipes; stopped while nobody asks it anything."""

    def __init__(self, name, path, context):
        self.name = name
        command = [sys.executable, "-m", "kit.findings.peers", name, str(path), str(context)]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.imports = self._answer()[0]
        self.base = self.memory()

    def ask(self, **question) -> tuple[float, list[int]]:
        """(seconds, tokens) of one of the questions that ``serve`` answers."""
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._child.stdout.readline()
        if not line:
            said = self._child.communicate()[1].strip().splitlines()
            reason = said[-1].removeprefix("kit.errors.") if said else f"ended with {self._child.returncode}"
            raise ReportError(f"{self.name}: {reason}")
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def memory(self) -> int:
        """Bytes resident."""
        return psutil.Process(self._child.pid).memory_info().rss

    def mapped(self, path) -> int:
        """Bytes of the file that are resident as they are mapped; 0 where the system cannot tell."""
        maps = psutil.Process(self._child.pid).memory_maps() if hasattr(psutil.Process, "memory_maps") else ()
        return sum(part.rss for part in maps if part.path == os.path.realpath(path))

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()


def serve(name: str, path: str, context: str) -> None:
    """The engine's process. A line of standard input is {"load": true}, {"begin": ids} for a new prompt, or {"steps": n} for n
    more tokens; a line of standard output is [seconds, tokens], the first for importing."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    start = time.perf_counter()
    for module in _IMPORTS[name.partition(",")[0]]:
        importlib.import_module(module)
    print(json.dumps([time.perf_counter() - start, []]), file=out)
    engine, token = None, None
    for line in sys.stdin:
        question, said = json.loads(line), []
        start = time.perf_counter()
        if "load" in question:
            engine = ENGINES[name](path, int(context))
        if "begin" in question:
            token = engine.begin(question["begin"])
            said.append(token)
        for _ in range(question.get("steps", 0)):
            token = engine.step(token)
            said.append(token)
        print(json.dumps([time.perf_counter() - start, said]), file=out)


if __name__ == "__main__":
    serve(*sys.argv[1:])
