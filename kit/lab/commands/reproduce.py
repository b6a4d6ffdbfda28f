"""`kit reproduce`: runs all notebooks and writes one report that works offline."""

import shlex
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from kit.lab import interrupts

EXIT_FAILED = 1
OUT = click.Path(path_type=Path, file_okay=False)
SECONDS = click.FloatRange(min=0, min_open=True)


@click.command("reproduce")
@click.option("--profile", type=click.Choice(["smoke", "quick", "full"]), help="How much to run.  [default: quick]")
@click.option("--only", multiple=True, metavar="NAME", help="Notebooks whose names start with NAME; repeatable.")
@click.option(
    "--model", default="", metavar="PATH|NAME|hf://...", help="A GGUF file or a trained model, in place of a generated one."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="cuda also measures on the GPU.  [default: cpu]")
@click.option("--out", type=OUT, metavar="DIR", help="Folder of the run.  [default: results/<UTC time>-<profile>[-cuda]]")
@click.option("--resume", is_flag=True, help="Run what is missing, failed or changed in DIR (or in the newest run).")
@click.option("--again", is_flag=True, help="Run every notebook, even if nothing changed.")
@click.option("-p", "texts", multiple=True, metavar="NAME=VALUE", help="Set a notebook parameter; repeatable.")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Stop a notebook that runs longer.")
@click.option("--notebooks", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the notebooks.")
@click.option(
    "--list", "listing", is_flag=True, help="Check the options, list the notebooks and their parameters; run nothing."
)
@click.option("--serve", is_flag=True, help="Open the report in a browser now; a page appears when its notebook ends.")
@click.option("--progress/--no-progress", default=None, help="Show a bar.  [default: on a terminal; else a line per step]")
def command(profile, only, model, device, out, resume, again, texts, timeout, notebooks, listing, serve, progress):
    """Run the notebooks and write one offline report.

    Notebooks run one after another, each in its own process. The report is DIR/index.html. For each notebook,
    DIR also has the executed .ipynb, an .html page and its records (.jsonl). If a notebook fails, the report shows the
    reason and the others still run. Unchanged notebooks are copied from the last run. `--again` runs all of them. Pages
    are drawn when all have run, by the limits of the whole run. With `--serve` a page appears when its notebook ends.

    \b
    kit reproduce --profile smoke                a check in about two minutes
    kit reproduce --only 01 --model my.gguf      one notebook on your own file
    kit reproduce --serve                        open the report now; a page appears when its notebook ends
    kit reproduce --resume                       continue after Ctrl-C or a failure
    kit reproduce -p samples=9                   set a parameter of the notebooks
    kit reproduce --profile full --device cuda   also on a GPU, with granite-3.3-8b at full size

    Exit code: 0 success, 1 a notebook failed, 2 error before the start, 130 interrupted.
    """  # fmt: skip
    from kit.gguf.sources import absolute
    from kit.lab.claims import records
    from kit.lab.measuring.conditions import check_variables
    from kit.lab.measuring.doctor import check_device
    from kit.lab.report import ahead, index, parameters, planning, runner
    from kit.lab.report import run as runs
    from kit.system import paths

    check_variables()
    notebooks = notebooks or paths.notebooks_folder()
    model, tables = absolute(model), parameters.tables(texts)
    texts = tuple(map(parameters.from_here, texts))
    if listing:
        check_device(device or "cpu")
        jobs = planning.plan(runs.Request(profile or "quick", "", only, texts, device or "cpu"), notebooks, tables)
        planning.check_model(model, jobs)  # of one on a server its header alone
        for job in sorted(jobs, key=lambda job: job.name):
            known = parameters.read(runs.read_notebook(job.source).cells, job.name)
            click.echo("\n  ".join([job.name, *map(str, known.values())]))
        return
    if resume:
        folder = out or runs.latest(paths.results_folder())
        run = runs.resume(folder, profile=profile, model=model, only=only, texts=texts, device=device)
        request = run.request
    else:
        request = runs.Request(profile or "quick", model, only, texts, device or "cpu")
        kind = request.profile + ("" if request.device == "cpu" else f"-{request.device}")
        folder = out or paths.results_folder() / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{kind}"
    check_device(request.device)
    jobs = planning.plan(request, notebooks, tables)
    to_run = planning.pending(run, jobs) if resume and not again else jobs
    runner.check_memory(job.name for job in to_run)
    planning.check_model(request.model, jobs)
    ahead.check_folder(_work(request, to_run))
    if not resume:
        run = runs.start(folder, request)
        if not again:
            planning.reuse(run, jobs)
    for table in tables:
        shutil.copy(table, folder)
    for name, row in run.notebooks.items():
        if row.kept:
            click.echo(f"{name}  copied from {row.kept}: nothing changed (--again runs it)", err=True)
    for name in run.busy_before:
        click.echo(f"{name}  runs again: other processes used the cores while it was measured", err=True)
    try:
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="kit-") as kept:
            bar = sys.stderr.isatty() if progress is None else progress
            left = jobs if resume and again else planning.pending(run, jobs)
            run.plan(left)
            index.write(run, running=True)
            if serve:
                click.launch(str(folder / "index.html"))  # a plain file: nothing listens on a port
            kept, reading = Path(kept), [job for job in left if job.name.startswith(planning.READ_ALL)]
            perform = partial(_perform, run, timeout=timeout, progress=bar, lines=progress is None and not bar, early=serve)
            if measuring := [job for job in left if job not in reading]:
                perform(measuring, taken=kept / "taken")
            if outdated := run.again:
                names = ", ".join(sorted(outdated))
                click.echo(f"a later probe found faster memory: its limit, with the same measurements, for {names}", err=True)
                again = [job for job in jobs if job.name in outdated]
                count = runner.at_once(outdated, request.device)
                perform(again, taken=kept / "taken", draws=kept / "anew", at_once=count)
                reading = [job for job in jobs if job.name.startswith(planning.READ_ALL)]
            if reading:
                perform(reading, draws=kept / "of all")
            anew = (kept / "anew").read_text("utf-8").split("\n")[:-1] if (kept / "anew").exists() else []
        _draw(run)
    except KeyboardInterrupt:
        interrupts.over()  # what is told now may import
        _draw(run)
        onward = shlex.join(["kit", "reproduce", "--resume", "--out", str(folder)])
        click.echo(f"\nkit: interrupted; finished notebooks are kept, and this continues: {onward}", err=True)
        sys.exit(interrupts.EXIT)
    warnings = [(name or "all pages", text) for name, _, text in index.wrong(run, records.of_run(run.folder))]
    older = "its limits are out of date, because memory was measured to be faster later (--resume runs it again)"
    warnings += [(name, older) for name in sorted(run.outdated)]
    warnings += [("all pages", f"measured after the last probe, by whose limits it is judged: {name}") for name in {*anew}]
    click.echo("\n".join(f"warning: {name}: {text}" for name, text in warnings) + "\n" * bool(warnings), nl=False, err=True)
    click.echo(folder / "index.html")
    sys.exit(EXIT_FAILED if run.failed else 0)


