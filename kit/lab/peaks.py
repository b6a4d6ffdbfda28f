"""Peaks of devices that the reports name (data/devices.yaml, each with its source), beside the machine measured here."""

import pandas as pd

from kit.lab.files import read_yaml
from kit.lab.machine import Machine
from kit.lab.paths import data_file


def load() -> pd.DataFrame:
    """One row a device: id, name, read_gbps (10^9 bytes a second), memory_bytes, source."""
    return pd.DataFrame(read_yaml(data_file("devices.yaml")))


def with_this_machine(machine: Machine) -> pd.DataFrame:
    """The devices of the file, this machine first with its measured read bandwidth."""
    here = {
        "id": machine.id, "name": f"this machine ({machine.cpu}, {machine.cores} cores)", "read_gbps": machine.read_gbps,
        "memory_bytes": machine.memory_bytes, "source": "measured: " + machine.methods.get("read_gbps", ""),
    }  # fmt: skip
    return pd.concat([pd.DataFrame([here]), load()], ignore_index=True)
