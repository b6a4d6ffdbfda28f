"""What kit explain says of a model on a server, from its header alone: size, types, fit and the limit of this machine."""

from kit.errors import CacheError
from kit.gguf.foreign import check_model
from kit.gguf.remote import download, open_header
from kit.lab.explaining.quick import now, of_header
from kit.units import format_bytes, format_count, format_rate, printable


def explain(name: str, whole: int | None = None) -> tuple[dict, list[str]]:
    """(plain data, paragraphs) of a URL. ``whole``: bytes that the process may take; None: what is free. The data has the keys
    ``file`` and ``contexts`` as of any explained file, ``source``, ``says``, and those of
    Busy.facts and of kit.lab.predicting.beforehand.header_facts."""
    busy, memory = now()
    with open_header(name) as file:
        check_model(file)
        data, blocks, room, types = of_header(file, whole, memory)
    facts = data["file"]
    says = [
        f"{printable(file.source)}: architecture {printable(facts['architecture'])}, {format_count(facts['parameters'])} "
        f"parameters in {facts['tensors']} tensors and {facts['layers']} layers; {format_bytes(sum(file.sizes))} to download, "
        f"{format_bytes(blocks)} of blocks ({types}), {data['bits_per_weight']:.3g} bits per weight."
    ]
    if label := data["label"]:
        says.append(f"It is {label['says']}.")
    if limit := data["limit"]:
        head = data["head"]
        part = f", {head['share']:.0%} of it for the output head" if head else ""
        when = "now" if limit["of"] == "now" else f"at best, of {limit['of']}"
        says.append(
            f"At most {format_rate(limit['tokens_per_second'])} tokens per second here: a token reads "
            f"{format_bytes(data['bytes_per_token'])}{part}, and memory reads at {limit['bandwidth'] / 1e9:.1f} GB/s {when}."
        )
    fits = "It fits" if blocks <= room else "It does not fit"
    says.append(f"{fits}: {format_bytes(blocks)} of blocks, and {format_bytes(room)} are free." if whole is None else
                f"{fits}: {format_bytes(blocks)} of blocks, in {format_bytes(room)}.")  # fmt: skip
    if lengths := data["contexts"]:
        last = lengths[-1]
        says.append(f"A context of {last['positions']:,} takes {format_bytes(last['kv']['float16'])} of KV cache in float16.")
    says.append(f"Nothing was downloaded but the header, and nothing was run: {download(file.source)}.")
    says = [*([busy.line] if busy else []), *says]
    return {"source": file.source, **busy.facts, **data, "says": says}, says


def refuse(given: dict[str, object]) -> None:
    """CacheError for options that need the file: option -> its value."""
    if wrong := [name for name, value in given.items() if value]:
        raise CacheError(f"of a model on a server only the header is read: leave out {', '.join(wrong)}, or download it first")
