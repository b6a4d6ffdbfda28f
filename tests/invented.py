"""A machine that nobody has: what is computed from it is the same wherever the tests run."""

from kit.lab.machine import Machine

MACHINE = Machine(
    "m", "cpu", 2, 2**34, 2**34, read_gbps=20.0, write_gbps=10.0, copy_gbps=15.0, fresh_gbps=5.0, f32_gflops=100.0
)
