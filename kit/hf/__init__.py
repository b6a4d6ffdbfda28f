"""hf: a GGUF file as a transformers model whose weights stay in the kit: blocks in place, or any of its caches.

    model, tokenizer = kit.hf.load("model.gguf")
    model.generate(**tokenizer("The capital of France is", return_tensors="pt"), max_new_tokens=32)

``load`` needs ``pip install 'gguf-kit[hf]'``; the modules of kit.nn need nothing beyond the kit.
"""

import importlib.util

from kit.errors import ModelError

__all__ = ["load"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'kit.hf' has no attribute {name!r}")
    if importlib.util.find_spec("transformers") is None:
        raise ModelError("kit.hf.load needs transformers: pip install 'gguf-kit[hf]'")
    from kit.hf.model import load

    globals()["load"] = load
    return load
