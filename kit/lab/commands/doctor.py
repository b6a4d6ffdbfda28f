"""kit doctor: what this machine can do, what is missing, what to do."""

import click

from kit.units import to_json

_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}


@click.command("doctor")
@click.option("--measure", is_flag=True, help="Also measure memory bandwidth and FLOP/s (about two seconds).")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(measure, as_json):
    """Check what this machine can do and what is missing.

    Checks Python, libraries, cores, memory, GPU, Triton and disk, and gives a remedy for each problem.

    \b
    kit doctor
    kit doctor --measure

    Exit code: 0 success, 1 something that kit needs is missing.
    """
    from kit.cpu import simd
    from kit.cpu.strategies import strategies
    from kit.lab.measuring.doctor import checks

    rows = checks(simd.describe(), strategies(), measure)
    if as_json:
        click.echo(to_json([row._asdict() for row in rows]))
    else:
        for row in rows:
            mark, color = _MARKS[row.state]
            click.echo(f"{click.style(mark, fg=color)}  {row.subject:<17} {row.finding}")
            if row.remedy:
                click.echo(f"{'':<24}-> {row.remedy}")
    raise SystemExit(any(row.state == "bad" for row in rows))
