"""What a user would pick instead: llama.cpp and transformers on the same file, each in a process of its own, in turn."""

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from tqdm import tqdm

from kit.errors import KitError, ReportError
from kit.lab import llama_cpp, system
from kit.lab.system import memory_available, usable_cores
from kit.units import format_bytes

PROMPT = "The capital of France is"


# An engine is a function of (path, context) and of options. It loads the model and returns ``logits(ids, state, wanted)``,
# which evaluates these tokens after those of ``state`` (None: none) and returns the logits after the last ``wanted`` of them,
# an array (wanted, vocabulary) of float32, and the state after them.


def _kit(path, context, linear, kv="float32"):
    import kit

    model = kit.Transformer(kit.Weights(kit.open(path)), linear=linear, kv_dtype=kv, max_context=context)

    def logits(ids, cache, wanted):
        cache = model.new_cache() if cache is None else cache
        return model.logits(ids, -wanted, cache).numpy(), cache

    return logits


def _llama(path, context, mode="mmap", peer="llama.cpp", kv="float16", exact=False):
    model = llama_cpp.Llama(path, mode, context, kv, exact, peer=peer)

    def logits(ids, held, wanted):
        held = held or 0
        return model.logits(ids, held, wanted), held + len(ids)

    return logits


def _transformers(path, context, weights="", engine="auto"):
    """``weights`` and ``engine`` of kit.hf.load; no weights: transformers' own conversion to float32."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(usable_cores())
    path = Path(path)
    if weights:
        from kit.hf import load

        model = load(path, weights, engine=engine)[0]
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)

    @torch.inference_mode()
    def logits(ids, held, wanted):
        out = model(torch.tensor([ids]), past_key_values=held, use_cache=True, logits_to_keep=wanted)
        return out.logits[0].numpy(), out.past_key_values

    return logits


ENGINES = {
    "kit": partial(_kit, linear="fused"),
    "kit, int8 activations": partial(_kit, linear="fused-int8"),
    **{f"llama.cpp, {mode}": partial(_llama, mode=mode) for mode in llama_cpp.MODES},
    "ik_llama.cpp": partial(_llama, peer="ik_llama.cpp"),
    "transformers": _transformers,
    "kit in transformers": partial(_transformers, weights="blocks"),
    "kit in transformers, modules": partial(_transformers, weights="blocks", engine="modules"),
    "kit in transformers, int8 activations": partial(_transformers, weights="blocks-int8"),
}
_PACKAGES = {"llama.cpp": "xllamacpp", "transformers": "transformers", "kit in transformers": "transformers"}
_IMPORTS = {  # what an engine's process imports before loading is timed
    "kit": ("kit.model.transformer", "kit.cpu.linear"),
    "llama.cpp": ("xllamacpp",),
    "ik_llama.cpp": (),
    "transformers": ("torch", "transformers.modeling_utils", "transformers.modeling_gguf_pytorch_utils"),
    "kit in transformers": ("kit.hf.model", "kit.cpu.linear"),
}


_COLUMNS = [
    "imports",
    "load",
    "first",
    "prefill",
    "speed",
    "samples",
    "resident",
    "beyond imports",
    "mapped",
    "agree",
    "reason",
]


def installed() -> list[str]:
    """The names in ENGINES that can run here."""
    return [name for name in ENGINES if not _missing(name)]


def _missing(name) -> str:
    """Why an engine cannot run here, "" if it can."""
    family = name.partition(",")[0]
    if family == "ik_llama.cpp":
        return "" if llama_cpp.available(family) else "no build of it is named: set IK_LLAMA_CPP to its libllama.so"
    package = _PACKAGES.get(family)
    return f"not installed: pip install {package}" if package and importlib.util.find_spec(package) is None else ""


def compare(path, engines=None, prompt=None, tokens=32, rounds=5, progress=False) -> pd.DataFrame:
    """One row an engine (names of ENGINES; None: all): the same greedy tokens from the same file, ``rounds`` times in turn.

    Only one process runs at a time, the others are stopped. ``prompt``: token ids (None: of PROMPT). Columns:
    imports, load, first: seconds until the engine's libraries are imported, then until the file is open, then until the first
    token, in a new process with the file in the page cache. prefill: tokens a second of the prompt, the median. speed: tokens
    a second after it, the median of ``samples``. resident: bytes of the process at the end; mapped: those of them that are
    the file's; beyond imports: those that came after the imports. agree: leading tokens that are the first engine's. reason:
    why the rest of the row is empty.
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
                load, first = running[name].ask(load=True)[0], running[name].ask(begin=prompt)[0]
                rows[name] = {"imports": running[name].imports, "load": load, "first": first, "reason": ""}
                rows[name] |= {"prefill": [], "samples": []}
            except KitError as error:
                rows[name] = {"reason": str(error).replace(str(path), path.name)}
                if name in running:
                    running.pop(name).close()
        said = {}
        for _ in range(rounds):
            for name, engine in running.items():
                rows[name]["prefill"].append(len(prompt) / engine.ask(begin=prompt)[0])
                seconds, said[name] = engine.ask(steps=tokens - 1)
                rows[name]["samples"].append((tokens - 1) / seconds)
        for name, engine in running.items():
            row, resident = rows[name], engine.memory()
            row |= {"prefill": float(np.median(row["prefill"])), "speed": float(np.median(row["samples"]))}
            row |= {"resident": resident, "mapped": engine.mapped(path), "beyond imports": resident - engine.base}
            row["agree"] = int(np.equal(said[name], next(iter(said.values()))).cumprod().sum())
    finally:
        for engine in running.values():
            engine.close()
    return pd.DataFrame.from_dict(rows, "index").reindex(columns=_COLUMNS).rename_axis("engine")


