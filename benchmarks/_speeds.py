"""The newest record of every benchmark that has a goal, as tables and pictures for pages (benchmarks/_pages.py)."""

import ast
import json
import re
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks import hf
from benchmarks._records import cpu_name
from benchmarks.decode import CASES
from kit.gguf.trained import TRAINED
from kit.lab.tables import markdown
from kit.system.paths import ROOT

WHY = {  # what is known of a line that is missed
    "Q8_0, float32, times the old": "28 cycles of arithmetic and 42 of reading 256 weights take 50 on a core"
}
QUALITY = ("KL to float32, nats", "same next token")
READS = "GB/s from the disk"  # while a mixture decodes
# how the name of a column begins, ours first
SIDES = ("fused", "blocks", "float", "bfloat", "int8", "torch", "llama.cpp", "ik_llama.cpp")
FEATURES = {"amx-int8": "AMX", "avx512vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2"}  # the best first


class Line(NamedTuple):
    """A ratio to a peer or a bound: the newest record of it on a CPU, with its 95 % interval, if it has one, and goals."""

    benchmark: str
    title: str
    started: float
    commit: str
    cpu: str
    row: dict

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; the ratio twice where one sample was taken."""
        return self.row.get("low") or self.row["ratio"], self.row.get("high") or self.row["ratio"]

    @property
    def state(self) -> str:
        """ "" where the goal is reached for certain or there is none, else what is known."""
        if not self.row.get("least"):
            return ""
        low, high = self.interval
        missed, undecided = self.row["ratio"] < self.row["least"], low < self.row["least"] <= high
        why = (self.row.get("why") or WHY.get(self.row["what"])) if missed else ""
        return "; ".join(filter(None, ("undecided" if undecided else "missed" * missed, why)))

    @property
    def cell(self) -> str:
        """The ratio, its interval, its quality, and the goal where that is not reached for certain."""
        row = self.row
        text = f"{row['ratio']:.2f}"
        text += " ({:.2f} to {:.2f})".format(*self.interval) if row.get("low") and row["ratio"] != 1 else ""
        text += f"; KL {row['kl']:.2g}, {row['same']:.1%}" if self.kl is not None else ""
        text += f"; rms {row['error']:.1g}" if row.get("error") else ""
        return text + (f"; **{self.state}** (wanted {row['least']:.2g})" if self.state else "")

    @property
    def kl(self) -> float | None:
        """KL divergence from float32; None of generated weights."""
        return self.row.get("kl")


def newest() -> list[Line]:
    """A line for each thing that has a goal, and for each peer beside it, by benchmark, CPU and name. A trained model's speed
    beside llama.cpp that was recorded without its quality is left out."""
    found = {}
    for run in runs("*"):
        if not (Path(__file__).parent / f"{run['benchmark']}.py").exists() or run["benchmark"] == "scale":  # no more; growth()
            continue
        for row in run["rows"]:
            if not row.get("ratio") or not (row.get("least") or run["benchmark"] in ("decode", "batches")):
                continue
            if run["benchmark"] == "decode" and row.get("kl") is None and any(name in row["what"] for name in TRAINED):
                continue
            if row.get("pages") == "small":
                row = row | {"what": row["what"].replace(", ", " from pages of 4 KiB, ", 1)}
            line = Line(run["benchmark"], run["title"], run["started"], run["system"]["commit"][:7], _cpu(run), row)
            key = line.cpu, row["what"]
            found[key] = max(found.get(key, line), line, key=lambda line: line.started)
    return sorted(found.values(), key=lambda line: (line.benchmark, line.cpu, _natural(line.row["what"])))


def _natural(text: str) -> list:
    """A key by which numbers in a text sort as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def _cpu(run) -> str:
    """The maker, the generation where it is known, and the best vector instructions of the CPU of a run, or those that all of
    its processes were held to."""
    best = next((name for feature, name in FEATURES.items() if feature in run["system"]["cpu_features"]), "")
    held = next((f" held to {row['held to']}" for row in run["rows"] if row.get("held to")), f", {best}")
    return f"{cpu_name(run)}{held}"


