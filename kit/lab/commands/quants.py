"""kit quants: shows which quantization of a model to use on this machine."""

import click

from kit.units import to_json

DEFAULT = ("Q8_0", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K")  # of those that this machine can quantize to


@click.command("quants")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--to", metavar="TYPES", help="Formats to quantize a single FILE to, such as Q8_0,Q4_0.")
@click.option("--tokens", default=0, type=click.IntRange(0), help="Tokens of the text for the loss.  [default: 1,041]")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="How often each file decodes.")
@click.option("--figure", type=click.Path(dir_okay=False), metavar="PNG", help="Draw a figure of speed and loss to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(files, to, tokens, rounds, figure, as_json):
    """Show which quantization of a model to use.

    FILEs are quantizations of one model. Each is measured on this machine: tokens per second with exact products and with
    16-bit and 8-bit activations, compared with the limit of memory bandwidth; KL divergence from the file with the most bits,
    with its error; and resident memory. A * marks a row if no other row is both faster and closer.

    A single FILE is quantized again. llama.cpp's quantizer, if it is installed, makes Q8_0, Q5_K, Q4_K, Q4_0, Q3_K and Q2_K;
    else gguf-py makes Q8_0, Q5_1, Q5_0, Q4_1 and Q4_0. --to chooses other formats. The new files go to a temporary folder.
    FILE itself counts as exact, so name the file with the most bits that you have.

    \b
    kit quants model-Q8_0.gguf model-Q4_K_M.gguf model-Q3_K_M.gguf
    kit quants qwen2.5-coder-0.5b --to Q8_0,Q4_0 --figure quants.png

    Exit code: 0 success, 2 error.
    """
    import tempfile
    import warnings
    from contextlib import nullcontext
    from pathlib import Path

    import kit
    from kit.errors import KitWarning, QuantError
    from kit.gguf.foreign import check_model
    from kit.gguf.sources import model_name, models, resolve
    from kit.lab.engines.requantize import requantize, targets
    from kit.lab.explaining import quants
    from kit.lab.figures import FILES
    from kit.lab.measuring.conditions import check_variables
    from kit.lab.synthetic.write import FOLDER
    from kit.model.hyperparameters import read_config
    from kit.model.tokenizer import tokenizer_of
    from kit.system.files import check_writable, made
    from kit.system.paths import models_folder
    from kit.units import finite

    check_variables()
    if figure:
        check_writable("--figure", figure, QuantError, FILES)
    paths = models(named := [Path(resolve(name)) for name in files])
    if len(paths) < len(named):
        told = f"{len(named)} names are {len(paths)} model{'s' * (len(paths) > 1)}: links and parts of one file count once"
        if len(paths) == 1:
            raise QuantError(f"{told}; name another quantization, or this one alone to quantize it again")
        warnings.warn(told, KitWarning, stacklevel=2)
    if to and len(paths) > 1:
        raise click.UsageError("--to needs a single FILE, but you named several")
    known = targets()
    kinds = [kind.strip().upper() for kind in to.split(",")] if to else [kind for kind in DEFAULT if kind in known] or known
    if unknown := [kind for kind in kinds if kind not in known]:
        raise QuantError(f"--to {unknown[0]}: no quantizer for it is installed; choose from {', '.join(known)}")
    alone = len(paths) == 1
    room = made(models_folder(), QuantError, FOLDER) if alone else None
    with tempfile.TemporaryDirectory(dir=room) if alone else nullcontext() as folder:
        if alone:
            with kit.open(paths[0]) as source:
                check_model(source)
                read_config(source), tokenizer_of(source)  # what cannot run is said before it is quantized
                stem = Path(model_name(paths[0])).stem
                paths += [requantize(source, kind, Path(folder, f"{stem} as {kind}.gguf"), not as_json) for kind in kinds]
        table = quants.study(paths, paths[0] if alone else None, tokens, rounds, progress=not as_json)
        if figure:
            quants.figure(table)[0].savefig(figure)
    if as_json:
        told = {"advice": quants.advice(table), "rows": table.reset_index().to_dict("records")}
        click.echo(to_json(finite(told | quants.busy_of(table).facts)))
        return
    click.echo("\n".join(_lines(table, quants.advice(table))))


def _lines(table, advice):
    from kit.lab.predicting.losses import format_kl
    from kit.units import format_bytes, format_rate

    yield advice
    yield ""
    wide = max(len("file"), *map(len, table.index))
    yield f"  {'file':<{wide}}  {'bytes':>9}  {'bits':>5}  way    {'tok/s':>7}  {'limit':>7}  {'resident':>9}  KL, nats"
    for name, row in table.iterrows():
        mark, lost = "*" if row["best"] else " ", format_kl(row["kl"], row["kl_error"])
        yield (
            f"{mark} {name:<{wide}}  {format_bytes(row['bytes']):>9}  {row['bits']:>5.2f}  {row['way']:<5}  "
            f"{format_rate(row['speed']):>7}  {format_rate(row['bound']):>7}  {format_bytes(row['memory']):>9}  {lost}"
        )
    yield ""
    yield f"* no other row is both faster and closer. The limit: memory at {table['gbps'].iloc[0]:.1f} GB/s, the best measured."