def of_run(lab, path) -> pd.DataFrame:
    """The engines of a run beside each other on one file, 8 tokens after a prompt of 4: measured by the first notebook that
    asks, and read from the run's peers.json by the others, so that their figures agree. Not by transformers, which converts
    the file for minutes, nor by llama.cpp's ways to load that change no speed."""
    kept = lab.out / "peers.json"
    told = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if told.get("file") != Path(path).name or told["by"] == lab.notebook:
        engines = [name for name in installed() if not name.endswith(("mlock", "no-mmap")) and "transformers" not in name]
        rows = compare(path, engines, prompt=[1, 5, 9, 2], tokens=8, rounds=3).to_dict("index")
        told = {"file": Path(path).name, "by": lab.notebook, "engines": rows}
        kept.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    table = pd.DataFrame.from_dict(told["engines"], "index").rename_axis("engine").rename(columns={"speed": "tok/s"})
    return table.reindex(columns=["load", "first", "tok/s", "agree", "resident", "reason"])


def _start(name, path, context, need) -> "Process":
    if reason := _missing(name):
        raise ReportError(f"{name}: {reason}")
    if need > (room := memory_available()):
        raise ReportError(f"{name}: needs about {format_bytes(need)} to load this file, {format_bytes(room)} are free")
    return Process(name, path, context)


class Process:
    """An engine behind two pipes; stopped while nobody asks it anything. ``options``: of the engine, and ``cores``, how many it
    may use (all); ``environment``: variables beside those of this process."""

    def __init__(self, name, path, context, environment=None, **options):
        self.name = name
        told = json.dumps([name, str(path), {"context": context} | options])
        command = [sys.executable, "-m", "kit.costs.peers", told]
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop the engine
        given = os.environ | ({} if name.startswith("kit") else llama_cpp.ENVIRONMENT) | (environment or {})
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True, env=given)
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
            self._child.wait()
            self._said.seek(0)
            said = self._said.read().strip().splitlines()
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


def serve(told: str) -> None:
    """The engine's process. A line of standard input is {"load": true}, {"begin": ids} for a new prompt, {"steps": n} for n
    more tokens, or {"logits": ids, "alone": whether token by token, "out": file} for the logits after each of these, as numpy
    saves them; a line of standard output is [seconds, tokens], the first for importing."""
    name, path, options = json.loads(told)
    if cores := options.pop("cores", None):
        system.pin(cores)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    start = time.perf_counter()
    for module in _IMPORTS[name.partition(",")[0]]:
        importlib.import_module(module)
    print(json.dumps([time.perf_counter() - start, []]), file=out)
    for line in sys.stdin:
        question, said = json.loads(line), []
        start = time.perf_counter()
        if "load" in question:
            logits = ENGINES[name](path, **options)
        if "begin" in question:
            state = None  # the last prompt's KV cache is freed first
            found, state = logits(question["begin"], state, 1)
            said.append(int(found.argmax()))
            token = said[-1]
        for _ in range(question.get("steps", 0)):
            found, state = logits([token], state, 1)
            token = int(found.argmax())
            said.append(token)
        if "logits" in question:
            state, ids = None, question["logits"]
            each = []
            for part in [[token] for token in ids] if question["alone"] else [ids]:
                found, state = logits(part, state, len(part))
                each.append(found)
            np.save(question["out"], np.concatenate(each))
        print(json.dumps([time.perf_counter() - start, said]), file=out)


if __name__ == "__main__":
    serve(*sys.argv[1:])
