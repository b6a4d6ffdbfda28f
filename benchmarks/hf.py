"""Trained files: transformers, the kit's modules and own pass under it, the kit alone, llama.cpp; a process each, in turn.

``--only "on AVX2"`` (or ``"gemma-3-270m on AVX2"``) holds all of them to a CPU without AVX-512: the kit and torch by variables,
llama.cpp as its wheel is compiled.
"""

from collections import Counter
from itertools import groupby

import numpy as np
import pandas as pd

import kit
from benchmarks import parts, quality
from benchmarks._files import fetch
from benchmarks.decode import masked
from kit.gguf.trained import TRAINED
from kit.lab.explaining import peers
from kit.lab.predicting.divergence import window_of
from kit.lab.tables import markdown, number

ENGINES = {  # engine -> its row in tables
    "transformers": "transformers, `gguf_file=` (float32)",
    "kit in transformers, modules": '`kit.hf.load(..., engine="modules")`',
    "kit in transformers": "`kit.hf.load`",
    "kit in transformers, int8 activations": '`kit.hf.load(..., "blocks-int8")`',
    "kit": "`kit generate`",
    "kit, int8 activations": "`kit generate --linear fused-int8`",
    "llama.cpp, mmap": "llama.cpp",
}
HELD = "on AVX2"


def run(only: str = "", prompt: int = 512, tokens: int = 24, rounds: int = 3) -> pd.DataFrame:
    """One row a model and engine: the columns of peers.compare but the samples, decode beside llama.cpp's and transformers',
    bytes beyond the imports beside the file's, KL divergence from float32 (nats) and the share of tokens with the same most
    probable one, token by token. ``only``: the models whose name holds this; "on AVX2" at its end: held to that, as the column
    "held to" then says."""
    name, held, _ = only.partition(HELD)
    only, tier = name.strip(), HELD.removeprefix("on ") * bool(held)
    return pd.concat([_of(model, prompt, tokens, rounds, tier) for model in TRAINED if only in model])


def _of(model, prompt, tokens, rounds, tier):
    path = fetch(model)
    with kit.open(path) as file:
        opened = kit.Transformer(kit.Weights(file))
        ids = window_of(opened.tokenizer, opened.config.context, prompt)
    environment = masked(tier) | {"LLAMA_CPP": ""} if tier else {}
    table = peers.compare(path, tuple(ENGINES), ids, tokens, rounds, progress=True, environment=environment)
    table["of llama.cpp"] = table["speed"] / table["speed"]["llama.cpp, mmap"]
    table["of transformers"] = table["speed"] / table["speed"]["transformers"]
    table["of the file"] = table["beyond imports"] / path.stat().st_size
    ran, pairs = table.index[table.reason == ""], tuple(environment.items())
    found = {engine: quality.of(path, engine, "token by token", environment=pairs) for engine in ran}
    for column in ("kl", "kl_error", "same"):
        table[column] = pd.Series({engine: row[column] for engine, row in found.items()})
    table = table.drop(columns="samples").reset_index(names="engine").assign(model=model, **{"held to": tier})
    return table.set_index(["model", "engine"])


# of docs/in_your_code.md: (figure of a row and of transformers', how it is written, at least; below 0: at most)
COLUMNS = {
    "KL to float32, nats": (lambda row, _: row["kl"], ".2g", None),
    "opens in, s": (lambda row, _: row["load"], ".1f", -1.5),
    "MB beyond imports and file": (lambda row, _: (row["beyond imports"] - row["mapped"]) / 1e6, ".0f", -350),
    "a prompt, times transformers": (lambda row, theirs: row["prefill"] / theirs["prefill"], ".2f", 1.5),
    "a token, times transformers": (lambda row, _: row["of transformers"], ".2f", 3),
    "times llama.cpp": (lambda row, _: row["of llama.cpp"], ".2f", 1.2),
}


