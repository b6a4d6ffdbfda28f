"""Statistics of a cache, counted the same way in a live store and in a replay."""

from dataclasses import dataclass

from kit.shown import Shown
from kit.units import format_bytes


@dataclass(frozen=True, repr=False)
class Stats(Shown):
    """Counts of one run. Every get is exactly one of: a hit, a miss, shared, prefetched or an error.

    ``misses``: gets that loaded, including those whose object was not kept (``bypassed``). ``shared``: gets that waited
    for the load of another thread. ``prefetched``: gets whose load a prefetch had started. A replay has one thread and no
    prefetch: there ``shared``, ``prefetched`` and ``errors`` are 0.
    """

    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    shared: int = 0
    prefetched: int = 0
    errors: int = 0
    evictions: int = 0
    entries: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0  # most bytes resident at once
    bytes_requested: int = 0
    bytes_hit: int = 0
    bytes_loaded: int = 0

    @property
    def gets(self) -> int:
        """Number of gets."""
        return self.hits + self.misses + self.shared + self.prefetched + self.errors

    @property
    def hit_rate(self) -> float:
        """Hits over gets, 0 without gets."""
        return self.hits / self.gets if self.gets else 0.0

    @property
    def byte_hit_rate(self) -> float:
        """Bytes of hits over bytes of gets, 0 without gets."""
        return self.bytes_hit / self.bytes_requested if self.bytes_requested else 0.0

    def _facts(self):
        facts = {
            "hits": f"{self.hits:,} of {self.gets:,} gets ({self.hit_rate:.0%})",
            "bytes hit": f"{format_bytes(self.bytes_hit)} of {format_bytes(self.bytes_requested)} ({self.byte_hit_rate:.0%})",
            "loaded": format_bytes(self.bytes_loaded),
            "held": f"{format_bytes(self.resident_bytes)} in {self.entries:,} entries",
            "at most": format_bytes(self.peak_bytes),
        }
        rare = {name: getattr(self, name) for name in ("misses", "bypassed", "shared", "prefetched", "errors", "evictions")}
        return "Stats", facts | {name: f"{count:,}" for name, count in rare.items() if count}
