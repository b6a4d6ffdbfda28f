"""kit inspect: shows what a GGUF file contains, and what fits in this machine's memory."""

import textwrap

import click

from kit.units import format_bytes, format_count, format_rate, printable, to_json

_WIDTH = 100


@click.command("inspect")
@click.argument("file")
@click.option("--tensors", is_flag=True, help="List every tensor: type, shape, bytes, offset.")
@click.option("--metadata", is_flag=True, help="List all metadata, not only the first rows.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(file, tensors, metadata, as_json):
    """Show what a model file holds and what fits in memory.

    FILE is a GGUF file, a name that kit models prints, hf://owner/repo/file.gguf or an https:// URL. Only the header is read,
    so large files take no longer, and nothing else of a URL is downloaded. For a split file, name any part. What a context
    takes is for the architectures that kit runs.

    One line compares the file's name with its content. For a URL kit also says the limit of this machine: the bytes that a
    token reads, at the speed at which memory reads now. kit explain says it for a file.

    \b
    kit inspect model.gguf
    kit inspect hf://owner/repo/model.gguf
    kit inspect model.gguf --tensors
    kit inspect model.gguf --json | jq .types

    Exit code: 0 success, 2 error.
    """
    import kit
    from kit.gguf.foreign import NO_WEIGHTS
    from kit.gguf.remote import opened as found
    from kit.lab.predicting.beforehand import header_facts
    from kit.lab.summary import summarize
    from kit.system import memory_available, memory_limit

    with found(file) as opened:
        if opened.compressed:
            opened = kit.codec.CompressedFile(opened.path)
        facts = summarize(opened, memory_limit(), memory_available()) | {"contexts": _contexts(opened)}
        facts["source"] = getattr(opened, "source", None)
        busy, memory = _memory_speed(facts)
        facts |= header_facts(opened, memory)
    if as_json:
        click.echo(to_json(facts))
        return
    holds = [[NO_WEIGHTS]]
    if facts["parameters"]:
        holds = [_types(facts), _per_token(facts), _memory(facts), *[_history(facts)] * bool(facts["contexts"])]
    sections = [*[[busy]] * bool(busy), _overview(facts), *holds, _metadata(facts, None if metadata else 12)]
    if tensors:
        sections.append(_tensors(facts))
    click.echo("\n\n".join("\n".join(map(_cell, section)) for section in sections))


def _overview(facts):
    yield printable(facts["source"] or facts["path"])
    if facts["source"]:
        from kit.gguf.remote import download

        yield f"only the header was read; {download(facts['source'])}"
    yield f"GGUF v{facts['version']}, {facts['byteorder']}-endian, alignment {facts['alignment']}"
    if len(facts["parts"]) > 1:
        yield f"{len(facts['parts'])} parts: " + ", ".join(format_bytes(part["bytes"]) for part in facts["parts"])
    yield ""
    yield f"{'architecture':<34}{printable(facts['architecture'])}"
    if facts["parameters"]:
        yield f"{'parameters':<34}{format_count(facts['parameters'])} ({facts['parameters']:,})"
        yield f"{'tensors':<34}{facts['tensors']} in {facts['layers']} layers"
    if facts["parameters"] and facts["no_language_model"]:
        yield from facts["no_language_model"].split("; ")
    for key, value in facts["hyperparameters"].items():
        yield f"{_cell(key, 33):<34}{_shown(value)}"


def _memory_speed(facts):
    """(a line where the machine is busy, how fast memory reads) for a language model on a server; ("", None) for a file, of
    which kit explain says it: importing torch takes longer than the rest of kit inspect."""
    from kit.lab.explaining import quick

    asked = facts["source"] and facts["parameters"] and not facts["no_language_model"]
    busy, memory = quick.now() if asked else (None, None)
    return busy.line if busy else "", memory


def _per_token(facts):
    if label := facts["label"]:
        yield from textwrap.wrap(printable(label["says"]), _WIDTH)
    if facts["bits_per_weight"]:
        yield f"{'bits per weight':<34}{facts['bits_per_weight']:.4g}"
    if facts["bytes_per_token"] and not facts["no_language_model"]:
        yield f"{'a token reads':<34}{format_bytes(facts['bytes_per_token'])}"
        if head := facts["head"]:
            yield f"{'  of that the output head':<34}{format_bytes(head['bytes'])}, {head['share']:.0%} ({head['name']})"
    if limit := facts["limit"]:
        when = "now" if limit["of"] == "now" else f"at best, of {limit['of']}"
        memory = f"memory: {limit['bandwidth'] / 1e9:.1f} GB/s {when}"
        yield f"{'at most, tokens per second here':<34}{format_rate(limit['tokens_per_second'])} ({memory})"


def _types(facts):
    yield f"{'type':<12}{'tensors':>9}{'parameters':>14}{'size':>14}{'bits/weight':>14}"
    for row in facts["types"]:
        bits = "?" if row["bits_per_weight"] is None else f"{row['bits_per_weight']:.4g}"
        yield (
            f"{row['qtype']:<12}{row['tensors']:>9}{format_count(row['parameters']):>14}"
            f"{format_bytes(row['bytes']):>14}{bits:>14}"
        )


def _memory(facts):
    total, available = (format_bytes(facts["memory"][key]) for key in ("total", "available"))
    yield f"held in memory as            needs    (this machine: {total}, of which {available} are free)"
    for name, row in facts["working_sets"].items():
        verdict = "fits" if row["fits_in_free_memory"] else "fits once memory is freed"
        if not row["fits_in_memory"]:
            share = facts["memory"]["total"] / row["bytes"]
            verdict = f"does not fit: {share:.0%} of it fits in memory"
        yield f"{name:<20}{format_bytes(row['bytes']):>14}    {verdict}"


def _contexts(opened):
    try:
        from kit.lab.predicting.remembered import contexts_of
    except MemoryError:  # addresses are too few to import torch
        return []
    return contexts_of(opened)


def _history(facts):
    types = "float32", "float16", "q8_0"  # of --kv; the first is kit generate's own
    yield f"{'context, positions':<20}" + "".join(f"{f'KV {name}':>14}" for name in types) + f"{'states':>14}"
    for row in facts["contexts"]:
        sizes = ["impossible" if row["kv"][kind] is None else format_bytes(row["kv"][kind]) for kind in types]
        yield f"{row['positions']:<20,}" + "".join(f"{size:>14}" for size in sizes) + f"{format_bytes(row['states']):>14}"


def _metadata(facts, limit):
    rows = list(facts["metadata"].items())
    yield f"metadata ({len(rows)} keys)"
    for key, value in rows[:limit]:
        yield f"  {_cell(key, 41):<42}{_shown(value)}"
    if limit is not None and len(rows) > limit:
        yield f"  ... {len(rows) - limit} more: --metadata"


def _tensors(facts):
    yield f"{'tensor':<42}{'type':<12}{'shape':>20}{'bytes':>13}{'offset':>13}"
    for row in facts["tensor_table"]:
        shape = " x ".join(map(str, row["original_shape"] or row["shape"])) or "scalar"
        shape += f" (stored as {' x '.join(map(str, row['shape']))})" if row["original_shape"] else ""
        yield f"{_cell(row['name'], 41):<42}{row['qtype']:<12}{shape:>20}{row['nbytes']:>13}{row['offset']:>13}"


def _shown(value):
    return f"{value:.7g}" if isinstance(value, float) else printable(str(value))  # 7 digits: all that float32 holds


def _cell(text, width=_WIDTH):
    text = printable(text)
    return text if len(text) <= width else text[: width - 3] + "..."