def table(lines: list[Line]) -> str:
    """A heading a benchmark, a table a CPU: a row a case, a column a way or a peer, a cell a ratio and what is known of it."""
    text = []
    for _, group in groupby(lines, lambda line: line.benchmark):
        group = list(group)
        text.append(_heading(max(group, key=lambda line: line.started).title).rstrip())
        for cpu, own in ((cpu, list(own)) for cpu, own in groupby(group, lambda line: line.cpu)):
            rows: dict[str, dict[str, Line]] = {}
            for line in own:
                case, column = _place(line.row["what"])
                rows.setdefault(case, {})[column] = line
            columns = sorted({column for row in rows.values() for column in row}, key=_order)
            lines = []
            for case, row in rows.items():
                commits = ", ".join(dict.fromkeys(line.commit for line in row.values()))
                lines.append((case, *(row[column].cell if column in row else "" for column in columns), commits))
            text += [f"\n### {cpu}\n", markdown(("", *columns, "commit"), lines)]
            if told := "\n".join(filter(None, map(_reason, own))):
                text.append(f"\nWhat misses its goal, and where its time goes:\n\n{told}")
    return "\n".join(text) + "\n"


def _reason(line: Line) -> str:
    """Of a decode or prompt that misses its goal, its milliseconds and those of its parts in a profile of the same CPU."""
    case, side, model = [*line.row["what"].split(", ", 2), "", ""][:3]
    if line.benchmark != "decode" or not line.state.startswith("missed") or case not in ("decode", "prefill of 512"):
        return ""
    tokens, profile = CASES[case][1], _newest("parts").get(line.cpu, {})
    of = hf.by_part(profile, model, side) if tokens == 1 else "not profiled"
    return hf.missed(line.row["what"], line.row["ratio"], line.row["least"], 1e3 * tokens / line.row["tok/s"], of)


def _place(what: str) -> tuple[str, str]:
    """The row and the column of a line: the column is the part of its name that is a way or a peer."""
    parts = what.replace(" to ", ", ").split(", ")
    column = next((part for part in parts if part.startswith(SIDES)), None)
    return ", ".join(part for part in parts if part != column), column or "times its peer or bound"


def _order(column: str) -> tuple:
    return next((place for place, side in enumerate(SIDES) if column.startswith(side)), 0), column


def qualities() -> str:
    """A heading and a table of the newest record of benchmarks/quality.py on each CPU."""
    if not (found := _newest_rows("quality")):
        return ""
    head = ("", *QUALITY, "times llama.cpp's", "at most", "CPU", "commit")
    lines = []
    for (cpu, what), (row, commit, _) in sorted(found.items()):
        times = f"{row['of llama.cpp']:.2g}" if row["of llama.cpp"] else ""
        most = f"{row['most']:.2f}" if "fused" in what else ""
        lines.append((what, *_kl(row), times, most, cpu, commit))
    return f"{_heading(max(title for *_, title in found.values()))}\n{markdown(head, lines)}\n"


def parts() -> str:
    """A heading and a table of the newest record of benchmarks/parts.py on each CPU: a row a part, a column a model and way."""
    text = []
    for cpu, run in sorted(_newest("parts").items()):
        table = pd.DataFrame(run["rows"])
        rates = table.reindex(columns=["GB/s", "GFLOP/s"]).bfill(axis=1)["GB/s"]
        table["us"] = [
            f"{us:,.0f}" + (f" ({rate:.1f})" if rate > 0 else "") for us, rate in zip(table["us"], rates, strict=True)
        ]
        table = table.pivot(index="part", columns=["model", "way"], values="us").fillna("").loc[table["part"].unique()]
        text += [_heading(run["title"], cpu, run), markdown(("", *map(", ".join, table)), table.itertuples(name=None))]
    return "\n".join(text) + "\n"


