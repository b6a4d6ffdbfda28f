"""Benchmarks: the kit beside its peers and the machine's limits; see `python -m benchmarks --help`."""