def _draw(run):
    """Draw the pages that the run lacks, and its front."""
    from kit.lab.report import html, index

    for name in run.notebooks:
        if not (run.folder / f"{name}.html").exists():
            html.write(run, name)
    index.write(run)


def _perform(run, jobs, timeout, progress, lines, early, taken=None, draws=None, at_once=1):
    from textwrap import shorten

    from tqdm import tqdm

    from kit.lab.progress import say
    from kit.lab.report import ahead, html, index, planning
    from kit.units import format_seconds

    width = max((len(job.name) for job in jobs), default=0)
    costs = planning.expected(run.request.profile, jobs, run.folder.parent) if progress else []
    bar_format = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"
    with tqdm(total=sum(costs), desc="starting", bar_format=bar_format, file=sys.stderr, disable=not progress) as bar:
        where = f"1/{len(jobs)} {jobs[0].name}" if jobs else ""

        def on_cell(job, cell):
            nonlocal where
            number = jobs.index(job)
            before, where = where, f"{number + 1}/{len(jobs)} {job.name}"
            if job.headings[cell - 1 : cell]:
                where += f": {shorten(job.headings[cell - 1], 50)}"
            if lines and where != before:
                say(where)
            if progress:
                bar.n = max(bar.n, sum(costs[:number]) + costs[number] * (cell - 1) / job.cells)
            bar.set_description(where)

        def on_second(doing):
            bar.set_description(f"{where}, {doing}" if doing else where)

        def make(some):  # while nothing is measured; the first page is not kept waiting for what the others need
            bar.set_description("compiling, generating")
            if lines:
                say("compiling, generating")
            ahead.make(_work(run.request, some))

        def on_end(job, outcome):
            reason = f"  cell {outcome.cell}: {outcome.reason}" if outcome.reason else ""
            line = f"{job.name:{width}}  {outcome.status:6}  {format_seconds(outcome.seconds):>8}{reason}"
            bar.write(line, file=sys.stderr)
            if early:
                html.write(run, job.name)
            index.write(run, running=True)
            if job is jobs[0]:
                make(jobs[1:])

        make(jobs[:1])
        planning.perform(run, jobs, timeout, on_cell, on_end, on_second if progress else None, taken, draws, at_once)
        bar.update(bar.total - bar.n)


def _work(request, jobs):
    """What notebooks will make, of a request."""
    from kit.lab.report import ahead

    for job in jobs:
        yield from ahead.work_of(job.declares, request.profile, request.model, job.parameters.get("seed", 0))


@contextmanager
def terminate_as_interrupt():
    """A batch system's SIGTERM ends a run as cleanly as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
