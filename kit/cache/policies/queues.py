"""Policies made of queues with a bit or a small count an object: CLOCK, SIEVE, S3-FIFO."""

from collections import OrderedDict

from kit.cache.policies.base import Policy


class Queue(OrderedDict):
    """Names with sizes, oldest first, and their bytes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def push(self, key, size):
        """Append."""
        self[key] = size
        self.bytes += size

    def pop(self, key):
        """Take out; its size."""
        size = super().pop(key)
        self.bytes -= size
        return size

    def oldest(self):
        """The name that came first."""
        return next(iter(self))


class CLOCK(Policy):
    """FIFO with a second chance: an object used since it last came round goes back to the end (Corbato 1968)."""

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._queue: OrderedDict[str, bool] = OrderedDict()  # oldest first; True: used since

    def _touch(self, key):
        self._queue[key] = True

    def _added(self, key):
        self._queue[key] = False

    def _removed(self, key):
        del self._queue[key]

    def _victim(self):
        while True:
            key, used = next(iter(self._queue.items()))
            if not used:
                return key
            self._queue[key] = False
            self._queue.move_to_end(key)


class SIEVE(Policy):
    """A FIFO whose hand goes from old to new and leaves used objects where they are (Zhang et al., NSDI 2024)."""

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._used: dict[str, bool] = {}
        self._newer: dict[str | None, str | None] = {None: None}  # a ring through None, the end of the queue
        self._older: dict[str | None, str | None] = {None: None}
        self._hand: str | None = None  # None: start at the oldest

    def _touch(self, key):
        self._used[key] = True

    def _added(self, key):
        self._used[key] = False
        newest = self._older[None]
        self._newer[newest] = self._older[None] = key
        self._older[key], self._newer[key] = newest, None

    def _removed(self, key):
        del self._used[key]
        older, newer = self._older.pop(key), self._newer.pop(key)
        self._newer[older], self._older[newer] = newer, older
        if self._hand == key:
            self._hand = newer

    def _victim(self):
        key = self._hand
        while True:
            if key is None:
                key = self._newer[None]
            if not self._used[key]:
                self._hand = key
                return key
            self._used[key] = False
            key = self._newer[key]


class S3FIFO(Policy):
    """A small FIFO for new objects, a main one for those used again, a ghost of names (Yang et al., SOSP 2023).

    As in the paper: ``small`` of the capacity is for newcomers; one used at least twice there moves on, the others
    leave their name in a ghost as large as the main queue, and come back straight into the main queue.
    """

    MAX_USES = 3

    def __init__(self, capacity: int | str, small: float = 0.1):
        super().__init__(capacity)
        self._small_share = small
        self._small, self._main, self._ghost = Queue(), Queue(), Queue()
        self._uses: dict[str, int] = {}

    def _touch(self, key):
        self._uses[key] = min(self._uses[key] + 1, self.MAX_USES)

    def _added(self, key):
        self._uses[key] = 0
        known = key in self._ghost
        if known:
            self._ghost.pop(key)
        (self._main if known else self._small).push(key, self._sizes[key])

    def _removed(self, key):
        (self._small if key in self._small else self._main).pop(key)
        del self._uses[key]

    def _victim(self):
        while True:
            if self._small and (not self._main or self._small.bytes >= self._small_share * self.capacity):
                key = self._small.oldest()
                if self._uses[key] < 2:
                    self._haunt(key)
                    return key
                self._main.push(key, self._small.pop(key))
            else:
                key = self._main.oldest()
                if not self._uses[key]:
                    return key
                self._uses[key] -= 1
                self._main.move_to_end(key)

    def _haunt(self, key):
        self._ghost.push(key, self._sizes[key])
        while self._ghost.bytes > (1 - self._small_share) * self.capacity:
            self._ghost.pop(self._ghost.oldest())
