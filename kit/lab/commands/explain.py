"""kit explain: where the time of a token goes for any GGUF file, and what to change."""

import sys
import time
import webbrowser

import click

from kit.lab import interrupts

TRACE = click.Path(exists=True, dir_okay=False)


@click.command("explain")
@click.argument("file")
@click.option("--memory", metavar="SIZE", help="Memory for the whole process, such as 4GiB.  [default: free memory]")
@click.option("--room", metavar="SIZE", help="Memory for cached float32 weights.  [default: the rest of --memory]")
@click.option("--tokens", default=16, show_default=True, type=click.IntRange(2, 1024), help="Tokens to decode and replay.")
@click.option("--trace", type=TRACE, metavar="FILE", help="Replay your own trace: CSV of tensor,nbytes, or oracleGeneral.")
@click.option("--via", type=click.Choice(["kit", "transformers"]), help="Engine that runs the model.  [default: kit if it can]")
@click.option("--skew", default=0.0, show_default=True, type=click.FloatRange(0, 10), metavar="S",
              help="If routing is unknown, the k-th most popular expert is used k^-S as often.")  # fmt: skip
@click.option("--thorough", is_flag=True, help="Run and measure all layers of a large file, not a sample.")
@click.option("--machine", metavar="NAME", help="Predict for a Mac that you do not have: apple-m3-pro-36gb; list: all.")
@click.option("--draft", metavar="X", help="Say whether a draft pays: a smaller model's file, ngram or mtp.")
@click.option("--quick", is_flag=True, help="Say what the file is, whether it fits and its limit; run nothing.")
@click.option("--all", "everything", is_flag=True, help="Print all tables.")
@click.option("--again", is_flag=True, help="Measure again, even if stored measurements exist.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--engine", "engines", multiple=True, metavar="X", help="Measure your engine: a path or a name, with options.")
@click.option("--threads", metavar="N,N|all", help="Sweep the threads of each --engine.")
@click.option("--depth", type=click.IntRange(1), metavar="N", help="Decode with --engine after N positions as well.")
@click.option("--markdown", is_flag=True, help="Print a table to paste into an issue.")
@click.option("--figure", metavar="FILE", help="Draw decode and prompt under one roof (png, svg, pdf).")
@click.option("--served", metavar="NAME", help="The model to explain, of a server that has several.")
@click.option("--compare", type=TRACE, metavar="JSON", help="Compare a server with an earlier answer of --json.")
@click.option("--try", "trying", is_flag=True, help="Make the change to a server that --engine starts; else name its command.")
@click.option("--report", type=click.Path(file_okay=False), metavar="DIR", help="Write the same as an HTML report to DIR.")
def command(
    file, memory, room, tokens, trace, via, skew, thorough, machine, everything, quick, again, as_json, engines, threads, depth,
    markdown, figure, served, compare, trying, report, draft,
):  # fmt: skip
    """Explain what a model costs here and what to change.

    FILE is a GGUF file, a name that kit models prints, an https:// URL or hf://owner/repo/file.gguf. If the file is not on
    this machine, kit reads only its header, and says size, types, fit and limit before you download it.

    The answer comes first: the limit of this machine for this file in tokens per second, the speed that kit reaches and how,
    the speed of llama.cpp if it is installed (pip install xllamacpp), the one thing to change, and the command for it. Then:
    whether the file fits, where the time of a token goes, what to change, and what rounding does to the answers. Cache
    policies are shown only if they can matter, exactness only if a backend differs; --all prints all tables.

    Measurements are stored in the folder of the models. kit generate and the pages of a run show them again, with their
    spread; --again measures again. If kit has no forward pass for the architecture, the model runs through transformers, if
    the extra `hf` is installed; else kit explains it from its tensors alone. In a large file, only some of the layers are
    measured. Ctrl-C stops it and keeps the results printed so far.

    With the URL of a running server (llama-server, Ollama, or any OpenAI-compatible one), kit measures that server as its
    client, finds the process and the file behind the port, and watches both meanwhile. The answer is causes that add up to
    the time per token, each with its evidence and what to change in that server's own words. A key comes from the variable
    KIT_SERVER_KEY. With --engine './llama-server -t 8' kit starts the server itself, and --try then makes the change and times
    both alternately.

    With --machine nothing is run. kit predicts the time per token for blocks that are mapped, locked or read, and for
    float32, from the table of tensors, the compressibility of the file, the maker's bandwidth, and guesses that are marked
    as guesses. --memory is then the memory for weights. NAME is apple-m1 to apple-m4, with -pro, -max or -ultra, and the GiB
    of memory.

    With --engine kit measures the program that you run: a llama-bench binary of any build, kit, or llama.cpp from the wheel
    xllamacpp, each with its own options in one string. Give it twice to compare two builds or two settings: they alternate in
    one run, and kit prints their ratio with its interval, or refuses if the machine is busy. --threads tries counts of
    threads, and --depth a long context. kit compares a decode with the speed of memory, and a prompt with the speed of int8
    and float32 arithmetic. --markdown prints the result as a table with llama-bench's names.

    With --draft kit says whether a draft pays: it times drafts and passes over 1 to 9 tokens, and counts how many drafted
    tokens of three short texts (code, prose, a chat) are accepted. It predicts the gain from these and measures it.

    \b
    kit explain model.gguf
    kit explain model.gguf --engine './llama-bench -fa 1' --threads all
    kit explain model.gguf --engine old/llama-bench --engine new/llama-bench --markdown
    kit explain model.gguf --memory 4GiB --report results/mine
    kit explain model.gguf --quick
    kit explain model.gguf --json | jq .answer
    kit explain model.gguf --machine apple-m4-16gb
    kit explain model.gguf --draft smaller.gguf
    kit explain http://127.0.0.1:8080
    kit explain http://127.0.0.1:11434 --json > before.json

    Exit code: 0 success, 2 error.
    """  # fmt: skip
    from pathlib import Path

    import kit
    from kit.errors import CacheError
    from kit.gguf.foreign import check_model
    from kit.gguf.remote import is_remote
    from kit.lab.engines import started
    from kit.lab.engines.server import is_server
    from kit.lab.measuring.conditions import check_variables
    from kit.lab.predicting.oracle import read_trace

    check_variables()
    given, kept = _size("--memory", memory), _size("--room", room)
    if draft:
        return click.echo(_with_draft(file, draft, as_json))
    ours = {"--served": served, "--compare": compare, "--try": trying}
    measured = {"--trace": trace, "--via": via, "--thorough": thorough, "--report": report, "--room": room, "--again": again}
    source = click.get_current_context().get_parameter_source
    measured |= {f"--{name}": source(name) is click.core.ParameterSource.COMMANDLINE for name in ("tokens", "skew")}
    if quick:
        others = {**measured, **ours, "--engine": engines, "--threads": threads, "--depth": depth, "--markdown": markdown}
        others |= {"--figure": figure, "--all": everything, "--machine": machine, "a server": is_server(file)}
        _leave_out("--quick runs and measures nothing", others)
    if is_server(file):
        others = {"--memory": memory, "--room": room, "--trace": trace, "--via": via, "--machine": machine, "--report": report}
        others |= {"--engine": engines, "--threads": threads, "--depth": depth}
        _leave_out(f"{file} is a running server", others)
        from kit.lab.explaining import pasted, running_answer

        say = (lambda text: None) if markdown else click.echo
        answer = running_answer.explain(file, say, served or "", None, thorough, as_json, compare, trying, figure)
        if markdown:
            click.echo(pasted.markdown(answer))
        return None
    alone = engines[0] if len(engines) == 1 and not (threads or depth or markdown or figure) else ""
    if alone and (is_server(alone) or started.is_server(alone)):
        from kit.lab.explaining import running_answer

        return running_answer.of_engine(file, alone, click.echo, served or "", thorough, as_json, compare, trying)
    if wrong := [name for name, value in ours.items() if value]:
        raise CacheError(f"{', '.join(wrong)}: give the URL of a running server in place of {file}")
    if engines or threads or depth or markdown or figure:
        others = measured | {"--machine": machine, "--memory": memory, "--all": everything}
        return click.echo(_with_engines(file, engines, threads, depth, others, markdown, figure, as_json))
    if is_remote(file):
        return click.echo(_on_a_server(file, measured | {"--machine": machine}, given, as_json))
    if machine:
        _leave_out("--machine runs and measures nothing", measured)
        return click.echo(_elsewhere(file, machine, given, as_json))
    accesses = read_trace(trace) if trace else None
    how = {"tokens": tokens, "via": via or "", "skew": skew, "thorough": thorough}
    with kit.open(file) as opened:
        check_model(opened)
        if quick:
            from kit.lab.explaining import quick as before
            from kit.lab.explaining.lines import paragraph
            from kit.units import to_json

            data, says = before.explain(opened, given)
            return click.echo(to_json(data) if as_json else "\n".join(map(paragraph, says)))
        if not report:
            sizes = {"whole": given, "memory": kept, "again": again, "name": file}
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


