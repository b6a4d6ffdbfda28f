"""kit compress: a model's linear layers as entropy-coded tiles."""

import os
from pathlib import Path

import click

THREADS = click.IntRange(1, 1024)  # as KIT_THREADS


@click.command("compress")
@click.argument("file")
@click.option("-o", "--output", metavar="OUT", required=True, help="Where to write the compressed model.")
@click.option("--coding", default="int8", show_default=True, help="int8 (quantized, one scale per row) or bf16 (lossless).")
@click.option("--threads", type=THREADS, help="Number of threads.  [default: all cores]")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def command(file, output, coding, threads, force):
    """Compress a model's linear layers into tiles.

    FILE is a GGUF or safetensors file. OUT is a GGUF file with the metadata of FILE. Norms and embeddings are copied.
    The weights of linear layers become INT8 with one scale per row, and the INT8 values are stored without loss. With
    --coding bf16, BF16 weights are stored without loss.

    \b
    kit compress model.gguf -o model.tiles.gguf
    kit codec verify model.tiles.gguf --source model.gguf

    Exit code: 0 success, 2 error.
    """
    from kit.codec.container import CompressedFile
    from kit.codec.weights import CompressedWeights
    from kit.gguf.sources import model_bytes
    from kit.lab.compressor import compress
    from kit.system import usable_cores
    from kit.units import format_bytes

    compress(file, output, coding, threads or usable_cores(), progress=True, replace=force)
    with CompressedFile(output) as compressed:
        weights = CompressedWeights(compressed)
        tiles = sum(layer.tiles for layer in weights.layers.values())
        packed, plain = weights.compressed_bytes, weights.unpacked_bytes
        click.echo(
            f"{output}: {len(weights.layers)} matrices, {tiles} tiles, {format_bytes(packed)} "
            f"for {format_bytes(plain)} of {coding} ({packed / plain:.1%})"
        )
    before, after = model_bytes(Path(file)), os.path.getsize(output)
    if after > before:
        told = f"{format_bytes(after)}, {file} is {format_bytes(before)}"
        click.echo(f"The result is larger: {told}, because its weights have fewer bits than tiles.", err=True)
