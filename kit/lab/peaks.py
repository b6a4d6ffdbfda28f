"""Peak bandwidths of the devices in data/devices.yaml, each with its source."""

import pandas as pd

from kit.lab.files import read_yaml
from kit.lab.paths import data_file


def load() -> pd.DataFrame:
    """One row for each device: id, name, read_gbps (10^9 bytes a second), memory_bytes, source."""
    return pd.DataFrame(read_yaml(data_file("devices.yaml")))
