"""The memory of a process that runs a file: what it takes without weights, what stays of the file, what the disk brings."""

from functools import cached_property

from kit.errors import ModelError
from kit.gguf.sources import largest_part
from kit.gguf.uses import uses_of
from kit.lab.measuring.disk import read_gbps
from kit.lab.measuring.process import process_bytes
from kit.lab.predicting.ways import BackingStore, Prediction
from kit.model.architectures import ARCHITECTURES
from kit.model.budget import Budget, divide
from kit.system import memory_available
from kit.units import format_bytes

SCRATCH = 1 << 30  # bytes that a decode takes in addition to weights: libraries, activations, buffers
_CONTEXT = 128  # positions that a process is asked to hold: the command that is printed needs fewer


class Room:
    """``whole``: bytes that the process may take (None: what is free). ``nbytes``: of the file's blocks. ``part``: whether the
    file is a sample of the layers of another, which no process runs."""

    def __init__(self, file, nbytes: int, whole: int | None = None, part: bool = False):
        self.file, self.nbytes, self.whole, self._part = file, nbytes, whole, part

    @property
    def limit(self) -> int:
        """Bytes of the whole process."""
        return self.whole or memory_available()

    @cached_property
    def process(self) -> int:
        """Bytes of the process without weights (measuring.process): the one plan of all commands."""
        return process_bytes(self.file)

    @cached_property
    def budget(self) -> Budget | None:
        """How the memory of the whole process is divided (kit.model.budget); None where the kit does not run the file itself.
        ModelError where ``whole`` is too little for it."""
        if self.whole and self.whole <= self.process:
            told = f"{format_bytes(self.whole)} of memory is too little: the process alone takes {format_bytes(self.process)}"
            raise ModelError(f"{self.file.path}: {told}; --room SIZE is the room of a cache alone")
        if self._part or self.file.architecture not in ARCHITECTURES or self.file.compressed:
            return None
        try:
            return divide(self.file, self.limit, context=_CONTEXT, process=self.process)
        except ModelError as error:
            if self.whole and "too little" in str(error):
                raise
            return None

    @property
    def beside(self) -> int:
        """Bytes of the process without weights: libraries, activations, the history of a short context."""
        return self.budget.process + self.budget.history if self.budget else self.process

    @property
    def free(self) -> int:
        """Bytes for weights and pages of the file."""
        return max(0, self.limit - self.beside)

    @cached_property
    def fits(self) -> bool:
        """Whether the file's blocks stay in memory."""
        return self.budget.whole if self.whole and self.budget else self.nbytes <= self.free

    @cached_property
    def pinned(self) -> int | None:
        """Bytes of blocks that `kit generate --memory` keeps of a dense file that does not fit; None of any other."""
        return None if self.fits or not self.budget or not self.disk else self.budget.pinned or None

    @cached_property
    def slots(self) -> int | None:
        """Bytes of experts that `kit generate --memory` keeps of a mixture that does not fit; None of any other."""
        return None if self.fits or not self.budget or not self.disk else self.budget.slots or None

    @cached_property
    def disk(self) -> BackingStore | None:
        """The disk under the file; None where nothing is read from it once the page cache is warm, or it cannot be measured."""
        if self.file.path is None or self.fits:
            return None
        gbps = read_gbps(largest_part(self.file.path))
        return BackingStore(gbps, self.free) if gbps else None

    def needs(self, prediction: Prediction) -> int:
        """Bytes of the whole process that runs a way: with all blocks where they stay, as whoever asks whether the file fits is
        told; of blocks that are read from the disk, those that stay."""
        from_blocks = self.fits and prediction.way.product and not prediction.way.holds
        return self.beside + (self.nbytes if from_blocks else prediction.total)

    def stays(self, prediction: Prediction) -> bool:
        """Whether a way stays within the memory of the whole process."""
        return self.needs(prediction) <= self.limit


def room_for_weights(file, whole: int | None = None) -> int:
    """Bytes for a cache of dequantized weights: of ``whole``, what the process and the file's blocks leave; of what is free,
    70 % of what they and the largest weight leave, which a miss dequantizes."""
    uses = uses_of(file)
    blocks, largest = sum(use.nbytes for use in uses), max((4 * use.elements // use.of for use in uses), default=0)
    room = whole - process_bytes(file) - blocks if whole else 0.7 * (memory_available() - largest - SCRATCH - blocks)
    return max(1 << 20, int(room))
