"""What a process takes without the weights of a model: what it holds when a plan is made, and what running adds to that.

`kit generate`, the commands that only predict it and a Python program with ``memory=`` plan by the same figures. A test holds
the plan to the peak of such a process, within a tenth.
"""

from kit.cpu import tasks
from kit.system import own_memory

LIBRARIES = 130 << 20  # resident bytes of libraries: files back them, so that own_memory() lacks them
RUNNING = 58 << 20  # bytes that running adds: the kernels' code, buffers, threads; 56 were measured on a Xeon with AMX
COMPILING = 72 << 20  # and those of a process that has to compile its kernels first: 40 to 80 MiB were measured
ENTRY = 128  # bytes of an entry of the vocabulary in a tokenizer


def process_bytes(file) -> int:
    """Bytes that this process will need to run an open file, without its weights and the history of its context."""
    return own_memory() + LIBRARIES + RUNNING + added_by(file)


def added_by(file) -> int:
    """Bytes that running an open file adds because of what it is: its vocabulary, and kernels that must be compiled first."""
    return ENTRY * len(file.metadata.get("tokenizer.ggml.tokens", ())) + (0 if _ran(file).exists() else COMPILING)


def added_by_slots(file) -> int:
    """Bytes that slots of experts add to ``added_by`` where only the mapped file has run: their kernels are others."""
    return COMPILING if _ran(file).exists() and not _ran(file, "slots").exists() else 0


def has_run(file, slots: bool = False) -> None:
    """Note that the kernels of an open file's formats are compiled, and with ``slots`` those of its experts in slots."""
    try:
        _ran(file).touch()
        if slots:
            _ran(file, "slots").touch()
    except OSError:  # nowhere to note it: the next plan is larger than it needs to be
        return


def _ran(file, *how: str):
    return tasks.beside("-".join(["ran", *how, *sorted({info.qtype for info in file.tensors.values()})]))
