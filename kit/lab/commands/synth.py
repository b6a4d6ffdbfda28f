"""kit synth: writes a GGUF file with the shapes of a known model and random weights."""

import click


class _Synth(click.Command):
    """Lists the geometries and mixes in its help; the table is imported only when somebody asks."""

    def format_epilog(self, ctx, formatter):
        from kit.lab.synthetic.geometry import GEOMETRIES, MIXES
        from kit.units import format_bytes, format_count

        rows = []
        for name, geometry in GEOMETRIES.items():
            specs = geometry.tensors("Q4_K_M")
            weights = format_count(sum(spec.elements for spec in specs))
            size = format_bytes(sum(spec.nbytes for spec in specs))
            rows.append((name, f"{geometry.architecture}, {geometry.layers} layers, {weights} weights, {size} in Q4_K_M"))
        with formatter.section("Geometries"):
            formatter.write_dl(rows)
        with formatter.section("Mixes"):
            formatter.write_text(", ".join(MIXES))


@click.command("synth", cls=_Synth)
@click.argument("name")
@click.option("--mix", default="Q4_K_M", show_default=True, help="Mix of block formats; see below.")
@click.option("--layers", type=int, help="Number of layers.  [default: all layers of the model]")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same bytes.")
@click.option("-o", "--output", metavar="FILE", help="File to write.  [default: NAME-MIX.gguf]")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(name, mix, layers, seed, output, force):
    """Write a model with real shapes and random weights.

    The GGUF file has the tensor shapes of the model NAME (see below). The weights are about N(0, 0.02), in the block
    formats that llama.cpp's quantizer would choose; llama.cpp loads the file. Its text is noise, but it takes the same
    time and memory as the real model.

    \b
    kit synth tiny-llama
    kit synth granite-3.3-8b --layers 4 -o granite-4.gguf

    Exit code: 0 success, 2 error.
    """
    from pathlib import Path

    from kit.errors import GGUFError
    from kit.lab.synthetic.write import synthesize
    from kit.units import format_bytes

    path = Path(output or f"{name.replace('/', '_')}-{mix.replace('/', '_')}.gguf")
    if path.exists() and not force:
        raise GGUFError(f"{path}: exists already; --force replaces it")
    synthesize(path, name, mix=mix, layers=layers, seed=seed, progress=True)
    click.echo(f"{path}: {format_bytes(path.stat().st_size)}")
