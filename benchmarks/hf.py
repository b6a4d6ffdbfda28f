"""One trained file four ways: transformers, the kit under it, the kit alone and llama.cpp, a process each, in turn."""

import pandas as pd

from kit.errors import ReportError
from kit.findings import peers
from kit.lab.paths import models_folder

MODEL = "gemma-3-270m-q4_k_m.gguf"
ENGINES = (
    "transformers", "kit in transformers", "kit in transformers, int8 activations", "kit", "kit, int8 activations",
    "llama.cpp, mmap",
)  # fmt: skip


def run(tokens: int = 64, rounds: int = 5) -> pd.DataFrame:
    """One row an engine: seconds to load (after the process's imports), resident bytes, tokens a second of decode beside
    llama.cpp's, and leading tokens that are those of transformers."""
    path = models_folder() / MODEL
    if not path.exists():
        raise ReportError(f"{path} is not here: kit fetch gemma-3-270m")
    table = peers.compare(path, ENGINES, tokens=tokens, rounds=rounds, progress=True)
    table["of llama.cpp"] = table["speed"] / table["speed"]["llama.cpp, mmap"]
    table["of the file"] = table["resident"] / path.stat().st_size
    return table[["load", "first", "resident", "of the file", "speed", "of llama.cpp", "agree", "reason"]]
