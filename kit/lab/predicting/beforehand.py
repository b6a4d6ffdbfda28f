"""What the header of a file says before anybody runs or downloads it: bytes per token, and the most tokens per second here."""

from functools import partial
from typing import NamedTuple

from kit.gguf.uses import bytes_used, uses_of
from kit.lab.labels import label_of
from kit.lab.measuring import state
from kit.system import memory_available

_FREE = 1 << 30  # bytes without which nothing is measured: a probe takes 192 MiB


class Reads(NamedTuple):
    """GB/s at which memory reads. ``of``: "now", or the date of the best known of this machine where now cannot be measured."""

    gbps: float
    of: str

    @property
    def told(self) -> str:
        """In words."""
        return f"memory reads at {self.gbps:.1f} GB/s" + (" now" if self.of == "now" else f", the best known, of {self.of}")


def reads() -> Reads | None:
    """What memory gives, in about 30 ms; None where that cannot be measured and nothing is known.

    Where the caches hold what a quick probe reads, the best known counts, which is measured once where there is none.
    """
    enough = memory_available() >= _FREE
    if enough and not state.in_caches():
        return Reads(state.probe_state().read_gbps, "now")
    from kit.lab.measuring import limits, machine, measurements  # which import torch

    known = measurements.shared().best(measurements.READ, "GB/s")
    if known is None and enough:
        now = limits.known(partial(machine.probe, leave_out=("copy_gbps", "f32_gflops")), "kit inspect")
        return Reads(now.machine.read_gbps, "now")
    return known and Reads(max(known.samples), known.at[:10])


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
