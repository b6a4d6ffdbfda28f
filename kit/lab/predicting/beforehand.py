"""What the header of a file says before anybody runs or downloads it: bytes per token, and the most tokens per second here."""

from typing import NamedTuple

from kit.gguf.uses import bytes_used, uses_of
from kit.lab.labels import label_of
from kit.lab.measuring import slices
from kit.system import memory_available


class Reads(NamedTuple):
    """GB/s at which memory reads now; ``of``: "now", or the date of a measurement."""

    gbps: float
    of: str = "now"


def reads() -> Reads | None:
    """What memory gives, in at most a second; None where so little is free that it cannot be measured."""
    return None if memory_available() < slices.FREE else Reads(slices.now_gbps())


def header_facts(file, memory: Reads | None) -> dict:
    """Keys of kit inspect --json: ``bits_per_weight``, ``bytes_per_token``, ``head`` (the output head: name, bytes, share of
    what a token reads), ``label`` and ``limit``; None for what the file does not tell."""
    infos = [info for info in file.tensors.values() if info.elements]
    weights, uses = sum(info.elements for info in infos), uses_of(file)
    nbytes = bytes_used(uses)
    names = ("output.weight", "token_embd.weight")  # a tied head is the embedding
    head = next((use for name in names for use in uses if use.name == name and not use.is_rows), None)
    label, share, limit = label_of(file), head and head.nbytes / nbytes, None
    if memory and nbytes:
        seconds = nbytes / memory.gbps / 1e9
        limit = {"tokens_per_second": 1 / seconds, "seconds": seconds, "bytes": nbytes, "bandwidth": memory.gbps * 1e9}
        limit["of"] = memory.of
    return {
        "bits_per_weight": 8 * sum(info.nbytes for info in infos) / weights if weights else None,
        "bytes_per_token": nbytes or None,
        "head": head and {"name": head.name, "bytes": head.nbytes, "share": share},
        "label": label and label.to_json(),
        "limit": limit,
    }
