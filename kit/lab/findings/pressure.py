"""Memory pressure: seconds of each inference against the memory for float32, with the weights kept, dequantized at each use,
or used from their blocks.

"kept" is what report 000 did: every dequantized weight stays, and what does not fit in memory goes to the disk and comes back.
By default a file in the run's folder takes the place of swap (``Spilled``); it bypasses the page cache and needs no rights.
``swap=True`` takes real swap and a memory limit instead (``Group``), which only root on Linux may.
"""

import mmap
import os
import shutil
import signal
import tempfile
import time
from functools import cache, partial
from itertools import product
from pathlib import Path

import pandas as pd
import torch

import kit
from kit.cpu.buffers import ARENA
from kit.errors import ReportError
from kit.gguf.names import layer_of
from kit.lab.measuring import child
from kit.lab.measuring.group import Group
from kit.lab.measuring.kept import once_a_run
from kit.lab.predicting.sampling import what_fits
from kit.model.hyperparameters import read_config
from kit.system import open_past, own_memory
from kit.system.note import doing
from kit.system.rows import PAGE
from kit.units import format_bytes

PASSES = 2  # of an inference: a request of the reports runs its prompt twice (data/evidence.yaml: two-passes)
FAULT = 32 << 10  # bytes that one page fault brings from swap on Linux: 2^3 pages (vm.page-cluster)
WAYS = {"kept": "dequantized", "each time": "dequantized", "blocks": "fused"}  # way -> linear layer
STANDS_FOR = "tinyllama-1.1b"
MOST = {False: 0.85 * 2**30, True: 1.25 * 2**30}  # bytes of float32 measured, without and with swap


class Killed(ReportError):
    """The kernel ended a way under its limit: not a fault of the run, which goes on and says so."""


# --- no rights needed: a file in place of swap -----------------------------------------------------------------------------


