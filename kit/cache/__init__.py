"""What to keep of the dequantised weights: policies, the live store, the replay, bounds, traces and faults."""

from kit.cache import adaptive, cyclic, offline, pinned, policy, queues  # each enters its policies into LIMITED

LIMITED = policy.LIMITED  # MIN also needs the future, which kit.replay tells it
UNLIMITED = {"NoCache": policy.NoCache, "HashMap": policy.HashMap}
__all__ = ["LIMITED", "UNLIMITED", "adaptive", "cyclic", "offline", "pinned", "policy", "queues"]
