"""One budget of memory for a whole program: the process, the history of its context, weights that every token uses, experts.

What does not fit is read from the disk, past the page cache, at every use.
"""

import math
from typing import NamedTuple

from kit.errors import GGUFError, ModelError
from kit.model.footprint import COMPILING, LIBRARIES, RUNNING, added_by_slots, process_bytes
from kit.model.pinned import PinnedBlocks
from kit.model.slot_layout import SlotLayout
from kit.model.slots import Slots
from kit.model.transformer import Transformer
from kit.model.weights import Weights
from kit.system import memory_available, memory_limit
from kit.units import format_bytes, parse_bytes

_ROW = 64 << 10  # bytes that the system maps around a row of the embedding
_VECTORS = 8  # of each token of a prompt, as long as the longest: what a layer holds at once


class Budget(NamedTuple):
    """Bytes. ``process``: code and what a prompt's layers hold at once; ``history``: the KV cache; ``dense``: weights of every
    token; ``pinned``: for those of a dense model that does not fit; ``page_cache``: what the mapped file needs of the page
    cache (else these weights, and rows of the embedding); ``slots``: for experts that do not fit. ``whole``: all fit."""

    memory: int
    process: int
    history: int
    dense: int
    pinned: int
    page_cache: int
    slots: int
    whole: bool

    @property
    def held(self) -> int:
        """Bytes that the process will hold at most."""
        return self.process + self.history + self.page_cache + self.pinned + self.slots

    def __str__(self):
        parts = {"process": self.process, "context": self.history}
        if self.whole:
            parts["the mapped file"] = self.page_cache
        elif self.slots:
            parts |= {"weights of every token": self.page_cache, "experts": self.slots}
        elif self.pinned:
            parts |= {"pinned": self.pinned, "read at every token": self.dense - self.pinned}
        else:
            parts |= {"mapped, through the page cache (no way past it)": self.dense}
        return f"{format_bytes(self.memory)}: " + ", ".join(f"{format_bytes(n)} {name}" for name, n in parts.items())


def divide(file, memory: int | str, context=None, kv_dtype="float32", rows: int = 1, process: int | None = None) -> Budget:
    """The budget of a program that runs an open file's model in so much memory. ``context``: positions (None: the file's);
    ``rows``: for so many a pass returns logits; ``process``: bytes of a program without a model (None: as this one is now).

    ModelError with the least memory that works, where it is too little, and where the process may not use so much."""
    try:
        memory = parse_bytes(memory)
    except ValueError as error:
        raise ModelError(f"memory: {error}") from None
    if memory > (most := memory_limit()):
        raise ModelError(f"memory {format_bytes(memory)} is more than this process may use: give at most {format_bytes(most)}")
    model = Transformer(Weights(file), max_context=context, kv_dtype=kv_dtype)
    config, infos, tokens = model.config, file.tensors, model.max_context
    used = config.order_of_use(infos)
    dense = sum(infos[name].nbytes for name in used if "_exps.w" not in name)
    experts = sum(infos[name].nbytes for name in used if "_exps.w" in name)
    embedding = min(tokens * _ROW, sum(info.nbytes for name, info in infos.items() if name not in used))
    longest = max(shape[-1] for shape in config.tensors().values())
    process = process_bytes(file) if process is None else process
    process += 4 * (tokens * _VECTORS * longest + rows * config.vocabulary)
    history = model.new_cache(1).bytes_per_position * tokens + model.new_cache(1).fixed_bytes
    left = memory - process - history - embedding

    def budget(pinned=0, mapped=0, slots=0):
        return Budget(memory, process, history, dense, pinned, mapped + embedding, slots, mapped >= dense + experts)

    if dense + experts <= left:
        return budget(mapped=dense + experts)
    if experts:
        process, left = process + (added := added_by_slots(file)), left - added
    least = dense + SlotLayout(file).least if experts else _largest(file, used)
    if left < least:
        needs = format_bytes(least + memory - left)
        raise ModelError(
            f"{file.path}: memory {format_bytes(memory)} is too little: with a context of {tokens}, give at least {needs}"
        )
    return budget(mapped=dense, slots=left - dense) if experts else budget(pinned=left)


def room_for_kept(file) -> int:
    """Bytes of weights in float32 that this process may keep of an open file's: 70 % of what is free beside the largest matrix,
    which is dequantized whole, and what the process will need.

    ModelError where that matrix alone does not fit."""
    rows = "token_embd.weight" if "output.weight" in file.tensors else ""  # of which a pass takes rows alone
    sizes = {name: 4 * math.prod(info.shape[-2:]) for name, info in file.tensors.items() if name != rows}
    largest, free = max(sizes, key=sizes.get), memory_available()
    if sizes[largest] > free - (RUNNING + COMPILING):
        takes = f"{largest!r} takes {format_bytes(sizes[largest])} once it is dequantized"
        remedy = "--linear fused multiplies with the file's own blocks"
        raise ModelError(f"{file.path}: {takes}, and {format_bytes(free)} are free: {remedy}")
    return max(0, int(0.7 * (free - (LIBRARIES + RUNNING + COMPILING) - sizes[largest])))


def _largest(file, used) -> int:
    """Bytes of the vectors and of the largest matrix: what blocks that are read at every use need."""
    sizes = [file.tensors[name] for name in used]
    return sum(info.nbytes for info in sizes if len(info.shape) == 1) + max(info.nbytes for info in sizes)


def weights_within(file, memory, policy="LRU", trace=None, **how) -> tuple[Weights, Budget]:
    """Weights with which a program stays within ``memory`` bytes, and how these are divided (see ``divide``, also for ``how``):
    the mapped file where it fits, else slots of experts by ``policy`` (of kit.model.slots.NAMES), or a dense model's first
    blocks."""
    budget = divide(file, memory, **how)
    if budget.whole:
        return Weights(file, trace=trace), budget
    if budget.slots:
        return Weights(file, trace=trace, experts=Slots(budget.slots, policy)), budget
    try:
        return PinnedBlocks(file, budget.pinned, trace), budget
    except GGUFError:  # no way past the page cache: through it, which keeps what the system likes
        return Weights(file, trace=trace), budget._replace(pinned=0)
