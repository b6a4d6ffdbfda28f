"""kit codec: check compressed models."""

import click

from kit.lab.commands.compress import THREADS


@click.group("codec")
def command():
    """Check compressed models, which `kit compress` writes.

    \b
    kit codec verify model.tiles.gguf --source model.gguf
    """


@command.command("verify")
@click.argument("file")
@click.option("--source", metavar="FILE", help="The file that FILE was compressed from: compare every value.")
@click.option(
    "--decoder",
    default="interleaved",
    show_default=True,
    help="Decoder: python, scalar-linear, scalar-binary, scalar-table, interleaved, simd or triton.",
)
@click.option("--threads", type=THREADS, help="Number of threads.  [default: all cores]")
def verify(file, source, decoder, threads):
    """Unpack all of a compressed model and check it.

    Compares FILE with its own checksums. With --source, also compares every value with the weights of that file.

    \b
    kit codec verify model.tiles.gguf
    kit codec verify model.tiles.gguf --source model.gguf

    Exit code: 0 success, 2 error: something differs, or FILE cannot be read.
    """

    from kit.lab.compressor import verify
    from kit.system import usable_cores

    tensors, matrices = verify(file, decoder, source, threads or usable_cores(), progress=True)
    compared = f"the checksums and {source}" if source else "the checksums"
    click.echo(f"{file}: {tensors} tensors, {matrices} matrices unpacked ({decoder}): all match {compared}")
