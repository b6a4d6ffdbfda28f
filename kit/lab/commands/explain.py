"""kit explain: where the time of a token goes for any GGUF file, and what to change."""

import sys
import time
import webbrowser

import click

TRACE = click.Path(exists=True, dir_okay=False)


@click.command("explain")
@click.argument("file")
@click.option("--memory", metavar="SIZE", help="What the whole process may use: 4GiB, say.  [default: what is free]")
@click.option("--room", metavar="SIZE", help="Room of a cache of dequantized weights.  [default: what the rest leaves]")
@click.option("--tokens", default=16, show_default=True, type=click.IntRange(2, 1024), help="Tokens to decode and replay.")
@click.option("--trace", type=TRACE, metavar="FILE", help="Accesses from elsewhere: oracleGeneral, or CSV of tensor, nbytes.")
@click.option("--via", type=click.Choice(["kit", "transformers"]), help="Whose forward pass.  [default: kit's, if it has one]")
@click.option("--skew", default=0.0, show_default=True, type=click.FloatRange(0, 10), help="Of experts that are drawn: k^-S.")
@click.option("--thorough", is_flag=True, help="Run and measure all layers of a large file, not a sample.")
@click.option("--machine", metavar="NAME", help="Predict for a Mac that is not here: apple-m3-pro-36gb, say.")
@click.option("--all", "everything", is_flag=True, help="Print all tables.")
@click.option("--again", is_flag=True, help="Measure again what is known of this file on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--report", type=click.Path(file_okay=False), metavar="DIR", help="Write the same as an HTML report to DIR.")
def command(file, memory, room, tokens, trace, via, skew, thorough, machine, everything, again, as_json, report):
    """Explain what a model costs here and what to change.

    FILE is a GGUF file, a trained model of kit fetch, or hf://owner/repo/file.gguf. The answer comes first: the limit of
    this machine for this file in tokens per second, what is reached here and how, where llama.cpp is if it is installed
    (pip install xllamacpp), the one thing to change, and the command that does it. Then: does it fit, where the time of a
    token goes, what to change, what rounding does to the answers. Policies of a cache come where one can matter, and the
    exactness of backends where one differs; --all prints all tables.

    What was measured is kept (in the folder of the models) and shown again, with its spread, by kit generate and the
    pages of a run; --again measures it once more. A file whose architecture the kit cannot run is run through
    transformers, if the extra `hf` is installed, and else explained from its tensors alone. Of a large file a sample of
    the layers is measured. Ctrl-C ends it after what is printed by then.

    With --machine nothing is run: from the table of tensors, how far pages of the file compress, the maker's bandwidth
    and guesses that the output names as such, it says what blocks take there mapped, locked or read, and what float32
    takes; --memory is then what is left for weights. NAME is apple-m1 to apple-m4, with -pro, -max or -ultra, and the
    GiB of its memory.

    \b
    kit explain model.gguf
    kit explain model.gguf --memory 4GiB --report results/mine
    kit explain model.gguf --json | jq .answer
    kit explain model.gguf --machine apple-m4-16gb

    Exit code: 0 explained, 2 it could not be.
    """  # fmt: skip
    from pathlib import Path

    import kit
    from kit.cache.oracle import read_trace
    from kit.errors import CacheError
    from kit.gguf.summary import check_model

    given, kept = _size("--memory", memory), _size("--room", room)
    if machine:
        others = {"--trace": trace, "--via": via, "--thorough": thorough, "--report": report, "--room": room, "--again": again}
        if wrong := [name for name, value in others.items() if value]:
            raise CacheError(f"--machine runs and measures nothing: leave out {', '.join(wrong)}")
        return click.echo(_elsewhere(file, machine, given, as_json))
    accesses = read_trace(trace) if trace else None
    how = {"tokens": tokens, "via": via or "", "skew": skew, "thorough": thorough}
    with kit.open(file) as opened:
        check_model(opened)
        if not report:
            sizes = {"whole": given, "memory": kept, "again": again}
            return _explain(opened, as_json, everything, trace=accesses, **sizes, **how)
        _check(opened, given, via)

    from kit.gguf.sources import absolute
    from kit.lab.report.index import one_page
    from kit.lab.report.run import Request

    how |= {"memory": given and f"{given}B", "room": kept and f"{kept}B", "trace": trace and Path(trace).absolute()}
    texts = tuple(f"{name}={value}" for name, value in how.items() if value)
    page = one_page(Path(report), Request("quick", absolute(file), ("09",), texts))
    click.echo(f"wrote {page} and {page.with_name('index.html')}")
    if sys.stdout.isatty() and browser():
        webbrowser.open(page.absolute().as_uri())


