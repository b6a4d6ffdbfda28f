"""A machine and peers that nobody has: what is computed from them is the same wherever the tests run."""

import pandas as pd

from kit.lab.explaining import peers
from kit.lab.measuring.machine import Machine

MACHINE = Machine(
    "m", "cpu", 2, 2**34, 2**34, read_gbps=20.0, write_gbps=10.0, copy_gbps=15.0, fresh_gbps=5.0, f32_gflops=100.0
)
ENGINES = pd.DataFrame(
    {
        "load": 0.1,
        "first": 0.1,
        "tok/s": [10.0, 20.0],
        peers.TIMES: [0.5, 1.0],
        "agree": 8,
        "resident": 1e8,
        "cores of others": 0.0,
        "reason": "",
    },
    ["kit", peers.PEER],
).assign(**dict.fromkeys((peers.KL, "± nats", peers.SAME), float("nan")))
