"""kit verify: whether runs on one machine agree on every verdict."""

import click

from kit.units import to_json


@click.command("verify")
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False), metavar="RUN...")
@click.option("--all", "everything", is_flag=True, help="List what all runs agree on, too.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
def command(runs, everything, as_json):
    """Compare the verdicts of several runs, claim by claim.

    The runs are of one machine, profile, model and device. Where they differ, the parts of the claim that differ stand below
    it. Undecided beside decided is shown, and is no flip.

    \b
    kit verify results/first results/second
    kit verify results/*-quick --all

    Exit code: 0 no verdict flips, 1 one does, 2 the runs cannot be compared.
    """
    from dataclasses import asdict

    from kit.claims.book import across

    rows = across(runs)
    flips = [row for row in rows if row.flips and not row.quantity]
    inside = [row for row in rows if row.flips and row.quantity]
    claims = [row for row in rows if not row.quantity]
    if as_json:
        click.echo(to_json([asdict(row) | {"flips": row.flips} for row in rows]))
    else:
        for line in _table([row for row in rows if everything or row.differs], len(runs)):
            click.echo(line)
        click.echo(
            f"{len(claims)} claims in {len(runs)} runs: {sum(not row.differs for row in claims)} the same in all, "
            f"{len(flips)} flip, {len(inside)} parts of claims flip"
        )
    raise SystemExit(bool(flips or inside))


def _table(rows, runs):
    widths = [max([20, *(len(row.verdicts[number]) for row in rows)]) for number in range(runs)]
    for row in rows:
        if row.quantity:
            yield f"    {row.quantity}"
        name = "" if row.quantity else row.claim
        words = "  ".join(word.ljust(width) for word, width in zip(row.verdicts, widths, strict=True))
        yield f"{name:26}{words}{'  FLIP' if row.flips else ''}".rstrip()
