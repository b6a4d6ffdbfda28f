"""kit exactness: compares every dequantizer with gguf-py, and shows what rounding does to a model's answers."""

import click

from kit.units import to_json


@click.command("exactness")
@click.argument("file", required=False)
@click.option(
    "--backend", "backends", multiple=True, default=["cpu"], show_default=True,
    help="Dequantizer: cpu, plain, reference or triton; or fused: products straight from blocks; repeatable.",
)  # fmt: skip
@click.option(
    "--tier", "tiers", multiple=True, help="SIMD tier of the cpu backend: avx512, avx2, neon, plain or all. Repeatable."
)
@click.option("--rows", default=4, show_default=True, type=click.IntRange(1), help="Rows to compare per tensor of FILE.")
@click.option(
    "--quality", "tokens", type=click.IntRange(0), metavar="TOKENS",
    help="Tokens of text for the second table; 0: no such table.  [default: 1,041; fewer above 2e9 weights]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
def command(file, backends, tiers, rows, tokens, as_json):
    """Compare dequantizers with gguf-py, bit for bit.

    Without FILE, compares random blocks of every format; with FILE, rows of its tensors. A cell is "equal", or the
    largest difference: in representable numbers (ulp), and as a share of the largest weight. The first run compiles
    each format.

    \b
    kit exactness
    kit exactness model.gguf
    kit exactness --tier all --json

    The backend fused adds in another order, so its differences are shown but are not failures.

    If kit can run FILE, a second table shows what 16-bit or INT8 weights, INT8 activations and a smaller KV cache do to
    its answers: perplexity of an English text, mean KL divergence of the next-token distribution from that of float32,
    and how often the most likely token is the same. Errors are one standard error.

    A format of FILE that gguf-py cannot dequantize is named and not compared.

    Exit code: 0 success (all equal), 1 something differs or was not compared, 2 error.
    """
    import kit
    from kit.cpu import simd
    from kit.errors import KitError
    from kit.lab.exactness import exactness, not_compared, sample
    from kit.lab.predicting.quality import quality, with_errors

    blocks, answers, missing, reason = None, None, [], "--quality 0" if file else "no file was given"
    if file:
        with kit.open(file) as opened:
            blocks, missing = sample(opened, rows), not_compared(opened)
            try:
                answers = None if tokens == 0 else quality(opened, tokens=tokens or 0, progress=True)
            except KitError as error:
                reason = str(error)
    tiers = simd.available() if "all" in tiers else tiers or [None]
    table = exactness(blocks=blocks, backends=backends, tiers=tiers, progress=True)
    if as_json:
        told = {"exactness": table.to_dict("records"), "not_compared": missing, "quality": [], "no_quality": reason}
        if answers is not None:
            told |= {"quality": answers.reset_index().to_dict("records"), "no_quality": ""}
        click.echo(to_json(told))
    else:
        click.echo(_matrix(table))
        if missing:
            click.echo(f"\nnot compared, because gguf-py cannot dequantize them: {'; '.join(missing)}")
        if file and tokens != 0:
            told = f"no quality: {reason}" if answers is None else with_errors(answers).reset_index().to_string(index=False)
            click.echo(f"\n{told}")
    raise SystemExit(bool(missing) or not (table.equal | (table.backend == "fused")).all())


def _cell(row) -> str:
    if row.equal:
        return "equal"
    ulp = "" if row.backend == "fused" else f"{row.ulp} ulp, "  # of a sum near zero they say nothing
    return f"{ulp}{row.relative:.1e}"


def _matrix(table) -> str:
    """One row per format, one column per backend, tier and dtype."""
    cells = table.assign(how=(table.backend + " " + table.tier).str.strip(), cell=list(map(_cell, table.itertuples())))
    order = list(dict.fromkeys(zip(cells.how, cells.dtype, strict=True)))
    wide = cells.pivot(index=["qtype", "weights"], columns=["how", "dtype"], values="cell")[order]
    return wide.reset_index().rename(columns={"qtype": "format"}).to_string(index=False)
