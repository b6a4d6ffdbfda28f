"""Run benchmarks, each a module of this package with ``run() -> DataFrame``: python -m benchmarks [--save] [NAME...]."""

import importlib
import json
import pkgutil
import time

import click
import pandas as pd

import benchmarks
from kit import __version__
from kit.lab import machine
from kit.lab.paths import ROOT

_OTHERS = {"gpu_session"}  # a script of its own
WHY = {  # what is known of a line that is missed
    "Q8_0, float32, times the old": "28 cycles of arithmetic and 42 of reading 256 weights take 50 on a core"
}
NAMES = sorted({m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_")} - _OTHERS)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[NAME]...")
@click.option("--save", is_flag=True, help="Also append each table to results/reference/<machine>/benchmarks/NAME.jsonl.")
@click.option("--only", help="The cases whose name holds this: of decode, dequantize, explain, products, variants.")
@click.option("--table", is_flag=True, help="Run nothing: print README's table of the newest records.")
def main(names, save, only, table):
    """Run the benchmarks called NAME, by default all, and print their tables.

    The machine should be idle: peers are measured in turn with the kit, so ratios suffer less than absolute numbers.
    """
    if table:
        click.echo(_markdown(names[0]) if names == ("hf",) else _table(names or NAMES))
        return
    click.echo(f"{machine.machine_id()}: {machine.cpu_name()}, {machine.usable_cores()} cores; kit {__version__}")
    folder = ROOT / "results" / "reference" / machine.machine_id() / "benchmarks"
    for name in names or NAMES:
        module, started = importlib.import_module(f"benchmarks.{name}"), time.time()
        table = module.run(only=only) if only else module.run()
        title = module.__doc__.splitlines()[0]
        with pd.option_context("display.width", 250, "display.max_columns", None, "display.float_format", "{:.3g}".format):
            click.echo(f"\n{name}. {title}\n\n{table.to_string()}")
        if save:
            _append(folder / f"{name}.jsonl", {"benchmark": name, "title": title, "started": started}, table)


def _table(names) -> str:
    """README's table: what the reference records say about each goal, missed ones too, the newest record of a line."""
    newest = {}
    for path in sorted((ROOT / "results" / "reference").glob("*/benchmarks/*.jsonl")):
        for run in map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.stem in names else ()):
            for row in run["rows"]:
                if row.get("least") and row.get("ratio"):
                    key = row["what"]
                    newest[key] = max(
                        newest.get(key, (0,)), (run["started"], row, run["system"]["commit"][:7]), key=lambda r: r[0]
                    )
    lines = ["| | times its peer or bound | 95 % | at least, aim | | commit |", "|---|---|---|---|---|---|"]
    for what, (_, row, commit) in newest.items():
        interval = f"{row['low']:.2f} to {row['high']:.2f}" if row.get("low") else ""
        state = "missed" if row["ratio"] < row["least"] else ""
        undecided = "undecided" if row.get("low") and row["low"] < row["least"] <= row["high"] else ""
        told = "; ".join(filter(None, (state, undecided, state and (row.get("why") or WHY.get(what)))))
        goals = f"{row['least']:.2g}, {row['hoped']:.2g}"
        lines.append(f"| {what} | {row['ratio']:.2f} | {interval} | {goals} | {told} | {commit} |")
    return "\n".join(lines)


def _markdown(name) -> str:
    """The newest run of a benchmark that prints a table of its own."""
    paths = (ROOT / "results" / "reference").glob(f"*/benchmarks/{name}.jsonl")
    runs = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    newest = max(runs, key=lambda run: run["started"])
    table = importlib.import_module(f"benchmarks.{name}").markdown(newest["rows"])
    return f"{table}\n\nCommit {newest['system']['commit'][:7]}."


def _append(path, head: dict, table: pd.DataFrame) -> None:
    """One run as one line of JSON: what, when, where, and the rows."""
    rows = json.loads(table.reset_index().to_json(orient="records"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        run = head | {"machine_id": machine.machine_id(), "kit_version": __version__, "system": machine.describe()}
        file.write(json.dumps(run | {"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
