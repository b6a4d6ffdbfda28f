"""Benchmarks: the kit compared with its peers and the machine's limits; see `python -m benchmarks --help`."""

import kit

kit.tune_torch()  # before any of them imports torch
