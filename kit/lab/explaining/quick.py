"""What is known of a file before anything is compiled or run: what it is, whether it fits, the limit. Two seconds."""

from pathlib import Path

from kit.lab.measuring.busy import Busy, look
from kit.lab.predicting.beforehand import Reads, header_facts, reads
from kit.lab.predicting.remembered import contexts_of
from kit.lab.summary import summarize
from kit.system import memory_available, memory_limit
from kit.units import format_bytes, format_count, format_rate, printable

GUESS = "First guess"  # begins the sentence with the limit, which no page repeats next to the measured one


def explain(file, whole: int | None = None) -> tuple[dict, list[str]]:
    """(plain data, paragraphs) of an open file. ``whole``: bytes that the process may take; None: what is free. The data has
    the keys ``file``, ``contexts``, ``fits``, ``says``, those of Busy.facts and of predicting.beforehand.header_facts."""
    data, says = first(file, whole)
    if lengths := data["contexts"]:
        last = lengths[-1]
        says.append(f"A context of {last['positions']:,} takes {format_bytes(last['kv']['float32'])} of KV cache in float32.")
    says.append("Nothing was run. Leave out --quick to measure where the time goes.")
    return data | {"says": says}, says


def first(file, whole: int | None = None, then: str = "") -> tuple[dict, list[str]]:
    """The same in a few sentences, which kit explain begins with. ``then``: what replaces the guess of the limit."""
    busy, memory = now()
    data, blocks, room, types = of_header(file, whole, memory)
    facts = data["file"]
    says = [
        f"{printable(Path(facts['path']).name)}: architecture {printable(facts['architecture'])}, "
        f"{format_count(facts['parameters'])} parameters in {facts['tensors']} tensors and {facts['layers']} layers; "
        f"{format_bytes(blocks)} of blocks ({types})."
    ]
    fits = blocks <= room
    says.append(f"It {'fits' if fits else 'does not fit'}: {format_bytes(blocks)} of blocks, {format_bytes(room)} "
                f"{'are free' if whole is None else 'are given'}.")  # fmt: skip
    if limit := data["limit"]:
        of = "a short probe of memory" if limit["of"] == "now" else f"memory in the best minutes known, of {limit['of']}"
        says.append(
            f"{GUESS}: at most {format_rate(limit['tokens_per_second'])} tokens per second, from {of} "
            f"({format_bytes(data['bytes_per_token'])} per token at {limit['bandwidth'] / 1e9:.1f} GB/s).{then}"
        )
    data |= {**busy.facts, "fits": fits}
    return data, [*([busy.line] if busy else []), *says]


def now() -> tuple[Busy, Reads | None]:
    """Whether other processes use the cores, and what memory gives: None where they do, or where it cannot be measured. Torch,
    whose import takes longer than all else, is imported to measure it."""
    busy = Busy().seen(look(0.2))
    return busy, None if busy else reads()


def of_header(file, whole: int | None, memory: Reads | None) -> tuple[dict, int, int, str]:
    """(plain data, bytes of the blocks, bytes that the process may take, the types with most of them) of an open file, of which
    a header is enough. ``memory``: of ``now``."""
    facts = summarize(file, memory_limit(), memory_available())
    blocks = facts["working_sets"]["blocks"]["bytes"]
    types = ", ".join(f"{row['qtype']} {row['bytes'] / blocks:.0%}" for row in facts["types"][:3])
    shown = {key: value for key, value in facts.items() if key not in ("metadata", "tensor_table")}
    data = {"file": shown, "contexts": contexts_of(file), **header_facts(file, memory)}
    return data, blocks, memory_available() if whole is None else whole, types