class Spilled(kit.Weights):
    """Float32 weights that are all kept: ``limit`` bytes in memory, last used first, and the rest in a nameless file in
    ``folder``.

    An evicted weight is written once, ``piece`` bytes at a time, and a miss reads it back the same way, past the
    system's page cache, which would hide the disk. Spans "page in" and "page out" of the trace have bytes and times.
    """

    def __init__(self, file, limit: int, folder: Path, piece: int = FAULT):
        super().__init__(file, kit.LRU(limit))
        self._spill = _nameless(folder, self.working_set)
        self._piece, self._room = piece, mmap.mmap(-1, piece)  # starts at a page, as reading past the page cache asks
        self._places: dict[str, int] = {}  # weight -> offset in the file
        self._dirty: dict[str, torch.Tensor] = {}  # not in the file yet
        self._end = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor; what the policy let go for it is written first."""
        value = super().__getitem__(name)
        if name not in self._places:
            self._dirty[name] = value
        for gone in [held for held in self._dirty if held not in self.store.policy]:
            self._write(gone, self._dirty.pop(gone))
        return value

    def load(self, name: str) -> torch.Tensor:
        """A miss: dequantized the first time, and read back from then on."""
        if name not in self._places:
            return super().load(name)
        value = ARENA.weights.empty(self.shape(name), self.dtype, self.trace)
        target = _bytes_of(value)
        with self.trace.span("page in", name, layer_of(name), len(target)):
            for start, count in self._pieces(len(target)):
                os.preadv(self._spill, [memoryview(self._room)[: _whole(count)]], self._places[name] + start)
                target[start : start + count] = self._room[:count]
        return value

    def close(self) -> None:
        """Give the file back."""
        os.close(self._spill)

    def _write(self, name, value):
        source, self._places[name] = _bytes_of(value), self._end
        with self.trace.span("page out", name, layer_of(name), len(source)):
            for start, count in self._pieces(len(source)):
                self._room[:count] = source[start : start + count]
                os.pwrite(self._spill, memoryview(self._room)[: _whole(count)], self._end + start)
        self._end += _whole(len(source))

    def _pieces(self, nbytes):
        return ((start, min(self._piece, nbytes - start)) for start in range(0, nbytes, self._piece))


def _bytes_of(value: torch.Tensor) -> memoryview:
    return memoryview(value.view(torch.uint8).numpy().reshape(-1))


def _whole(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _nameless(folder: Path, nbytes: int) -> int:
    """A new file in ``folder``, open past the page cache and already unlinked: it goes with the process, however that ends."""
    if (free := shutil.disk_usage(folder).free) < nbytes:
        raise ReportError(
            f"{folder}: the disk needs {format_bytes(nbytes)} for float32 weights and has {format_bytes(free)} free"
        )
    handle, name = tempfile.mkstemp(prefix="spill-", dir=folder)
    try:
        return open_past(name, os.O_RDWR)
    except OSError:  # tmpfs; systems without a way
        message = f"{folder}: no file here can be read past the page cache; name a folder on a disk by out="
        raise ReportError(message) from None
    finally:
        os.close(handle)
        os.unlink(name)


def _model(file, way, weights=None):
    weights = weights or kit.Weights(file, kit.HashMap() if way == "kept" else None)
    model = kit.Transformer(weights, linear=WAYS[way])
    held = model.new_cache(64)

    def inference(token: int) -> tuple[float, torch.Tensor]:
        start = time.perf_counter()
        for _ in range(PASSES):
            logits = model.step([1 + token % 3], held)
        return time.perf_counter() - start, logits

    return inference


def _warm(tiny, ways=WAYS):
    """Kernels compile on a tiny model of the same formats, and no inference pays."""
    with kit.open(tiny) as file:
        for way in ways:
            _model(file, way)(0)


def touch(nbytes: int) -> None:
    """Take and release memory: pages that a virtual machine never used are slow to get, and no inference pays for that."""
    torch.empty(nbytes, dtype=torch.uint8, device="cpu").zero_()


def used_bytes(file) -> int:
    """Bytes of float32 that one inference asks for."""
    return sum(4 * file.tensors[name].elements for name in read_config(file).order_of_use(file.tensors))


@once_a_run
@doing("measuring memory pressure")
def spilled(path, tiny, shares, folder: Path, inferences: int = 3, budget: float = 40.0, piece: int = FAULT) -> dict:
    """share -> way -> seconds of each inference, the three ways in turn, with memory for that share of the float32 weights.

    Only "kept" holds float32, so the memory bears on it alone. ``budget``: seconds for all shares; after its part of them a
    share takes no third inference. ReportError when the logits of "kept" are not those of "each time", bit by bit.
    """
    _warm(tiny)
    with kit.open(path) as whole:
        file = what_fits(whole, MOST[False])
        used, each = used_bytes(file), budget / max(1, sum(share < 1 for share in shares))
        touch(2 * used)
        return {share: _spilled(file, share * used, folder, inferences, each, piece) for share in shares}


def _spilled(file, limit, folder, inferences, budget, piece):
    seconds, end = {way: [] for way in WAYS}, time.monotonic() + budget
    weights = Spilled(file, max(1, round(limit)), folder, piece)
    models = {way: _model(file, way, weights if way == "kept" else None) for way in WAYS}
    try:
        for number in range(inferences):
            took = {way: model(number) for way, model in models.items()}
            if not torch.equal(took["kept"][1], took["each time"][1]):
                raise ReportError(f"{folder}: weights read from the spill file give different logits; check the disk")
            for way in WAYS:
                seconds[way].append(took[way][0])
            if number and time.monotonic() > end:
                break
    finally:
        weights.close()
    return seconds


# --- root on Linux: real swap and a memory limit ---------------------------------------------------------------------------


@once_a_run
@doing("measuring memory pressure with swap")
def swapped(path, tiny, shares, folder: Path, inferences: int = 3, budget: float = 40.0) -> dict:
    """The same with real swap, each way in a process of its own: it may use what it needs without float32, and that share of
    the float32 weights; 1 or more: no limit. "kept" is a map that is never emptied, and the kernel swaps what does not fit.
    """
    with kit.open(path) as whole:
        used = used_bytes(what_fits(whole, MOST[True]))
    touch(2 * used)
    with Group(folder, 2 * used + (256 << 20)) as group:

        def take(way, limit=None):
            given = str(path), str(tiny), way, inferences, budget / len(shares)
            try:
                return child.call(_taken, *given, run=partial(group.run, limit=limit))
            except child.Ended as ended:
                if ended.code != -signal.SIGKILL:
                    raise ReportError(f"swap = true: {way}, limit {limit}: {ended}") from None
                # seen on Linux 6.18 under cgroup 1, idle, most of the swap free
                what = "the kernel ended it; it may do so where the swap is written more slowly than memory is asked for"
                raise Killed(
                    f"swap = true: {way}, limit {limit}: {what}; leave out swap=true: a file is then used instead of swap"
                ) from None

        own = take("blocks")["own"]
        times = {share: {way: take(way, None if share >= 1 else own + round(share * used)) for way in WAYS} for share in shares}
    for share, told in times.items():
        if len({told[way]["tokens"][0] for way in WAYS}) > 1:
            raise ReportError(
                f"{path}: with {share:.0%} of the float32 weights in memory, the variants give different tokens: {told}"
            )
    return {share: {way: told[way]["seconds"] for way in WAYS} for share, told in times.items()}


def _taken(path, tiny, way, inferences, budget) -> dict:
    _warm(tiny, [way])
    seconds, tokens = [], []
    with kit.open(path) as whole:
        inference = _model(what_fits(whole, MOST[True]), way)
        while len(seconds) < 2 or (len(seconds) < inferences and sum(seconds) < budget):
            took, logits = inference(len(seconds))
            seconds.append(took)
            tokens.append(int(logits.argmax()))
    return {"seconds": seconds, "tokens": tokens, "own": own_memory()}


# --- a run's curve ---------------------------------------------------------------------------------------------------------


def of_run(lab, shares=(1.0, 0.75, 0.53), swap: bool = False, **arguments) -> pd.DataFrame:
    """The curve of a run, one row per inference: share (of the float32 weights in memory), way, inference (0: the first),
    seconds, gib, the GiB of float32 that PASSES passes read, and how: what does not fit lies on a spill file or in real swap.
    The first notebook that asks measures, on the run's TinyLlama or model; the others read its records. Without rows and with a
    warning on the page where the kernel ends a way in real swap.
    """
    if min(shares) >= 1:
        raise ReportError(f"shares {shares}: give at least one below 1, so that the weights exceed memory")
    path, tiny, measured = lab.path(STANDS_FOR), lab.tiny(STANDS_FOR), swapped if swap else spilled
    measure = cache(lambda: measured(path, tiny, shares, lab.out, **arguments))
    with kit.open(path) as file:
        gib = PASSES * used_bytes(what_fits(file, MOST[swap])) / 2**30
    where, rows = "real swap" if swap else "a spill file", []
    for share, way in product(shares, WAYS):
        quantity = f"inference by inference, {way}: memory for {share:.0%} of float32, the rest on {where}"
        try:
            samples = lab.once(quantity, "s", lambda share=share, way=way: measure()[share][way])
        except Killed as killed:
            lab.gate(False, str(killed), "measured")  # other processes take memory, too
            break
        rows += [(share, way, number, seconds, gib, where) for number, seconds in enumerate(samples)]
    return pd.DataFrame(rows, columns=["share", "way", "inference", "seconds", "gib", "how"])


def ratios(curve: pd.DataFrame, others: dict[str, list[float]]) -> pd.DataFrame:
    """Rows of ``others``, then one an amount of memory: seconds of an inference before anything is kept and of those after."""
    rows = dict(others)
    for (how, share), some in curve.groupby(["how", "share"], sort=False):
        each, kept = (some[some["way"] == way].sort_values("inference")["seconds"] for way in ("each time", "kept"))
        rows[f"kept, {share:.0%} of float32 in memory, {how}"] = [each.median(), *kept]
    table = pd.DataFrame([pd.Series(seconds) for seconds in rows.values()], [*rows])
    table.columns = ["before", "first", "second", "third"][: table.shape[1]]
    return table.assign(
        **{"first / before": table["first"] / table["before"], "second / first": table["second"] / table["first"]}
    )
