"""Policies made of FIFO queues with a bit or a small count for each object: CLOCK, SIEVE, S3-FIFO."""

from collections import OrderedDict

from kit.cache.policies.base import Policy


class Queue:
    """``sizes``: keys with sizes, oldest first; ``bytes``: their total."""

    __slots__ = "bytes", "sizes"

    def __init__(self):
        self.sizes: OrderedDict[str, int] = OrderedDict()  # not its subclass, whose every step takes several times as long
        self.bytes = 0

    def push(self, key, size):
        """Append a key that is not there."""
        self.sizes[key] = size
        self.bytes += size

    def pop(self, key):
        """Remove a key; returns its size."""
        size = self.sizes.pop(key)
        self.bytes -= size
        return size

    def oldest(self):
        """The first key."""
        return next(iter(self.sizes))

    def drop(self):
        """Remove the first key."""
        self.bytes -= self.sizes.popitem(last=False)[1]


class CLOCK(Policy):
    """FIFO with a second chance: at its turn, an object used since its last turn goes back to the end (Corbato 1968)."""

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._used: set[str] = set()  # since their last turn

    def _touch(self, key):
        self._used.add(key)

    def _removed(self, key):
        self._used.discard(key)

    def _victim(self):
        used, order = self._used, self._sizes
        while (key := next(iter(order))) in used:
            used.remove(key)
            order.move_to_end(key)
        return key


class SIEVE(Policy):
    """FIFO with a hand that moves from old to new and skips used objects where they are (Zhang et al., NSDI 2024)."""

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._used: set[str] = set()  # since the hand passed them
        self._ahead: OrderedDict[str, None] = OrderedDict()  # from the hand to the newest; empty only when all is
        self._behind: OrderedDict[str, None] = OrderedDict()  # from the oldest to the hand

    def _touch(self, key):
        self._used.add(key)

    def _added(self, key):
        self._ahead[key] = None

    def _removed(self, key):
        self._used.discard(key)
        self._leave(key, self._ahead if key in self._ahead else self._behind)

    def _leave(self, key, part):
        """Take a key out of one part; a hand at the end goes back to the oldest."""
        del part[key]
        if not self._ahead:
            self._ahead, self._behind = self._behind, self._ahead

    def _victim(self):
        while (key := next(iter(self._ahead))) in self._used:
            self._used.remove(key)
            self._behind[key] = None
            self._leave(key, self._ahead)
        return key


class S3FIFO(Policy):
    """A small FIFO for new objects, a main FIFO, and a ghost queue of evicted keys (Yang et al., SOSP 2023).

    SMALL: share of the capacity for new objects. An object used at least twice there moves to the main queue; others
    leave their key in the ghost queue, whose objects enter the main queue directly. The ghost holds as many bytes as the
    main queue.
    """

    MAX_USES, SMALL = 3, 0.1

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._small, self._main, self._ghost = Queue(), Queue(), Queue()
        self._uses: dict[str, int] = {}

    def _touch(self, key):
        if (uses := self._uses[key]) < self.MAX_USES:
            self._uses[key] = uses + 1

    def _added(self, key):
        self._uses[key] = 0
        queue = self._small
        if key in self._ghost.sizes:
            self._ghost.pop(key)
            queue = self._main
        queue.push(key, self._sizes[key])

    def _removed(self, key):
        (self._small if key in self._small.sizes else self._main).pop(key)
        del self._uses[key]

    def _victim(self):
        small, main, uses, full = self._small, self._main, self._uses, self.SMALL * self.capacity
        while True:
            if small.sizes and (not main.sizes or small.bytes >= full):
                key = small.oldest()
                if uses[key] < 2:
                    self._remember(key)
                    return key
                main.push(key, small.pop(key))
            else:
                key = main.oldest()
                if not uses[key]:
                    return key
                uses[key] -= 1
                main.sizes.move_to_end(key)

    def _remember(self, key):
        ghost, room = self._ghost, (1 - self.SMALL) * self.capacity
        ghost.push(key, self._sizes[key])
        while ghost.bytes > room:
            ghost.drop()
