"""A cap for each layer: the capacity in equal parts, each with an LRU of its own."""

from kit.cache.policies.base import LRU, Policy
from kit.gguf.names import layer_of


class ByLayer(Policy, limited=False):
    """``layers`` LRUs of capacity / layers each; an object goes to that of its layer. No layer can take another's room."""

    def __init__(self, capacity: int | str, layers: int = 1):
        super().__init__(capacity)
        self._parts = [LRU(max(1, self.capacity // layers)) for _ in range(layers)]

    def _part(self, key) -> Policy:
        return self._parts[layer_of(key) % len(self._parts)]

    def request(self, key, size):
        return self._part(key).request(key, size)

    def insert(self, key, size):
        evicted = self._part(key).insert(key, size)
        if evicted is not None:
            for name in evicted:
                self.resident_bytes -= self._sizes.pop(name)
            self._sizes[key] = size
            self.resident_bytes += size
        return evicted