def summary(rows: list[dict], cpu: str) -> str:
    """The table of one run: a row per way, a figure per model."""
    found = {(row["model"], row["engine"]): row for row in rows if not row["reason"]}
    models = dict.fromkeys(row["model"] for row in rows)
    table = []
    for engine, name in ENGINES.items():
        cells = []
        for figure, written, _ in COLUMNS.values():
            pairs = ((found.get((model, engine)), found.get((model, "transformers"))) for model in models)
            values = (figure(row, theirs) if row and theirs else np.nan for row, theirs in pairs)
            cells.append(", ".join(f"{value:{written}}" for value in values).replace("nan", "–"))
        table.append((name, *cells))
    return markdown((f"{', '.join(models)} ({cpu})", *COLUMNS), table)


SPEEDS = {  # of COLUMNS, those of a speed: (way of benchmarks/parts.py, tokens of its pass, the speed's name in a row)
    "a prompt, times transformers": (f"kit.hf, prompt of {parts.PROMPT}", parts.PROMPT, "prefill"),
    "a token, times transformers": ("kit.hf", 1, "speed"),
    "times llama.cpp": ("kit.hf", 1, "speed"),
}
GROUPS = {
    "token": "",
    "transformers": "Python of transformers",
    "engine": "the kit's around its pass",
    "rest": "the rest of it",
}
GROUPS |= dict.fromkeys(("attention", "norm", "rope", "embed"), "attention, norms, embedding")  # any other part is a product


def reasons(rows: list[dict], profile: dict) -> str:
    """A line for each speed of `kit.hf.load` that misses its goal: milliseconds, those that the goal leaves, and where they go
    by ``profile``, a run of benchmarks/parts.py on the same CPU ({}: none)."""
    found, text = {(row["model"], row["engine"]): row for row in rows if not row["reason"]}, []
    for (model, engine), row in found.items():
        for name, (way, tokens, speed) in SPEEDS.items() if engine == "kit in transformers" else ():
            figure, _, wanted = COLUMNS[name]
            if (times := figure(row, found.get((model, "transformers"), {}))) < wanted:
                text.append(missed(f"{model}, {name}", times, wanted, 1e3 * tokens / row[speed], by_part(profile, model, way)))
    return "\n".join(text)


def missed(what: str, times: float, wanted: float, took: float, parts: str) -> str:
    """A line of a speed that is less than wanted, ``took`` in ms."""
    ms, left = number(took), number(took * times / wanted)
    return f"- {what}: {times:.2f}, wanted {wanted:g}. {ms} ms, of which the goal leaves {left}. By part, ms: {parts}."


def by_part(profile: dict, model: str, way: str) -> str:
    """Milliseconds of a pass by GROUPS, and the rate of its products."""
    spent, done = Counter(), Counter()
    for part in (part for part in profile.get("rows", ()) if (part["model"], part["way"]) == (model, way)):
        spent[group := GROUPS.get(part["part"], "products")] += part["us"] / 1e3
        for rate in ("GB/s", "GFLOP/s"):
            done[rate] += part["us"] / 1e3 * (part.get(rate) or 0) * (group == "products")
    del spent[""]
    told = [f"{part} {ms:.3g}" for part, ms in spent.most_common()]
    told += [f"products at {much / spent['products']:.3g} {rate}" for rate, much in done.items() if much]
    return ", ".join(told) or "not profiled"


def by_model(rows: list[dict]) -> str:
    """Tables of one run's rows, one a model."""
    return "\n\n".join(_whole(model, list(group)) for model, group in groupby(rows, lambda row: row["model"]))


def _whole(title, rows) -> str:
    table, head = [], (title, "KL to float32, nats", "same next token", "imports", "then opens in", "resident", "of it imports",
                   "the file's pages", "prefill", "decode", "of transformers", "of llama.cpp")  # fmt: skip
    for row in rows:
        if row["reason"]:
            table.append((ENGINES[row["engine"]], row["reason"], *[""] * 10))
            continue
        sizes = row["resident"], row["resident"] - row["beyond imports"], row["mapped"]
        cells = ENGINES[row["engine"]], f"{row['kl']:.2g}", f"{row['same']:.1%}"
        cells += f"{row['imports']:.1f} s", f"{row['load']:.1f} s", *(f"{n / 1e6:.0f} MB" for n in sizes)
        speeds = f"{row['prefill']:.0f} tok/s", f"{row['speed']:.1f} tok/s"
        table.append((*cells, *speeds, f"{row['of transformers']:.2f}", f"{row['of llama.cpp']:.2f}"))
    return markdown(head, table)
