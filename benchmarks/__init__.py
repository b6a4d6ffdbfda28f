"""Benchmarks: the kit beside its peers and the machine, in one run. `python -m benchmarks` says how."""
