"""Run benchmarks, each a module of this package with ``run() -> DataFrame``: python -m benchmarks [--save] [NAME...]."""

import importlib
import json
import pkgutil
import time
from pathlib import Path

import click
import pandas as pd

import benchmarks
from benchmarks import _files
from kit import __version__, system
from kit.errors import KitError
from kit.lab.measuring import machine
from kit.system.paths import ROOT

_OTHERS = {"gpu_session"}  # a script of its own
NAMES = sorted({m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_")} - _OTHERS)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[NAME]...")
@click.option("--save", is_flag=True, help="Also append each table to results/reference/<machine>/benchmarks/NAME.jsonl.")
@click.option("--only", help="The cases whose name holds this (not of all benchmarks).")
@click.option("--pages", type=click.Choice(_files.STATES), help="How the file lies in the page cache (of decode).")
@click.option("--within", type=float, metavar="SECONDS", help="End each side then (not of all benchmarks).")
@click.option("--run", "of", type=click.Path(path_type=Path), help="Copy this run to results/reference, then as --table.")
@click.option("--explain", metavar="MODEL", help="Keep what kit explain MODEL prints for README, then as --table.")
@click.option("--table", is_flag=True, help="Run nothing: write README and the pages of docs from the records.")
def main(names, save, only, pages, within, of, explain, table):
    """Run the benchmarks called NAME, by default all, and print their tables.

    The machine should be idle: peers are measured in turn with the kit, so ratios suffer less than absolute numbers.
    """
    if table or explain or of:
        return _write(of, explain)
    click.echo(f"{machine.machine_id()}: {system.cpu_name()}, {system.usable_cores()} cores; kit {__version__}")
    records = ROOT / "results" / "reference"
    how = {name: value for name, value in (("only", only), ("pages", pages), ("within", within)) if value}
    for name in names or NAMES:
        module, started = importlib.import_module(f"benchmarks.{name}"), time.time()
        title = module.__doc__.splitlines()[0]
        click.echo(f"\n{name}. {title}\n")
        parts = getattr(module, "parts", None)  # in one it is a module of that name
        for table in parts(**how) if callable(parts) else [module.run(**how)]:  # a part is kept at once
            with pd.option_context("display.width", 250, "display.max_columns", None, "display.float_format", "{:.3g}".format):
                click.echo(table.to_string())
            for file, states in (files := _files.taken()).items():
                click.echo(f"{file}: {_told(states)}")
            if save:
                folder = records / getattr(module, "PLACE", machine.machine_id()) / "benchmarks"
                _append(
                    folder / f"{name}.jsonl", {"benchmark": name, "title": title, "started": started, "files": files}, table
                )


def _told(states) -> str:
    """The state of a file before and after, in words."""
    words = [", ".join(f"{what} {value:.3g}" for what, value in state.items() if value is not None) for state in states]
    return f"{words[0] or 'small, or not known'}; at the end {words[1]}" if words[1] else "too small to tell"


def _write(of, explain) -> None:
    """Add a run and an output of kit explain to the committed records, and write the pages that rest on them."""
    try:
        if of:
            from benchmarks import _reference

            click.echo("\n".join(map(str, [_reference.add(of), *_reference.tidy()])))
        from benchmarks import _pages  # after the run was added: it reads the newest

        if explain:
            click.echo(_pages.record(explain))
        click.echo("\n".join(_pages.write()))
    except (ValueError, KitError) as error:
        raise click.ClickException(str(error)) from None


def _append(path, head: dict, table: pd.DataFrame) -> None:
    """One run as one line of JSON: what, when, where, and the rows."""
    rows = json.loads(table.reset_index().to_json(orient="records", double_precision=15))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        run = head | {"machine_id": machine.machine_id(), "kit_version": __version__, "system": machine.describe()}
        file.write(json.dumps(run | {"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
