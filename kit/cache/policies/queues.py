"""Policies made of FIFO queues with a bit or a small count for each object: CLOCK, SIEVE, S3-FIFO."""

from collections import OrderedDict

from kit.cache.policies.base import Policy


class Queue(OrderedDict):
    """Keys with sizes, oldest first, and the total in ``bytes``."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def push(self, key, size):
        """Append a key."""
        self[key] = size
        self.bytes += size

    def pop(self, key):
        """Remove a key; returns its size."""
        size = super().pop(key)
        self.bytes -= size
        return size

    def oldest(self):
        """The first key."""
        return next(iter(self))


class CLOCK(Policy):
    """FIFO with a second chance: at its turn, an object used since its last turn goes back to the end (Corbato 1968)."""

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._queue: OrderedDict[str, bool] = OrderedDict()  # oldest first; True: used since its last turn

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
    """FIFO with a hand that moves from old to new and skips used objects where they are (Zhang et al., NSDI 2024)."""

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
    """A small FIFO for new objects, a main FIFO, and a ghost queue of evicted keys (Yang et al., SOSP 2023).

    ``small``: share of the capacity for new objects. An object used at least twice there moves to the main queue; others
    leave their key in the ghost queue, whose objects enter the main queue directly. The ghost holds as many bytes as the
    main queue.
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
        queue = self._small
        if key in self._ghost:
            self._ghost.pop(key)
            queue = self._main
        queue.push(key, self._sizes[key])

    def _removed(self, key):
        (self._small if key in self._small else self._main).pop(key)
        del self._uses[key]

    def _victim(self):
        while True:
            if self._small and (not self._main or self._small.bytes >= self._small_share * self.capacity):
                key = self._small.oldest()
                if self._uses[key] < 2:
                    self._remember(key)
                    return key
                self._main.push(key, self._small.pop(key))
            else:
                key = self._main.oldest()
                if not self._uses[key]:
                    return key
                self._uses[key] -= 1
                self._main.move_to_end(key)

    def _remember(self, key):
        self._ghost.push(key, self._sizes[key])
        while self._ghost.bytes > (1 - self._small_share) * self.capacity:
            self._ghost.pop(self._ghost.oldest())
