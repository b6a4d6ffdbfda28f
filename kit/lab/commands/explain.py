"""kit explain: where the time of a token goes for any GGUF file, and what to change."""

import time

import click

TRACE = click.Path(exists=True, dir_okay=False)


@click.command("explain")
@click.argument("file")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Limit of dequantized weights: 4GiB, say.  [default: 70% of what is free beside the largest]",
)
@click.option("--tokens", default=16, show_default=True, type=click.IntRange(2, 1024), help="Tokens to decode and replay.")
@click.option("--trace", type=TRACE, metavar="FILE", help="Accesses from elsewhere: oracleGeneral, or CSV of tensor, nbytes.")
@click.option("--via", type=click.Choice(["kit", "transformers"]), help="Whose forward pass.  [default: kit's, if it has one]")
@click.option("--skew", default=0.0, show_default=True, type=click.FloatRange(0, 10), help="Of experts that are drawn: k^-S.")
@click.option("--thorough", is_flag=True, help="Run and measure all layers of a large file, not a sample.")
@click.option("--machine", metavar="NAME", help="Predict for a Mac that is not here: apple-m3-pro-36gb, say.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--report", type=click.Path(file_okay=False), metavar="DIR", help="Write the same as an HTML report to DIR.")
def command(file, memory, tokens, trace, via, skew, thorough, machine, as_json, report):
    """Explain what a model costs here and what to change.

    FILE is a GGUF file or hf://owner/repo/file.gguf. What it is; where the time of a token goes; the roofline; hits
    by policy for the memory given, from a replay of its own access order; the exactness of each backend on its own
    tensors; what to change, predicted, and the best two measured. A file whose architecture the kit cannot run is run
    through transformers, if `gguf-kit[hf]` is installed, and else explained from its tensors alone. Of a large file a
    sample of the layers is run and measured. Ctrl-C ends it after what is there.

    With --machine nothing is run: from the table of tensors, how far pages of the file compress, the maker's bandwidth
    and guesses that the output names as such, it says what blocks take there mapped, locked or read, and what float32
    takes; --memory is then what is left for weights. NAME is apple-m1 to apple-m4, with -pro, -max or -ultra, and the
    GiB of its memory.

    \b
    kit explain model.gguf
    kit explain model.gguf --memory 4GiB --report results/mine
    kit explain model.gguf --json | jq .advice
    kit explain model.gguf --machine apple-m4-16gb

    Exit code: 0 explained, 2 it could not be.
    """  # fmt: skip
    from pathlib import Path

    import kit
    from kit.cache.oracle import read_trace
    from kit.errors import CacheError
    from kit.gguf.summary import check_model
    from kit.units import parse_bytes

    try:
        given = parse_bytes(memory) if memory is not None else None
    except ValueError as error:
        raise CacheError(f"--memory: {error}") from None
    if given == 0:
        raise CacheError(f"--memory {memory} holds nothing; give at least 1 byte, such as --memory 64MiB, or leave it out")
    if machine:
        others = {"--trace": trace, "--via": via, "--thorough": thorough, "--report": report}
        if wrong := [name for name, value in others.items() if value]:
            raise CacheError(f"--machine runs and measures nothing: leave out {', '.join(wrong)}")
        return click.echo(_elsewhere(file, machine, given, as_json))
    accesses = read_trace(trace) if trace else None
    how = {"tokens": tokens, "via": via or "", "skew": skew, "thorough": thorough}
    with kit.open(file) as opened:
        check_model(opened)
        if not report:
            return _explain(opened, given, as_json, trace=accesses, **how)
        room = _room(opened, given, via)

    from kit.gguf.sources import absolute
    from kit.lab.report.index import one_page
    from kit.lab.report.run import Request

    how |= {"memory": f"{room}B", "trace": trace and Path(trace).absolute()}
    texts = tuple(f"{name}={value}" for name, value in how.items() if value)
    click.echo(one_page(Path(report), Request("quick", absolute(file), ("09",), texts)))


def _room(file, given, via) -> int:
    """Bytes for weights; what cannot be run is said before the machine is measured."""
    import kit
    from kit.lab.costs.order import DECODES
    from kit.lab.costs.study import room_for_weights

    if via:
        DECODES[via](kit.Weights(file), "fused")
    return given or room_for_weights(file)


def _explain(file, given, as_json, **how):
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
                from kit.lab.costs import sentences
                from kit.lab.costs.study import Study
                from kit.lab.machine import probe

            room, minute = _room(file, given, how["via"]), float("inf") if how["thorough"] else 50.0
            reads = partial(probe, leave_out=("copy_gbps", "f32_gflops"))  # no section rests on them
            study = Study(file, reads, room, progress=True, minute=minute, **how)

            def compiled():
                beside.close()
                study.minute += time.perf_counter() - study.began  # compiling takes nothing of it

            for key, value, text in sentences.sections(study, compiled):
                if key:
                    plain[key] = value
                if text and not as_json:
                    click.echo(text + "\n")
    except KeyboardInterrupt:
        click.echo("stopped: what is there stands above", err=True)
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
