"""Peak bandwidths of the devices in data/devices.yaml (each with its source), beside this machine's."""

import pandas as pd

from kit.lab.files import read_yaml
from kit.lab.machine import Machine
from kit.lab.paths import data_file


def load() -> pd.DataFrame:
    """One row for each device: id, name, read_gbps (10^9 bytes a second), memory_bytes, source."""
    return pd.DataFrame(read_yaml(data_file("devices.yaml")))


def with_this_machine(machine: Machine) -> pd.DataFrame:
    """``load()`` with this machine and its measured read bandwidth as the first row."""
    here = {
        "id": machine.id, "name": f"this machine ({machine.cpu}, {machine.cores} cores)", "read_gbps": machine.read_gbps,
        "memory_bytes": machine.memory_bytes, "source": "measured: " + machine.methods.get("read_gbps", ""),
    }  # fmt: skip
    return pd.concat([pd.DataFrame([here]), load()], ignore_index=True)