def static() -> str:
    """A heading and a table of the newest record of benchmarks/cycles.py: a row a CPU, a column a format."""
    taken = sorted(runs("cycles"), key=lambda run: run["started"])
    if not taken:
        return ""
    found = pd.DataFrame(taken[-1]["rows"])
    numbers = found[["kit", "kit's bound", "ggml", "kit, float32"]].to_numpy()
    found["all"] = [f"{kit:.0f} ({bound:.0f}) / {ggml:.0f} / {exact:.0f}" for kit, bound, ggml, exact in numbers]
    cells = found.pivot(index="cpu", columns="format", values="all").loc[found["cpu"].unique(), found["format"].unique()]
    head = f"kit, int8 (its busiest unit) / ggml / kit, exact; commit {taken[-1]['system']['commit'][:7]}"
    return f"{_heading(taken[-1]['title'])}\n{markdown((head, *cells), cells.itertuples(name=None))}\n"


def compiled() -> str:
    """A heading and a table of the newest record of benchmarks/ptxas.py: a row a format, a column a kernel, a number a GPU."""
    taken = sorted(runs("ptxas"), key=lambda run: run["started"])
    if not taken:
        return ""
    found = pd.DataFrame(taken[-1]["rows"])
    gpus = [column.removesuffix(" stack") for column in found if column.endswith(" stack")]
    found["all"] = [
        " / ".join(f"{row[f'{gpu} registers']}" + f" (+{row[f'{gpu} stack']} B)" * (row[f"{gpu} stack"] > 0) for gpu in gpus)
        for _, row in found.iterrows()
    ]
    cells = found.pivot(index="kernel", columns="does", values="all").fillna("").loc[found["kernel"].unique()]
    head = f"{' / '.join(gpus)}; commit {taken[-1]['system']['commit'][:7]}"
    return f"{_heading(taken[-1]['title'])}\n{markdown((head, *cells), cells.itertuples(name=None))}\n"


def growth() -> str:
    """A heading and a table of the newest record of benchmarks/scale.py on each CPU: a row a thing, a column a count."""
    text = []
    for cpu, run in sorted(_newest("scale").items()):
        names = [*(column for column in run["rows"][0] if column[0].isdigit()), "exponent", "goal"]
        lines = ((row["what"], *("" if row[name] is None else f"{row[name]:,.2f}" for name in names)) for row in run["rows"])
        text += [_heading(run["title"], cpu, run), markdown(("", *names[:-1], "at most"), lines)]
    return "\n".join(text) + "\n"


def slots() -> str:
    """A heading and a table of the newest record of each side of benchmarks/slots.py on each CPU."""
    if not (found := _newest_rows("slots")):
        return ""
    columns = {"limit, GiB": ".2f", "slots, GiB": ".2f", "a token, s": ".3f", READS: ".2f", "hits": ".1%", "prompt, s": ".1f"}
    lines = []
    for (cpu, what), (row, commit, _) in sorted(found.items(), key=lambda each: (each[0][0], _natural(each[0][1]))):
        if row.get("a token, s"):
            row = row | {READS: row["MB read a token"] / row["a token, s"] / 1e3}
        cells = ["" if row.get(name) is None else format(row[name], how) for name, how in columns.items()]
        if row.get("a token, s") is None:
            cells[2] = row["told"]
        lines.append((cpu, what, *cells, commit))
    return f"{_heading([*found.values()][-1][2])}\n{markdown(('CPU', '', *columns, 'commit'), lines)}\n"


def _heading(title: str, cpu: str = "", run: dict | None = None) -> str:
    """Of a benchmark, or of its ``run`` on a CPU."""
    of = f": {cpu}, commit {run['system']['commit'][:7]}" if run else ""
    return f"\n## {title.rstrip('.')}{of}\n"


def _kl(row) -> tuple[str, str]:
    """The cells of QUALITY."""
    kl = f"{row['kl']:.2g} ± {row['kl_error']:.1g}" if row["kl"] else "below 1e-10"  # as many digits had records once
    return kl, f"{row['same']:.1%}"


COLUMNS = {
    "exact": "fused", "int16": "fused-int16", "int8": "fused-int8", "llama.cpp's own build": "llama.cpp *",
    "ik_llama.cpp": "ik_llama.cpp",
}  # fmt: skip


