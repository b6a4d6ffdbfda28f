"""`kit sweep`: runs notebooks over a grid of parameters, on this machine or on a Dask cluster."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from kit.lab import interrupts
from kit.lab.commands.reproduce import EXIT_FAILED, OUT, SECONDS, terminate_as_interrupt


@click.command("sweep")
@click.argument("spec", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="SPEC.yaml")
@click.option("--scheduler", default="", metavar="ADDRESS", help="Address of a Dask scheduler.  [default: a LocalCluster here]")
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of local workers. More than one disturbs timings.",
)
@click.option("--out", type=OUT, metavar="DIR", help="Folder of the cells.  [default: results/sweep-<name of SPEC>]")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Stop a cell that runs longer.")
@click.option("--notebooks", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the notebooks.")
@click.option("--list", "listing", is_flag=True, help="List the cells; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the table, or the list, as JSON.")
@click.option("--progress/--no-progress", default=None, help="Show a progress bar.  [default: on a terminal]")
def command(spec, scheduler, workers, out, timeout, notebooks, listing, as_json, progress):
    """Run a grid of notebooks, here or on a cluster.

    Runs every cell of the grid in SPEC.yaml (models x quantizations x policies x capacities x notebooks, and any of their
    parameters) and writes one report. The next start skips finished cells. If a worker is lost, its cells run again.
    Ctrl-C keeps finished cells. A worker runs one timed notebook at a time. If the workers are of several kinds of
    machine, each kind runs the whole grid.

    \b
    profile: quick                      # smoke, quick or full
    notebooks: [decode, "02"]           # decode: one model with one cache; others: from notebooks/
    models: [granite-3.3-8b, my.gguf]   # geometries to generate, paths, hf://owner/repo/file.gguf
    quantizations: [Q4_K_M, Q8_0]       # of the generated models
    policies: [NoCache, LRU, Pinned]
    capacities: [25%, 50%, 4GiB]
    parameters: {tokens: [8, 16]}

    \b
    kit sweep grid.yaml
    kit sweep grid.yaml --scheduler tcp://head:8786
    kit sweep grid.yaml --list

    Exit code: 0 success, 1 a cell failed, 2 error before the start, 130 interrupted.
    """  # fmt: skip
    from kit.errors import ReportError
    from kit.lab.measuring.conditions import check_variables
    from kit.system import paths

    try:
        from kit.lab.report.sweep import page, run
        from kit.lab.report.sweep import spec as specs
    except ModuleNotFoundError as error:
        if error.name not in ("dask", "distributed"):
            raise
        raise ReportError("kit sweep needs Dask: pip install --editable '.[sweep]'") from None

    if not scheduler:  # another machine's workers have variables of their own
        check_variables()
    grid = specs.read(spec, notebooks or paths.notebooks_folder())
    if listing:
        from kit.units import to_json

        rows = [{"notebook": cell.notebook, **cell.facts, "status": "not run"} for cell in grid]
        click.echo(to_json(rows) if as_json else "\n".join(cell.label for cell in grid))
        return
    out = out or paths.results_folder() / f"sweep-{spec.stem}"
    cells, interrupted = [], False
    try:
        with terminate_as_interrupt(), run.connect(scheduler, workers, say=lambda line: click.echo(line, err=True)) as client:
            kinds = run.kinds(client)  # only what ran on one kind of machine can be compared
            cells = [replace(cell, kind=kind) for cell in grid for kind in kinds]
            _perform(run, client, cells, out, timeout, sys.stderr.isatty() if progress is None else progress)
    except KeyboardInterrupt:
        interrupts.over()  # what is told now may import
        interrupted = True
    front = page.write(out, cells)
    if cells:
        _print(page.table(out, cells, not as_json), as_json)
    if front:
        click.echo(front, err=as_json)
    if interrupted:
        click.echo("\nkit: interrupted; finished cells are kept, and the same command continues", err=True)
        sys.exit(interrupts.EXIT)
    sys.exit(EXIT_FAILED if run.pending_cells(out, cells) else 0)


def _perform(run, client, cells, out, timeout, progress):
    from tqdm import tqdm

    from kit.units import format_seconds

    todo = run.pending_cells(out, cells)
    with tqdm(total=len(cells), initial=len(cells) - len(todo), unit="cell", file=sys.stderr, disable=not progress) as bar:

        def on_end(cell, answer):
            reason = f"  {answer.reason}" if answer.reason else ""
            bar.write(f"{cell.name}  {answer.status}  {format_seconds(answer.seconds)}  {answer.host}{reason}", file=sys.stderr)
            bar.update()

        run.perform_cells(client, todo, out, timeout, on_end)


def _print(table, as_json):
    """The table; on a terminal without the columns that do not vary."""
    if as_json:
        from kit.units import to_json

        click.echo(to_json(table.to_dict("records")))
        return
    varies = [name for name in table if name in ("status", "seconds") or table[name].nunique(dropna=False) > 1]
    click.echo(table[varies or ["status"]].to_string(index=False, na_rep="", float_format=lambda value: f"{value:.4g}"))
