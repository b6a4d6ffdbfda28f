"""One trained file four ways: transformers, the kit under it, the kit alone and llama.cpp, a process each, in turn."""

import pandas as pd

from kit.findings import peers
from kit.gguf.trained import fetch

ENGINES = (
    "transformers", "kit in transformers", "kit in transformers, int8 activations", "kit", "kit, int8 activations",
    "llama.cpp, mmap",
)  # fmt: skip


def run(tokens: int = 64, rounds: int = 5) -> pd.DataFrame:
    """One row an engine: seconds of imports and then to load, resident bytes with and without the imports, tokens a second of
    decode beside those of llama.cpp and transformers, and leading tokens that are those of transformers."""
    path = fetch("gemma-3-270m")
    table = peers.compare(path, ENGINES, tokens=tokens, rounds=rounds, progress=True)
    table["of llama.cpp"] = table["speed"] / table["speed"]["llama.cpp, mmap"]
    table["of transformers"] = table["speed"] / table["speed"]["transformers"]
    table["of the file"] = table["beyond imports"] / path.stat().st_size
    return table[["imports", "load", "first", "resident", "beyond imports", "of the file", "speed", "of llama.cpp",
                  "of transformers", "agree", "reason"]]  # fmt: skip
