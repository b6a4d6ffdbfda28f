"""Policies that adapt to the accesses of evicted objects too: ARC, LIRS, TinyLFU admission."""

from collections import OrderedDict

from kit.cache.policies.base import LRU, Policy
from kit.cache.policies.queues import Queue


class ARC(Policy):
    """Two LRU lists, of objects used once and used again; hits in their ghost lists shift capacity between them.

    Megiddo and Modha, FAST 2003, in bytes instead of objects; with equal sizes it is the published algorithm.
    """

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._once, self._again = Queue(), Queue()
        self._once_ghost, self._again_ghost = Queue(), Queue()
        self._target = 0.0  # bytes that the list "once" should have
        self._from_again_ghost = False  # for the object being inserted

    def _touch(self, key):
        if key in self._again.sizes:
            self._again.sizes.move_to_end(key)
        else:
            self._again.push(key, self._once.pop(key))

    def insert(self, key, size):
        remembered = None
        self._from_again_ghost = key in self._again_ghost.sizes
        once, again = self._once_ghost.bytes, self._again_ghost.bytes
        if key in self._once_ghost.sizes:
            self._target = min(self.capacity, self._target + size * max(1, again / max(1, once)))
            remembered = self._once_ghost.pop(key)
        elif self._from_again_ghost:
            self._target = max(0, self._target - size * max(1, once / max(1, again)))
            remembered = self._again_ghost.pop(key)
        evicted = super().insert(key, size)
        if evicted is not None:
            (self._once if remembered is None else self._again).push(key, size)
            self._trim_ghosts()
        return evicted

    def _victim(self):
        once, again = self._once, self._again
        at_target = once.bytes == self._target and self._from_again_ghost
        source = once if once.sizes and (not again.sizes or once.bytes > self._target or at_target) else again
        key = source.oldest()
        (self._once_ghost if source is once else self._again_ghost).push(key, self._sizes[key])
        return key

    def _removed(self, key):
        (self._once if key in self._once.sizes else self._again).pop(key)

    def _trim_ghosts(self):
        once, again = self._once_ghost, self._again_ghost
        while once.sizes and self._once.bytes + once.bytes > self.capacity:
            once.drop()
        while again.sizes and self.resident_bytes + once.bytes + again.bytes > 2 * self.capacity:
            again.drop()


class LIRS(Policy):
    """Protects objects whose last two uses lie close together; the others share COLD of the capacity.

    Jiang and Zhang, SIGMETRICS 2002, in bytes instead of blocks. The stack holds the keys of all objects used since the
    oldest use of a protected one.
    """

    COLD = 0.01

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._stack: OrderedDict[str, None] = OrderedDict()  # oldest use first
        self._hot = Queue()  # protected: LIR in the paper
        self._cold = Queue()  # resident HIR

    def _touch(self, key):
        if key in self._hot.sizes:
            self._stack.move_to_end(key)
            self._prune()
        elif key in self._stack:
            self._stack.move_to_end(key)
            self._hot.push(key, self._cold.pop(key))
            self._demote(self._hot_limit())
        else:
            self._stack[key] = None
            self._cold.sizes.move_to_end(key)

    def _hot_limit(self) -> float:
        return max((1 - self.COLD) * self.capacity, 1)

    def _added(self, key):
        size = self._sizes[key]
        if key in self._stack or self._hot.bytes + size <= self._hot_limit():
            self._hot.push(key, size)
        else:
            self._cold.push(key, size)
        self._stack[key] = None
        self._stack.move_to_end(key)
        self._demote(self._hot_limit())

    def _demote(self, limit):
        """Make the oldest protected objects ordinary ones until the protected fit in ``limit`` bytes."""
        while self._hot.bytes > limit:
            self._prune()
            key = next(iter(self._stack))
            self._cold.push(key, self._hot.pop(key))
            del self._stack[key]
        self._prune()

    def _prune(self):
        stack, hot = self._stack, self._hot.sizes
        while stack and (key := next(iter(stack))) not in hot:
            del stack[key]

    def _victim(self):
        if not self._cold.sizes:
            self._demote(self._hot.bytes - 1)
        return self._cold.oldest()

    def _removed(self, key):
        (self._cold if key in self._cold.sizes else self._hot).pop(key)
        self._prune()


class TinyLFU(LRU):
    """LRU that admits an object only if it was requested more often than each object that it would replace.

    Einziger et al., ACM TOS 2017, with exact counts instead of a sketch, since a model has only hundreds of tensors. All
    counts are halved after every ten requests for each known key.
    """

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._counts: dict[str, int] = {}
        self._since = 0

    def request(self, key, size):
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1
        self._since += 1
        if self._since >= 10 * len(counts):
            self._since = 0
            self._counts = {name: count // 2 for name, count in counts.items()}
        return super().request(key, size)

    def _admits(self, key, size):
        missing, counts = self.resident_bytes + size - self.capacity, self._counts
        if missing <= 0:
            return True
        asked = counts.get(key, 0)
        for name, nbytes in self._sizes.items():
            if counts.get(name, 0) >= asked:
                return False
            missing -= nbytes
            if missing <= 0:
                return True
        return False
