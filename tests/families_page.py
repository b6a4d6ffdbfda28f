"""Writes results/reference/families.md, each family's logits compared with llama.cpp's, and what docs/families.md says of it.

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
import reference_dots3note
import reference_hy_v4
import reference_phimoe
import row_files

import kit
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.predicting.remembered import by_kind
from kit.model.architectures import ARCHITECTURES
from kit.system.paths import ROOT

PAGE, RECORD = ROOT / "docs" / "families.md", ROOT / "results" / "reference" / "families.md"
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 30)]
COLUMNS = "family", "mixers", "prompt", "token by token", "int8", "KiB at 0", "KiB at 32K"
FAR = 32768
BEGIN = 5
AUTHORS = {
    "phimoe": reference_phimoe.of,
    "dots3note": reference_dots3note.of,
    "hy_v4": reference_hy_v4.of,
}  # whose logits count: llama.cpp has another model
ALIKE = 1e-5  # a larger difference of exact products is an exception that the page names


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
    model = kit.Transformer(kit.Weights(kit.open(path)), linear="fused")
    logits = AUTHORS.get(model.config.architecture, llama_cpp.logits)
    right = logits(path, tokens)
    assert model.unplanned == ""
    prompt, cache = model.logits(tokens).numpy(), model.new_cache(64)
    assert (prompt.argmax(1) == right.argmax(1)).all()
    steps = [model.step(tokens[:BEGIN], cache), *(model.step([token], cache) for token in tokens[BEGIN:])]
    rounded = kit.Transformer(kit.Weights(kit.open(small)), linear="fused-int8").logits(tokens).numpy()
    errors = error(prompt, right), error(np.stack(steps), right[BEGIN - 1 :]), error(rounded, logits(small, tokens))
    mixers = dict.fromkeys(kind.partition(",")[0] for kind in by_kind(model.config))
    return ", ".join(mixers), *(f"{each:.0e}" for each in errors), *(f"{read(model, at) / 1024:,.0f}" for at in (0, FAR))


def read(model, depth: int) -> int:
    """Bytes that a token reads after ``depth`` positions: weights, and what the layers remember."""
    weights = bytes_used(uses_of(model.file))
    return weights + sum(layer.mixer.memory.read(depth + 1) for layer in model.config.layers)


def cells() -> dict[str, list[str]]:
    """Family -> cells of the record's table."""
    table = RECORD.read_text(encoding="utf-8").partition("<!-- table -->")[2].partition("<!-- /table -->")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", table, re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in rows}


def summary() -> str:
    """What the page says of the table: how many families, how near, which are further off, and all names by kind of layer."""
    errors = {name: [float(each) for each in row[1:4]] for name, row in cells().items()}
    exact = {name: max(row[:2]) for name, row in errors.items()}
    far = sorted((name for name in exact if exact[name] > ALIKE), key=lambda name: -exact[name])
    near = max(value for name, value in exact.items() if name not in far)
    rounded = max(row[2] for row in errors.values())
    kinds = {}
    for name, row in cells().items():
        kinds.setdefault(row[0], []).append(f"`{name}`")
    return "\n".join([
        f"kit runs {len(exact)} families. On small random files, the logits of exact products differ from llama.cpp's by",
        f"at most {near:.0e} of their spread, and with int8 in both programs by at most {rounded:.0%}. The exceptions:", "",
        "| family | difference |", "|---|---|", *(f"| `{name}` | {exact[name]:.0e} |" for name in far), "",
        "| layers | `general.architecture` |", "|---|---|",
        *(f"| {kind} | {', '.join(names)} |" for kind, names in kinds.items()),
    ])  # fmt: skip


def between(path: Path, name: str, text: str) -> None:
    """Replace what is between the marks of that name."""
    marks, page = rf"(?s)(<!-- {name} -->\n).*(<!-- /{name} -->)", path.read_text(encoding="utf-8")
    path.write_text(re.sub(marks, lambda found: f"{found[1]}{text}\n{found[2]}", page), encoding="utf-8")


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
    between(RECORD, "table", "\n".join(lines))
    between(PAGE, "families", summary())


if __name__ == "__main__":
    main(sys.argv[1:])