def _leave_out(why: str, given: dict[str, object]) -> None:
    """CacheError where an option is given that does nothing here."""
    from kit.errors import CacheError

    if wrong := [name for name, value in given.items() if value]:
        raise CacheError(f"{why}: leave out {', '.join(wrong)}")


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
    from kit.lab.explaining.study import Study
    from kit.lab.predicting.order import DECODES

    if via:
        DECODES[via](kit.Weights(file), "fused")
    if whole:
        _ = Study(file, None, 1, whole=whole).room.budget


def _explain(file, as_json, everything, **how):
    from contextlib import ExitStack
    from functools import partial

    import kit
    from kit.lab.explaining.lines import paragraph
    from kit.lab.report import ahead
    from kit.units import to_json

    plain, begun, ended = {}, None, False
    if not (as_json or how["whole"]):  # file, fit and limit, before anything is compiled; a limit is checked first
        from kit.lab.explaining import quick

        begun, says = quick.first(file, how["whole"], " The table below replaces it: it measures with this file.")
        click.echo("\n".join(map(paragraph, says)) + "\n")
    try:
        with ExitStack() as beside:  # what is not compiled yet, on all cores
            kernels = ahead.kernels(file.tensors.values(), prompts=())
            beside.enter_context(ahead.making(kernels, helping=True))
            with kit.no_collection():
                from kit.lab.explaining import sentences
                from kit.lab.explaining.study import Study
                from kit.lab.measuring import limits
                from kit.lab.measuring.busy import watching
                from kit.lab.measuring.machine import probe
                from kit.lab.predicting.room import room_for_weights

            _check(file, how["whole"], how["via"])
            how["memory"] = how["memory"] or room_for_weights(file, how["whole"])
            reads = partial(probe, leave_out=("copy_gbps",))  # no section rests on it
            minute = float("inf") if how["thorough"] else 50.0
            study = Study(file, partial(limits.known, reads, "kit explain"), progress=True, minute=minute, **how)

            if begun and begun["limit"]:  # the first guess; no limit below it is the best known
                study.seen_gbps = begun["limit"]["bandwidth"] / 1e9

            def compiled():
                beside.close()
                study.minute += time.perf_counter() - study.began  # compiling takes nothing of it

            with watching(study.busy):
                for key, value, text in sentences.sections(study, compiled, everything, begun):
                    if key:
                        plain[key] = value
                    if text and not as_json:
                        click.echo(text + "\n")
            plain |= study.busy.facts
    except KeyboardInterrupt:
        interrupts.over()  # what is told now may import
        ended = True
    if as_json and plain:
        click.echo(to_json(plain))
    if ended:
        click.echo("kit: interrupted" + "; results so far are above" * bool(plain or begun), err=True)
        sys.exit(interrupts.EXIT)


