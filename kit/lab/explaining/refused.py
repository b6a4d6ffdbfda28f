"""A server that refuses to load its model because of memory: the limit, what is used, what could be dropped, what would fit."""

import re

import psutil

from kit.system import groups
from kit.units import format_bytes

_REFUSES = re.compile(
    r"requires more system memory|not enough (system )?memory|out of memory|failed to allocate|unable to allocate"
    r"|cannot allocate|insufficient memory",
    re.IGNORECASE,
)
_BESIDE = 300 << 20  # bytes of the server's process without weights, keys and values: its program and its buffers
_REMEDY = {"Ollama": "num_ctx {}", "llama-server": "-c {}"}


def is_refusal(error: str) -> bool:
    """Whether an error says that memory is short."""
    return bool(_REFUSES.search(error))


def fitting(free: float, weights: float, position: float, most: int) -> int:
    """The largest context, a multiple of 256 up to ``most``, whose keys and values fit beside the weights; 0: none does."""
    room = free - weights - _BESIDE
    if room <= 0 or most <= 0:
        return 0
    return int(min(most, room // position if position else most)) // 256 * 256


def told(running, error: str) -> str:
    """The refusal explained, in one line. ``running``: a kit.lab.explaining.running.Running."""
    owner, server = running.owner, running.server
    limit, used, pages = groups.use(owner.process or "self") or (0, 0, 0)
    machine = psutil.virtual_memory()
    if not 0 < limit < machine.total:
        limit, used, pages = machine.total, machine.total - machine.free, getattr(machine, "cached", 0)
        whose = "this machine has"
    else:
        whose = "its control group allows"
    free = limit - used + pages
    parts = [
        f"{server.url}: {server.name} refuses to load: {error}",
        f"{whose} {format_bytes(limit)}, {format_bytes(used)} are in use, and {format_bytes(pages)} of those are pages of "
        f"files that the kernel drops when it needs them, so {format_bytes(free)} are available",
    ]
    if running.file is None:
        return "; ".join(
            [*parts, f"its file was not found, so what it needs is not known: kit explain FILE --engine {server.url} names it"]
        )
    size = sum(info.nbytes for info in running.file.tensors.values())
    position = running.position_bytes
    asked, whole = running.context, running.config.context if running.config else 0
    kept = f"{format_bytes(asked * position)} for a context of {asked:,}"
    parts.append(f"the model takes {format_bytes(size)} of weights, {kept}, "
                 f"and about {format_bytes(_BESIDE)} for the process")  # fmt: skip
    if best := fitting(free, size, position, whole):
        remedy = _REMEDY.get(server.name, "a context of {}").format(best)
        parts.append(f"the largest context that fits is {best:,}: {remedy}")
    else:
        need = size + _BESIDE + 256 * position
        parts.append(f"no context fits: give it {format_bytes(need)}, or take a smaller quantization")
    if used - pages > size:
        parts.append(f"{format_bytes(used - pages)} belong to programs under the same limit: end those that you do not need")
    return "; ".join(parts)
