"""kit codec: look after compressed models."""

import click


@click.group("codec")
def command():
    """Look after compressed models; `kit compress` writes them."""


@command.command("verify")
@click.argument("file")
@click.option("--source", metavar="FILE", help="The file that it was made from: compare every value with it.")
@click.option("--decoder", default="interleaved", show_default=True, help="A decoder of kit.codec.")
@click.option("--threads", type=click.IntRange(1), help="How many threads decode.  [default: all cores]")
def verify(file, source, decoder, threads):
    """Decode all of FILE and compare with its checksums, and with the weights of --source."""
    import sys

    from kit.codec.container import verify
    from kit.machine import usable_cores

    tensors, matrices = verify(file, decoder, source, threads or usable_cores(), progress=sys.stderr.isatty())
    compared = f"the checksums and {source}" if source else "the checksums"
    click.echo(f"{file}: {tensors} tensors, {matrices} matrices decoded ({decoder}): all agree with {compared}")
