"""Caches of dequantized weights: policies, the live store, the replay, bounds, traces and faults."""

from kit.cache.policies import adaptive, cyclic, offline, pinned, queues  # importing them fills POLICIES
from kit.cache.policies import base as policy

POLICIES = policy.POLICIES  # MIN also needs the future accesses, which kit.replay passes to it
UNLIMITED = {"NoCache": policy.NoCache, "Unbounded": policy.Unbounded, "HashMap": policy.HashMap}
__all__ = ["POLICIES", "UNLIMITED", "adaptive", "cyclic", "offline", "pinned", "policy", "queues"]
