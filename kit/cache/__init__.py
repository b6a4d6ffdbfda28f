"""What to keep of the dequantised weights: policies, the live store, the replay, bounds, traces and faults."""

from kit.cache.adaptive import ARC, LIRS, TinyLFU
from kit.cache.cyclic import CyclicAware
from kit.cache.offline import MIN
from kit.cache.pinned import Pinned
from kit.cache.policy import FIFO, LFU, LIP, LRU, MRU, HashMap, NoCache, Random, TwoRandom
from kit.cache.queues import CLOCK, S3FIFO, SIEVE

LIMITED = {  # every policy that a capacity alone makes, by name; MIN also needs the future, which kit.replay tells it
    policy.__name__: policy
    for policy in (
        FIFO, LRU, CLOCK, SIEVE, S3FIFO, ARC, LFU, Random, TwoRandom, LIRS, LIP, MRU, TinyLFU, Pinned, CyclicAware, MIN,
    )
}  # fmt: skip
UNLIMITED = {"NoCache": NoCache, "HashMap": HashMap}
