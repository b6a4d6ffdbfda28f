"""One trained file four ways: transformers, the kit under it, the kit alone and llama.cpp, a process each, in turn."""

import pandas as pd

import kit
from kit.findings import peers
from kit.gguf.trained import fetch
from kit.model import perplexity

ENGINES = {  # engine -> its row in README
    "transformers": "transformers, `gguf_file=` (float32)",
    "kit in transformers": "`kit.hf.load`",
    "kit in transformers, int8 activations": '`kit.hf.load(..., "blocks-int8")`',
    "kit": "`kit generate`",
    "kit, int8 activations": "`kit generate --linear fused-int8`",
    "llama.cpp, mmap": "llama.cpp",
}


def run(prompt: int = 512, tokens: int = 24, rounds: int = 3) -> pd.DataFrame:
    """One row an engine: the columns of peers.compare but the samples, decode beside llama.cpp's and transformers' and bytes
    beyond the imports beside the file's."""
    path = fetch("gemma-3-270m")
    with kit.open(path) as file:
        tokenizer = kit.Transformer(kit.Weights(file)).tokenizer
    ids = [tokenizer.bos, *perplexity.encode(tokenizer, perplexity.english(), prompt - 1)]
    table = peers.compare(path, tuple(ENGINES), ids, tokens, rounds, progress=True)
    table["of llama.cpp"] = table["speed"] / table["speed"]["llama.cpp, mmap"]
    table["of transformers"] = table["speed"] / table["speed"]["transformers"]
    table["of the file"] = table["beyond imports"] / path.stat().st_size
    return table.drop(columns="samples")


def markdown(rows: list[dict]) -> str:
    """README's table of one run's rows."""
    head = ("imports", "then opens in", "resident", "of it imports", "the file's pages", "prefill", "decode", "of transformers")
    head = ("Gemma 3 270M, Q4_K_M (253 MB)", *head, "of llama.cpp", "first tokens as transformers'")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        sizes = row["resident"], row["resident"] - row["beyond imports"], row["mapped"]
        cells = ENGINES[row["engine"]], f"{row['imports']:.1f} s", f"{row['load']:.1f} s", *(f"{n / 1e6:.0f} MB" for n in sizes)
        speeds = f"{row['prefill']:.0f} tok/s", f"{row['speed']:.1f} tok/s"
        ratios = f"{row['of transformers']:.2f}", f"{row['of llama.cpp']:.2f}", f"{row['agree']:.0f}"
        lines.append("| " + " | ".join((*cells, *speeds, *ratios)) + " |")
    return "\n".join(lines)