def _with_engines(file, engines, threads, depth, others, markdown, figure, as_json) -> str:
    """What the user's engines do, as text, Markdown or JSON."""
    from kit.errors import EngineError
    from kit.gguf.remote import is_remote
    from kit.lab import figures
    from kit.lab.engines.options import counts_of
    from kit.lab.explaining import of_engines, pasted, roofline
    from kit.lab.explaining.lines import wrapped
    from kit.system.files import check_writable
    from kit.units import to_json

    if figure:
        check_writable("--figure", figure, EngineError, figures.FILES)
    _leave_out("--engine, --threads, --depth, --markdown and --figure measure programs", others)
    if is_remote(file):
        raise EngineError(f"{file}: an engine needs the file on this machine: download it first")
    if markdown and as_json:
        raise EngineError("give --markdown or --json, not both")
    data = of_engines.explain(file, engines or of_engines.usual(), counts_of(threads), depth or 0, _teller())
    if figure:
        roofline.save(data, figure)
    if as_json:
        return to_json(data)
    return pasted.markdown(data) if markdown else "\n\n".join(map(wrapped, of_engines.told(data)))


def _teller():
    """What is called with each step of progress: it prints them with the seconds since now."""
    began = time.perf_counter()
    return lambda text: click.echo(f"[{time.perf_counter() - began:5.1f} s] {text}", err=True)


