"""kit verify: compares the verdicts of several runs, and gives the verdict of all of them together."""

import click

from kit.units import to_json


@click.command("verify")
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False), metavar="RUN...")
@click.option("--across", is_flag=True, help="Compare kinds of machine: one column per machine, its runs pooled.")
@click.option("--all", "everything", is_flag=True, help="Also list claims on which all runs agree.")
@click.option("--keep", is_flag=True, help="For maintainers: write the spread of these runs to data/drift.yaml, for verdicts.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
def command(runs, across, everything, keep, as_json):
    """Compare the verdicts of several runs, claim by claim.

    All runs must be of one machine, profile and device. If the models differ, only what no model changes is compared. Each
    claim has one letter per run, and the verdict of all runs together (with three or more runs, their medians are the
    samples). A claim is open if one run leaves it undecided and another decides it.

    \b
    kit verify results/first results/second
    kit verify results/*-quick --all
    kit verify results/laptop results/server --across

    Exit code: 0 success (no verdict flips), 1 a verdict flips, 2 error: the runs cannot be compared.
    """  # fmt: skip
    from dataclasses import asdict

    from kit.lab.claims import runs as several
    from kit.lab.claims.table import WORDS
    from kit.lab.measuring import drift
    from kit.system.paths import data_file

    if across:
        names, rows = several.machine_rows(runs)
        names = ["the strictest", *names]
    else:
        names, rows = ["pooled", "a run each"], several.compare(runs)
        if several.several_models(runs) and not as_json:
            click.echo("The runs have different models: only what was counted, computed or read in a source is compared.")
    if keep:
        several.keep(data_file("drift.yaml"), runs)
    if as_json:
        click.echo(to_json([asdict(row) | {"state": row.state, "flips": row.flips} for row in rows]))
    else:
        told = [row for row in rows if everything or row.state not in several.ALIKE or row.pooled != row.verdicts[0]]
        named = {row.claim for row in told}  # a part stands below its claim
        shown = [row for row in rows if row in told or (row.claim in named and not row.quantity)]
        for line in _table(names, shown, across):
            click.echo(line)
        if not across:
            click.echo("  ".join(f"{word.letter} {name}" for name, word in WORDS.items()))
            for kind, row in several.spreads(runs).items():
                click.echo(f"{kind}: nine of ten medians within {row['factor']}x of the middle of the runs, all within "
                           f"{row['most']}x ({row['quantities']} quantities)")  # fmt: skip
            click.echo(f"Verdicts allow for {drift.source(several.machine_of(runs[0]))}.")
        click.echo(_summary(rows, f"{len(names) - 1} machines" if across else f"{len(runs)} runs"))
    raise SystemExit(any(row.flips for row in rows) and not across)


def _table(names, rows, across):
    from kit.lab.claims.table import WORDS

    width = max([20, *map(len, names)])
    yield " " * 26 + "  ".join(name.ljust(width) for name in names)
    for row in rows:
        if row.quantity:
            yield f"    {row.quantity}"
        words = row.verdicts if across else ["".join(WORDS[word].letter for word in row.verdicts)]
        state = "" if row.state == "same" else row.state.upper() if row.flips else row.state
        line = f"{'' if row.quantity else row.claim:26}" + "  ".join(word.ljust(width) for word in [row.pooled, *words, state])
        yield line.rstrip()
        if row.reason and not across and row.state != "same":
            yield f"{'':26}{row.reason}"


def _summary(rows, what):
    from collections import Counter

    from kit.lab.claims.table import NO_RECORD

    claims, parts = [row for row in rows if not row.quantity], [row for row in rows if row.quantity]
    told, by = Counter(row.state for row in claims), Counter(sum(w != NO_RECORD for w in row.verdicts) for row in claims)
    open_ones = [row.claim for row in claims if row.state == "open"]
    flipping = sum(row.flips for row in parts)
    return (
        f"{len(claims)} claims, {what}: {told['same']} the same in all, "
        f"{told['judged in none']} judged in none, {told['flips']} flip, {told['open']} undecided "
        f"in one and decided in another{': ' + ', '.join(open_ones) if open_ones else ''}; {flipping} parts of claims flip; "
        f"pooled, {sum(row.pooled == 'undecided here' for row in claims)} are undecided; "
        f"claims with records {', '.join(f'of {many}: {count}' for many, count in sorted(by.items()))}"
    )