def summary() -> str:
    """The table of decode and prompts: times the wheel's llama.cpp, from the slowest to the fastest model of a CPU."""
    rows, found = [], _ranges()
    for cpu in sorted({cpu for cpu, *_ in found}):
        for case, told in (("decode", "decode"), ("prefill of 512", "a prompt of 512")):
            ranges = (found.get((cpu, case, way)) for way in COLUMNS.values())
            cells = ("{:.2f} to {:.2f}".format(*ends) if ends else "" for ends in ranges)
            rows.append((cpu, told, *cells))
    return markdown(("", "", *COLUMNS), rows)


def _ranges() -> dict[tuple[str, str, str], tuple[float, float]]:
    """(CPU, case, pattern of a way) -> the least and the highest ratio of a model, each by its newest record there."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for line in newest():
        if line.benchmark == "decode":
            case, side = line.row["what"].split(", ")[:2]
            for way in (way for way in COLUMNS.values() if fnmatch(side, way)):
                found.setdefault((line.cpu, case, way), []).append(line.row["ratio"])
    return {key: (min(ratios), max(ratios)) for key, ratios in found.items()}


def of_cpu(run: dict, case: str, column: str) -> tuple[float, float]:
    """The cell of ``summary`` for the CPU of a run (system, machine_id); KeyError: no benchmark ran on such a CPU."""
    return _ranges()[_cpu({"rows": []} | run), case, COLUMNS[column]]


def extremes(case: str) -> tuple[float, float]:
    """The least and the highest ratio of the kit's two ways on any CPU."""
    ends = [ends for (_, of, way), ends in _ranges().items() if of == case and way in ("fused", "fused-int8")]
    return min(low for low, _ in ends), max(high for _, high in ends)


def peers() -> str:
    """The table of the newest run with transformers and llama.cpp that measured quality, with all that its CPU has."""
    run = max((run for cpu, run in _peers().items() if "held to" not in cpu), key=lambda run: run["started"])
    return hf.summary(run["rows"], _cpu(run))


def _peers() -> dict[str, dict]:
    """The newest run of benchmarks/hf.py with quality on each CPU."""
    return _newest("hf", lambda run: "model" in run["rows"][0])


def under_transformers() -> str:
    """A heading and the tables of benchmarks/hf.py, newest on each CPU, and the reasons of what misses its goal."""
    text, profiles = [], _newest("parts")
    for cpu, run in sorted(_peers().items()):
        text += [_heading(run["title"], cpu, run), hf.by_model(run["rows"])]
        profile = profiles.get(cpu, {})
        if told := hf.reasons(run["rows"], profile):
            of = f" (profile of commit {profile['system']['commit'][:7]})" if profile else ""
            text.append(f"\nWhat misses its goal, and where its time goes{of}:\n\n{told}")
    return "\n".join(text) + "\n"


def tables() -> str:
    """All records, as docs/speeds_records.md has them."""
    return table(newest()) + under_transformers() + qualities() + slots() + parts() + static() + compiled() + growth()


def _newest_rows(name) -> dict[tuple[str, str], tuple[dict, str, str]]:
    """(CPU, what) -> the newest row of a benchmark there, with its commit and title."""
    found = {}
    for run in sorted(runs(name), key=lambda run: run["started"]):
        for row in run["rows"]:
            found[_cpu(run), row["what"]] = row, run["system"]["commit"][:7], run["title"]
    return found


def _newest(name, wanted=bool) -> dict[str, dict]:
    """CPU -> the newest run of a benchmark there that is ``wanted``."""
    return {_cpu(run): run for run in sorted(filter(wanted, runs(name)), key=lambda run: run["started"])}


def runs(name: str):
    """The committed runs of a benchmark, each with the title that the benchmark has today."""
    for path in sorted((ROOT / "results" / "reference").glob(f"*/benchmarks/{name}.jsonl")):
        module = Path(__file__).parent / path.with_suffix(".py").name
        title = {"title": ast.get_docstring(ast.parse(module.read_text())).splitlines()[0]} if module.exists() else {}
        yield from (json.loads(line) | title for line in path.read_text(encoding="utf-8").splitlines())
