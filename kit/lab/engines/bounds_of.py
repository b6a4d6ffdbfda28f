"""The limits of a file on this machine: a decode's by bytes over bandwidth, a prompt's by operations over arithmetic."""

from dataclasses import dataclass

from kit.gguf.uses import bytes_used, uses_of
from kit.lab.measuring import arithmetic, slices

_HEADS = ("output.weight", "token_embd.weight")  # computed for the last token of a prompt alone


@dataclass(frozen=True)
class FileWork:
    """What a file asks for. ``token_bytes``: of weights that a token reads; ``token_operations``: multiplications and additions
    of its products with weights. ``prompt_bytes``, ``prompt_operations``: of ``tokens`` together, the output head once."""

    token_bytes: float
    token_operations: float
    prompt_bytes: float
    prompt_operations: float
    tokens: int


def work_of(file, tokens: int) -> FileWork:
    """The work of an open file. Attention is left out, so that what follows from it is a limit."""
    uses = uses_of(file)
    matrices = [use for use in uses if not use.is_rows and len(file.tensors[use.name].shape) > 1]
    each = {use.name: 2 * use.elements * use.share() for use in matrices}
    head = next((name for name in _HEADS if name in each), "")
    whole = sum(each.values())
    prompt = tokens * (whole - each.get(head, 0.0)) + each.get(head, 0.0)
    return FileWork(bytes_used(uses), whole, bytes_used(uses, tokens=tokens), prompt, tokens)


@dataclass
class Roof:
    """What this machine gives, in the minutes of a comparison: ``bandwidth``, bytes per second, the best of all probes and of
    what an engine itself reached; ``rates``: operations per second by "float32" and "int8"; ``methods``: how they were had."""

    bandwidth: float
    rates: dict[str, float]
    methods: dict[str, str]

    def decode(self, work: FileWork, kept: float = 0.0) -> dict:
        """For ``bound`` of the JSON of kit explain; ``kept``: bytes of keys and values that a token reads as well."""
        nbytes = work.token_bytes + kept
        return {"seconds": nbytes / self.bandwidth, "bytes": nbytes, "bandwidth": self.bandwidth}

    def prompt(self, work: FileWork) -> dict[str, dict]:
        """Kind of arithmetic -> the least seconds per token of a prompt, its operations per second, and what limits it."""
        read = work.prompt_bytes / self.bandwidth
        rows = {}
        for kind, rate in self.rates.items():
            computed = work.prompt_operations / rate
            least = max(computed, read) / work.tokens
            rows[kind] = {
                "seconds": least, "tokens_per_second": 1 / least, "operations_per_second": rate,
                "by": "arithmetic" if computed >= read else "memory",
            }  # fmt: skip
        return rows


def measured() -> Roof:
    """This machine now, in some seconds."""
    rates = arithmetic.probe()
    methods = {"bandwidth": "the fastest slice of memory that kit reads"} | {kind: rate.method for kind, rate in rates.items()}
    return Roof(slices.read_gbps() * 1e9, {kind: rate.best for kind, rate in rates.items()}, methods)


def again(roof: Roof) -> None:
    """Probe the memory once more, after the engines: the best of all probes counts."""
    roof.bandwidth = max(roof.bandwidth, slices.read_gbps() * 1e9)
