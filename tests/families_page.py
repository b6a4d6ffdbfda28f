"""Writes the table of docs/families.md: each family's logits compared with llama.cpp's.

Run as a program: minutes; with names, these families alone."""

import re
import sys
import tempfile
from pathlib import Path

import family_files
import kind_files
import llama_cpp
import model_files
import numpy as np
import row_files

import kit
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.predicting.remembered import by_kind
from kit.model.architectures import ARCHITECTURES
from kit.system.paths import ROOT

PAGE = ROOT / "docs" / "families.md"
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 30)]
COLUMNS = "family", "mixers", "prompt", "token by token", "int8 activations", "KiB at 0", "KiB at 32K"
FAR = 32768
BEGIN = 5


def files() -> dict:
    """Architecture -> function (folder, type of matrices) that writes its file: the first of the tests'."""
    found = {}
    for name, geometry in (model_files.MODELS | model_files.FAMILIES).items():
        found.setdefault(geometry.architecture, lambda folder, kind, name=name: model_files.write(folder, name, kind))
    for module, own in (
        (family_files, family_files.FILES | family_files.LARGE),
        (row_files, row_files.FILES),
        (kind_files, kind_files.FILES),
    ):
        for name, make in own.items():
            write = lambda folder, kind, name=name, module=module: module.write(folder, name, kind)  # noqa: E731
            found.setdefault(make().architecture, write)
    return {name: found[name] for name in ARCHITECTURES if name in found}


def error(got, right) -> float:
    """Median over the tokens of the RMS of the difference, over the spread of the logits."""
    return float(np.median(np.sqrt(((np.asarray(got) - right) ** 2).mean(1)) / right.std(1)))


def row(path, small, tokens) -> tuple[str, ...]:
    """The cells of a family but its name: ``path`` of F32, ``small`` of Q8_0."""
    model, right = kit.Transformer(kit.Weights(kit.open(path)), linear="fused"), llama_cpp.logits(path, tokens)
    assert model.unplanned == ""
    prompt, cache = model.logits(tokens).numpy(), model.new_cache(64)
    assert (prompt.argmax(1) == right.argmax(1)).all()
    steps = [model.step(tokens[:BEGIN], cache), *(model.step([token], cache) for token in tokens[BEGIN:])]
    rounded = kit.Transformer(kit.Weights(kit.open(small)), linear="fused-int8").logits(tokens).numpy()
    errors = error(prompt, right), error(np.stack(steps), right[BEGIN - 1 :]), error(rounded, llama_cpp.logits(small, tokens))
    mixers = dict.fromkeys(kind.partition(",")[0] for kind in by_kind(model.config))
    return ", ".join(mixers), *(f"{each:.0e}" for each in errors), *(f"{read(model, at) / 1024:,.0f}" for at in (0, FAR))


def read(model, depth: int) -> int:
    """Bytes that a token reads after ``depth`` positions: weights, and what the layers remember."""
    weights = bytes_used(uses_of(model.file))
    return weights + sum(layer.mixer.memory.read(depth + 1) for layer in model.config.layers)


def cells() -> dict[str, list[str]]:
    """Family -> cells of the page's table."""
    table = PAGE.read_text(encoding="utf-8").partition("<!-- table -->")[2].partition("<!-- /table -->")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", table, re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in rows}


def main(only):
    told = cells()
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        for name, write in files().items():
            if only and name not in only and len(told.get(name, ())) == len(COLUMNS) - 1:
                lines.append(f"| `{name}` | {' | '.join(told[name])} |")
                continue
            tokens = TOKENS[:16] if name == "phi3" else TOKENS  # within a window that llama.cpp does not read
            found = row(*(write(Path(folder), kind) for kind in ("F32", "Q8_0")), tokens)
            lines.append(f"| `{name}` | {' | '.join(found)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(r"(?s)(<!-- table -->\n).*(<!-- /table -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text))


if __name__ == "__main__":
    main(sys.argv[1:])
