"""hf: a GGUF file as a transformers model whose weights stay in the kit, as blocks in place or in a cache.

    model, tokenizer = kit.hf.load("model.gguf")
    model.generate(**tokenizer("The capital of France is", return_tensors="pt"), max_new_tokens=32)

``load`` needs the extra ``hf`` (``pip install --editable '.[hf]'`` in a checkout); the modules of kit.nn need nothing more.
"""

import importlib
import importlib.util

from kit.errors import ModelError, install

_HOME = {"load": "model", "model_over": "model", "Source": "stored", "generate": "text", "CACHE_NAMES": "held"}
__all__ = list(_HOME)


def installed() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'kit.hf' has no attribute {name!r}")
    if not installed():
        raise ModelError(f"kit.hf.{name} needs transformers; in your checkout of kit run: {install('hf')}")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
