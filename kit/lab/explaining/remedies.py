"""What to change, in the words of the engine that runs, and the evidence for each cause."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kit.lab.engines.owner import Owner
from kit.lab.engines.watch import Holding, Seen
from kit.lab.explaining.causes import Cause, Window, account
from kit.system import groups
from kit.units import brief, format_bytes, format_seconds

FLAGS = {  # of llama-server: cause -> what to start it with, in place of what it has
    "threads": "-t {cores}", "load": "--sleep-idle-seconds -1", "reprocess": "{reuse}",
    "depth": "-ctk q8_0 -ctv q8_0 -fa on",
    "context": "-c {context} -ctk q8_0 -ctv q8_0", "lock": "--mlock",
}  # fmt: skip
_HALF = 0.5
# engine -> cause -> remedy; "" is for any engine. {names} are filled from ServerFacts.
REMEDIES = {
    "llama-server": {
        "threads": "{flags}", "load": "{flags} keeps the model loaded",
        "reprocess": "{told}", "depth": "{flags} halves the bytes of keys and values",
        "context": "{flags} leaves the weights their memory", "lock": "{flags}",
    },
    "Ollama": {
        "threads": "PARAMETER num_thread {cores} in the Modelfile, or num_thread in the options of a request",
        "load": "OLLAMA_KEEP_ALIVE=-1 keeps the model loaded; by default it goes after five minutes",
        "reprocess": "OLLAMA_NUM_PARALLEL=1, and the same beginning in every turn",
        "depth": "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 halves the bytes of keys and values",
        "context": "num_ctx {context}, and OLLAMA_KV_CACHE_TYPE=q8_0", "lock": "use_mlock true in the options",
    },
    "": {
        "memory": "a smaller quantization reads fewer bytes: `kit quants` measures what it loses",
        "disk": "more memory, or a smaller quantization (`kit quants` measures what it loses)",
        "swap": "more memory, or a smaller context: what is in swap is read at each token",
        "threads": "{cores} threads", "sleep": "{spin}: then its threads wait without sleeping",
        "quota": "give the group more time: docker run --cpus {wanted}, or cpu.max",
        "busy": "end or move the other processes{named}", "load": "keep the model loaded between requests",
        "pages": "read the file again in larger pages (kit generate FILE does it)",
        "reprocess": "let the server keep the last prompt", "depth": "a shorter context, or a KV cache of fewer bits",
        "positions": "a shorter context: attention computes for longer than it reads, so a cache of fewer bits gains little",
        "context": "a context of {context}", "lock": "lock the model in memory",
        "overhead": "ask the server directly: what is between it and you takes this time",
        "unexplained": "",
    },
}  # fmt: skip


@dataclass(frozen=True)
class ServerFacts:
    """What evidence and remedies are made of. ``nbytes``: of a token; ``file_bytes``: of the file; ``gbps``: at which memory is
    read. ``context``: positions of all slots, and ``positions_bytes`` each takes. ``recurrent``: whether layers
    have states that cannot be cut. ``kept``: the share that reading keys and values has of what a token takes
    longer at depth."""

    engine: str
    owner: Owner
    holding: Holding
    nbytes: float = 0.0
    file_bytes: int = 0
    gbps: float = 0.0
    context: int = 0
    position_bytes: float = 0.0
    recurrent: bool = False
    kept: float = 1.0

    @property
    def pushed(self) -> bool:
        """Whether the file alone would fit in the group's memory, and does not beside what the server holds of its own."""
        limit = self.holding.limit
        return bool(limit) and self.file_bytes < limit < self.file_bytes + self.holding.own

    @property
    def smaller(self) -> int:
        """The largest context, a power of two, with which the file fits in the group's memory; 0 where none does."""
        if not self.position_bytes:
            return max(512, self.context // 2)
        beside = max(0.0, self.holding.own - self.context * self.position_bytes)
        room = (self.holding.limit - self.file_bytes - beside) / self.position_bytes
        return next((2**power for power in range(17, 7, -1) if 2**power <= min(room, self.context)), 0)


def remedy(name: str, facts: ServerFacts, seen: Seen) -> tuple[str, str]:
    """(what to do about a cause, the flags that this gives the engine); "" where nothing is to be done, or it is no flag."""
    if name in ("disk", "swap"):
        if facts.pushed and facts.smaller:
            name = "context"
        elif name == "disk" and not facts.holding.limit:
            name = "lock"
    if name == "threads" and seen.workers <= seen.cores:
        name = "sleep"
    if name == "depth":
        name = _depth(facts)
    usable = groups.whole(min(seen.cores, seen.quota))
    values = {
        "cores": usable, "wanted": max(1, seen.workers), "context": facts.smaller,
        "spin": f"start it without {' and '.join(facts.owner.sleepy)}" if facts.owner and facts.owner.sleepy else
                "start it with OMP_WAIT_POLICY=active in its environment",
        "named": f": {', '.join(seen.busiest)}" if seen.busiest else "",
        "reuse": "--ctx-checkpoints 32" if facts.recurrent else "",
        "told": "--ctx-checkpoints 32 (a state cannot be cut, only gone back to)" if facts.recurrent else
                "cache_prompt true in the request, one slot for each conversation (-np), and --cache-reuse 256",
    }  # fmt: skip
    own = REMEDIES.get(facts.engine, {})
    flags = FLAGS.get(name, "").format(**values) if facts.engine == "llama-server" else ""
    return (own.get(name) or REMEDIES[""].get(name, "")).format(flags=flags, **values), flags


def _depth(facts: ServerFacts) -> str:
    """Which remedy. q8_0 only where reading takes most of it: at 3,500 positions on two cores it took 24 ms in place of 14,
    because attention computes there. Nothing of -fa alone: it took 14 ms in place of 17 there, and 32 in place of 19 in the
    wheel's server at 4,096."""
    return "depth" if facts.kept > _HALF else "positions"


def _evidence(name: str, facts: ServerFacts, seen: Seen, tokens: int) -> str:
    holding, per = facts.holding, max(1, tokens)
    if name == "memory":
        return f"a token reads {format_bytes(facts.nbytes)}, and memory reads at {facts.gbps:.1f} GB/s"
    if name in ("disk", "swap"):
        where = "swap" if name == "swap" else "disk"
        amount = seen.swapped if name == "swap" else seen.read
        parts = [f"{format_bytes(amount / per)} from {where} and {seen.faults / per:.0f} faults per token"]
        if holding.resident < 0.995:
            parts.append(f"{1 - holding.resident:.0%} of the file is not resident")
        if holding.limit:
            parts.append(
                f"limit {format_bytes(holding.limit)}, of which the server's own data hold {format_bytes(holding.own)}"
            )
        if holding.swapped:
            parts.append(f"{format_bytes(holding.swapped)} of the server are in swap")
        return "; ".join(parts)
    waited = float(np.mean(seen.waited)) if seen.waited else 0.0
    if name == "threads":
        told = f"{_threads(seen.workers)} on {_cores(seen)} waited {waited:.0%} of the time for a core"
        if not seen.woken:
            return told
        return f"{told}, computed {np.mean(seen.ran):.0%} of it, and were woken {seen.woken / per:.0f} times per token"
    if name == "busy":
        stolen = f", the host took {seen.stolen:.1f}" * (seen.stolen > 0.05)
        who = f": {', '.join(seen.busiest)}" if seen.busiest else ""
        return f"its threads waited {waited:.0%} of the time; other processes used {seen.others:.1f} cores{stolen}{who}"
    if name == "quota":
        held = seen.throttled / max(seen.seconds, 1e-9)
        return f"the group gives {seen.quota:g} cores and held the server back for {held:.1f} s per second, added over cores"
    if name == "pages":
        return f"{holding.large or 0.0:.0%} of the map is in 2 MiB pages, and small pages read more slowly"
    if name == "overhead":
        return "the client waits this much longer than the server says that it works"
    if name == "unexplained":
        if not (seen.known and seen.ran):
            return "no cause explains this: not watched"
        return f"no cause explains this: its {_threads(seen.workers)} computed {np.mean(seen.ran):.0%} of the time"
    return ""


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _cores(seen: Seen) -> str:
    share = min(seen.cores, seen.quota)
    return f"{share:g} core{'s' * (share != 1)}"


def explained(
    windows: Sequence[Window], rows: Sequence[dict[str, float]], facts: ServerFacts, of: str, evidence: dict
) -> list[Cause]:
    """The causes of windows with their evidence and remedies. ``evidence``: words for causes that no window shows."""
    seen = max((window.seen for window in windows), key=lambda each: each.seconds)
    tokens = next(window.tokens for window in windows if window.seen is seen)
    return [
        replace(cause, evidence=evidence.get(cause.name) or _evidence(cause.name, facts, seen, tokens),
                **dict(zip(("remedy", "flags"), remedy(cause.name, facts, seen), strict=True)))
        for cause in account(rows, of)
    ]  # fmt: skip


def sum_told(causes: Sequence[Cause]) -> str:
    """``95 ms per token = 33 ms memory + 40 ms disk + ...``, causes of a hundredth and more."""
    total = sum(cause.seconds for cause in causes)
    named = {"unexplained": "not explained", "threads": "threads that wait for each other", "busy": "other processes"}
    named |= {"quota": "the quota"}
    parts = [f"{brief(cause.seconds)} {named.get(cause.name, cause.name)}" for cause in causes if cause.seconds > 0.01 * total]
    return f"{brief(total)} = {' + '.join(parts)}"


def table(causes: Sequence[Cause]) -> list[str]:
    """A line for each cause: its seconds, share, interval and evidence."""
    total, lines = sum(cause.seconds for cause in causes), []
    for cause in causes:
        share = cause.seconds / total if total else 0.0
        spread = f"{format_seconds(cause.low)} to {format_seconds(cause.high)}"
        name = "not explained" if cause.name == "unexplained" else cause.name
        lines.append(f"  {name:<14}{format_seconds(cause.seconds):>9}  {share:>4.0%}  ({spread})  {cause.evidence}")
    return lines
