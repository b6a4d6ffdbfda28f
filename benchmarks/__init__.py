"""Benchmarks: the kit beside its peers and the machine's limits; see `python -m benchmarks --help`."""

import kit

kit.tune_torch()  # before any of them imports torch
