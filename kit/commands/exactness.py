"""kit exactness: whether every dequantizer gives the numbers that gguf-py gives."""

import click


@click.command("exactness")
@click.argument("file", required=False)
@click.option(
    "--backend", "backends", multiple=True, default=["cpu"], show_default=True,
    help="Which dequantizer, or fused: products straight from blocks; repeatable.",
)  # fmt: skip
@click.option("--tier", "tiers", multiple=True, help="SIMD tier of the cpu backend, or 'all'; repeatable.")
@click.option(
    "--rows", default=4, show_default=True, type=click.IntRange(1), help="Rows to take of each tensor of FILE."
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(file, backends, tiers, rows, as_json):
    """Compare dequantizers with gguf-py, bit for bit.

    On random blocks of every format, or with a FILE on rows of its tensors. A cell says "equal", or by how many
    representable numbers (ulp) and what share of the largest weight the worst is off. The first run compiles each
    format.

    \b
    kit exactness
    kit exactness model.gguf
    kit exactness --tier all --json

    Products of fused are sums: they are shown, by the accuracy of their activations, and not expected to be equal.

    Exit code: 0 all equal, 1 something differs, 2 nothing could be compared.
    """
    import kit
    from kit.cpu import simd
    from kit.quants.exactness import exactness, sample

    blocks = None
    if file:
        with kit.open(file) as opened:
            blocks = sample(opened, rows)
    tiers = simd.available() if "all" in tiers else tiers or [None]
    table = exactness(blocks=blocks, backends=backends, tiers=tiers, progress=True)
    click.echo(table.to_json(orient="records", indent=1) if as_json else _matrix(table))
    raise SystemExit(not (table.equal | (table.backend == "fused")).all())


def _cell(row) -> str:
    if row.equal:
        return "equal"
    ulp = "" if row.backend == "fused" else f"{row.ulp} ulp, "  # of a sum near zero they say nothing
    return f"{ulp}{row.relative:.1e}"


def _matrix(table) -> str:
    """A row a format, a column for each backend, tier and dtype."""
    cells = table.assign(
        how=(table.backend + " " + table.tier).str.strip(),
        cell=list(map(_cell, table.itertuples())),
    )
    order = list(dict.fromkeys(zip(cells.how, cells.dtype, strict=True)))
    wide = cells.pivot(index=["qtype", "weights"], columns=["how", "dtype"], values="cell")[order]
    return wide.reset_index().rename(columns={"qtype": "format"}).to_string(index=False)
