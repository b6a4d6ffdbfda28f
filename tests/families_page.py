"""Writes the table of docs/families.md: each family's logits compared with llama.cpp's. Run as a program: minutes."""

import re
import sys
import tempfile
from pathlib import Path

import family_files
import llama_cpp
import model_files
import numpy as np

import kit
from kit.lab.predicting.remembered import by_kind
from kit.model.architectures import ARCHITECTURES
from kit.system.paths import ROOT

PAGE = ROOT / "docs" / "families.md"
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 30)]
COLUMNS = "family", "mixers", "prompt", "token by token", "int8 activations"
BEGIN = 5


def files() -> dict:
    """Architecture -> function (folder, type of matrices) that writes its file: the first of the tests'."""
    found = {}
    for name, geometry in (model_files.MODELS | model_files.FAMILIES).items():
        found.setdefault(geometry.architecture, lambda folder, kind, name=name: model_files.write(folder, name, kind))
    for name, make in (family_files.FILES | family_files.LARGE).items():
        write = lambda folder, kind, name=name: family_files.write(folder, name, kind)  # noqa: E731
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
    return ", ".join(mixers), *(f"{each:.0e}" for each in errors)


def cells() -> dict[str, list[str]]:
    """Family -> cells of the page's table."""
    rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in rows}


def main():
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|"]
        for name, write in files().items():
            tokens = TOKENS[:16] if name == "phi3" else TOKENS  # within a window that llama.cpp does not read
            found = row(*(write(Path(folder), kind) for kind in ("F32", "Q8_0")), tokens)
            lines.append(f"| `{name}` | {' | '.join(found)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(r"(?s)(<!-- table -->\n).*(<!-- /table -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text))


if __name__ == "__main__":
    main()
