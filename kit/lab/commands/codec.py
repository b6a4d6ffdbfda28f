"""kit codec: look after compressed models."""

import click


@click.group("codec")
def command():
    """Check compressed models; `kit compress` writes them.

    \b
    kit codec verify model.tiles.gguf --source model.gguf
    """


@command.command("verify")
@click.argument("file")
@click.option("--source", metavar="FILE", help="The file that it was made from: compare every value with it.")
@click.option("--decoder", default="interleaved", show_default=True, help="Which decoder of kit.codec unpacks.")
@click.option("--threads", type=click.IntRange(1), help="How many threads unpack.  [default: all cores]")
def verify(file, source, decoder, threads):
    """Unpack all of a compressed model and check it.

    Compares FILE with its own checksums, and every value with the weights of --source when that is given.

    \b
    kit codec verify model.tiles.gguf
    kit codec verify model.tiles.gguf --source model.gguf

    Exit code: 0 all agree, 2 something does not, or FILE cannot be read.
    """

    from kit.codec.compressor import verify
    from kit.system import usable_cores

    tensors, matrices = verify(file, decoder, source, threads or usable_cores(), progress=True)
    compared = f"the checksums and {source}" if source else "the checksums"
    click.echo(f"{file}: {tensors} tensors, {matrices} matrices unpacked ({decoder}): all agree with {compared}")