def _with_draft(file, draft, as_json) -> str:
    """Whether a draft pays, as text or JSON."""
    from kit.errors import CacheError
    from kit.gguf.remote import is_remote
    from kit.lab.drafts import explain, words
    from kit.lab.engines.server import is_server
    from kit.units import to_json

    context = click.get_current_context()
    given = {name for name in context.params if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    others = sorted(given - {"file", "draft", "as_json"})
    _leave_out("--draft measures drafts", {f"--{name.replace('_', '-')}": True for name in others})
    if is_server(file) or is_remote(file):
        raise CacheError(f"{file}: --draft runs the file: download it first")
    data = explain.explain(file, draft, _teller())
    return to_json(data) if as_json else words.text(data)


def _on_a_server(file, others, whole, as_json) -> str:
    """What the header of a model says that is on a server, as text or JSON."""
    from kit.lab.explaining import before_download
    from kit.lab.explaining.lines import paragraph
    from kit.units import to_json

    before_download.refuse(others)
    data, says = before_download.explain(file, whole)
    return to_json(data) if as_json else "\n".join(map(paragraph, says))


def _elsewhere(file, name, room, as_json) -> str:
    """The prediction for a machine that you do not have, as text or JSON."""
    import kit
    from kit.gguf.foreign import check_model
    from kit.gguf.uses import uses_of
    from kit.lab.explaining import elsewhere
    from kit.lab.explaining.lines import paragraph
    from kit.lab.explaining.tables import as_text, formatted
    from kit.units import to_json

    if name == "list":
        return to_json({"machines": sorted(elsewhere.machines())}) if as_json else "\n".join(elsewhere.chips())
    elsewhere.machine(name)  # an unknown one is said before the file is fetched
    with kit.open(file) as opened:
        check_model(opened)
        there, ways, says = elsewhere.explain(name, uses_of(opened), elsewhere.compressibility(opened), room)
    if as_json:
        figures = [{"figure": figure, "value": value, "from": why} for figure, (value, why) in there.figures.items()]
        return to_json({"machine": name, "figures": figures, "ways": ways.reset_index().to_dict("records"), "says": says})
    title = f"PREDICTED FOR {name}, NOTHING MEASURED (seconds to load once; seconds per token)"
    basis = "\n".join(map(paragraph, there.basis()))
    return f"{title}\n{as_text(formatted(ways))}\n\n{paragraph(says)}\n\nFROM THESE FIGURES\n{basis}"