def browser() -> bool:
    """Whether a page that is opened is seen: a browser, and not one of text in the terminal."""
    try:
        return type(webbrowser.get()) is not webbrowser.GenericBrowser
    except webbrowser.Error:
        return False


def _size(option: str, text: str | None) -> int | None:
    """Bytes of an option; CacheError for what is no size, or nothing."""
    from kit.errors import CacheError
    from kit.units import parse_bytes

    try:
        given = parse_bytes(text) if text is not None else None
    except ValueError as error:
        raise CacheError(f"{option}: {error}") from None
    if given == 0:
        raise CacheError(f"{option} {text} holds nothing; give at least 1 byte, such as {option} 64MiB, or leave it out")
    return given


def _check(file, whole, via) -> None:
    """What cannot be run is said before the machine is measured."""
    import kit
    from kit.lab.costs.order import DECODES
    from kit.lab.costs.study import Study

    if via:
        DECODES[via](kit.Weights(file), "fused")
    if whole:
        _ = Study(file, None, 1, whole=whole).budget


def _explain(file, as_json, everything, **how):
    from contextlib import ExitStack
    from functools import partial

    import kit
    from kit.lab.report import ahead
    from kit.units import to_json

    plain: dict = {}
    try:
        with ExitStack() as beside:  # what is not compiled yet, on all cores
            kernels = ahead.kernels(file.tensors.values(), prompts=())
            beside.enter_context(ahead.making(kernels, helping=True))
            with kit.no_collection():
                from kit.lab import limits
                from kit.lab.costs import sentences
                from kit.lab.costs.study import Study, room_for_weights
                from kit.lab.machine import probe

            _check(file, how["whole"], how["via"])
            how["memory"] = how["memory"] or room_for_weights(file, how["whole"])
            reads = partial(probe, leave_out=("copy_gbps", "f32_gflops"))  # no section rests on them
            minute = float("inf") if how["thorough"] else 50.0
            study = Study(file, partial(limits.known, reads, "kit explain"), progress=True, minute=minute, **how)

            def compiled():
                beside.close()
                study.minute += time.perf_counter() - study.began  # compiling takes nothing of it

            for key, value, text in sentences.sections(study, compiled, everything):
                if key:
                    plain[key] = value
                if text and not as_json:
                    click.echo(text + "\n")
    except KeyboardInterrupt:
        click.echo("stopped; what is known by now is printed above", err=True)
    if as_json:
        click.echo(to_json(plain))


def _elsewhere(file, name, room, as_json) -> str:
    """What a machine that is not here takes, as text or JSON."""
    import kit
    from kit.gguf.summary import check_model
    from kit.lab.costs import elsewhere
    from kit.lab.costs.tables import as_text, formatted, paragraph
    from kit.lab.costs.uses import uses_of
    from kit.units import to_json

    elsewhere.machine(name)  # an unknown one is said before the file is fetched
    with kit.open(file) as opened:
        check_model(opened)
        there, found, says = elsewhere.explain(name, uses_of(opened), elsewhere.compressibility(opened), room)
    if as_json:
        figures = [{"figure": figure, "value": value, "from": why} for figure, (value, why) in there.figures.items()]
        return to_json({"machine": name, "figures": figures, "ways": found.reset_index().to_dict("records"), "says": says})
    title = f"PREDICTED FOR {name}, WHICH IS NOT HERE (once to come in; seconds a token)"
    basis = "\n".join(map(paragraph, there.basis()))
    return f"{title}\n{as_text(formatted(found))}\n\n{paragraph(says)}\n\nFROM THESE FIGURES\n{basis}"
