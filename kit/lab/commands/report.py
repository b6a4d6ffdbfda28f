"""`kit report`: join, compare, send and re-render the results of runs."""

from pathlib import Path

import click

from kit.units import to_json

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
SHARE = click.FloatRange(0.5, 1, max_open=True)


@click.group("report")
def command():
    """Join, compare, send and re-render the results of runs.

    \b
    kit report merge results/laptop results/h200 --out results/both
    kit report diff results/before results/after
    kit report pack results/20261121T020000Z-quick
    """


@command.command("merge")
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="DIR...")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="A new folder.")
def merge_command(folders, out):
    """Join runs into one report, one column per machine.

    \b
    kit report merge results/laptop results/h200 --out results/both

    A DIR may be a run or a folder of runs. Exit code: 0 success, 2 error.
    """
    from kit.lab.report import merge

    click.echo(merge.merge(list(folders), out))


@command.command("diff")
@click.argument("a", type=FOLDER)
@click.argument("b", type=FOLDER)
@click.option(
    "--confidence",
    type=SHARE,
    default=0.99,
    show_default=True,
    help="Confidence of the interval that separates change from noise.",
)
@click.option("--all", "everything", is_flag=True, help="Also list what did not change.")
@click.option("--json", "as_json", is_flag=True, help="Print all records as JSON.")
def diff_command(a, b, confidence, everything, as_json):
    """Show what changed from run A to run B beyond noise.

    A change counts if the confidence interval of the difference of medians, computed from the raw samples, excludes 0.

    \b
    kit report diff results/before results/after
    kit report diff results/before results/after --json | jq '.rows[] | select(.state == "changed")'

    Exit code: 0 success (nothing changed), 1 a quantity or verdict changed, 2 error.
    """  # fmt: skip
    from kit.lab.claims import records
    from kit.lab.claims import runs as several
    from kit.lab.report.run import load

    rows = [records.of_run(load(folder).folder) for folder in (a, b)]
    changes = several.changes(*rows, confidence=confidence)
    if as_json:
        click.echo(to_json(changes.drop(columns="matters").to_dict("records")))
    else:
        for change in changes.itertuples():
            if everything or change.matters or change.state == "too few samples":
                click.echo(_line(change))
        counts = {state: sum(changes["state"] == state) for state in several.STATES}
        click.echo(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no records")
    raise SystemExit(any(changes["matters"]))


def _line(change) -> str:
    from kit.units import format_quantity as quantity

    ratio = f"x {change.ratio:.3g}" if change.ratio else ""
    if change.low is not None:
        ratio += f"  difference {quantity(change.low, change.unit)} to {quantity(change.high, change.unit)}"
    names = f"{change.notebook}  {change.claim or ''}  {change.quantity}".replace("    ", "  ")
    values = f"{quantity(change.a, change.unit)} -> {quantity(change.b, change.unit)}"
    verdict = f"  {change.verdict_a or 'none'} -> {change.verdict_b or 'none'}" * (change.verdict_a != change.verdict_b)
    return f"{change.state:15}  {names}\n{'':15}  {values}  {ratio}{verdict}".rstrip()


@command.command("pack")
@click.argument("folder", type=FOLDER, metavar="RUN")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.  [default: RUN.zip]")
def pack_command(folder, out):
    """Pack a run into one zip file.

    \b
    kit report pack results/20261121T020000Z-quick --out report.zip

    Exit code: 0 success, 2 error.
    """
    from kit.lab.report import merge

    folder = folder.resolve()
    click.echo(merge.pack(folder, out or folder.with_name(f"{folder.name}.zip")))


@command.command("html")
@click.argument("folder", type=FOLDER, metavar="RUN")
def html_command(folder):
    """Render the pages of a run again.

    Uses the run's notebooks and records; measures nothing.

    \b
    kit report html results/20261121T020000Z-quick

    Exit code: 0 success, 2 error.
    """
    from kit.lab.report import merge

    click.echo(merge.render(folder))
