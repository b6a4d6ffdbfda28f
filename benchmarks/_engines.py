"""Engines beyond those of kit.lab.engines.processes: ik_llama.cpp, transformers, and the kit under transformers.

IK_LLAMA_CPP names the libllama.so of a build of ik_llama.cpp (commit 8337e4c), which has no wheel.
"""

import importlib.util
import os
from functools import cache, partial
from pathlib import Path

import kit
from kit.errors import ModelError, ReportError
from kit.lab.engines import llama_cpp
from kit.lab.engines.llama_cpp import _BOOL, _INT
from kit.lab.engines.processes import ENGINES, Engine, llama_engine
from kit.system import memory_available, usable_cores
from kit.units import format_bytes

IK = "ik_llama.cpp"
_LAYOUTS = {
    "llama_model_default_params": ((8, -1), (16, 1), (32, 1), (36, 1), (168, 0x00000100), (176, 0x01000000)),
    "llama_context_default_params": (
        (0, -1), (4, 512), (8, 2048), (12, 512), (16, 1), (36, -1), (96, 1), (100, 1), (148, 0x01010000),
    ),
}  # fmt: skip


def no_ik() -> str:
    """Why ik_llama.cpp cannot run here; "" if it can."""
    return "" if os.environ.get("IK_LLAMA_CPP") else f"no build of {IK} is named: set IK_LLAMA_CPP to its libllama.so"


@cache
def _ik_library():
    """Its library, under the names that llama.cpp gave the same functions since. ModelError as engines.llama_cpp.library."""
    if reason := no_ik():
        raise ModelError(reason)
    lib = llama_cpp.loaded("IK_LLAMA_CPP", Path(os.environ["IK_LLAMA_CPP"]))
    lib.llama_model_free, lib.llama_vocab_n_tokens = lib.llama_free_model, lib.llama_n_vocab
    lib.llama_memory_seq_rm = lib.llama_kv_cache_seq_rm
    lib.llama_model_get_vocab = lib.llama_get_memory = lambda held: held.value  # a model is its vocabulary, a context its cache
    return llama_cpp.prepared(lib, _LAYOUTS, IK, "build commit 8337e4c")


class IkLlama(llama_cpp.Llama):
    """A GGUF file mapped by ik_llama.cpp."""

    library, fields = staticmethod(_ik_library), {
        "vocab_only": (168, _BOOL), "n_ctx": (4, _INT), "n_batch": (8, _INT), "n_ubatch": (12, _INT), "flash": (151, _BOOL),
        "type_k": (96, _INT), "type_v": (100, _INT), "prefetch_experts": (185, _BOOL),
    }  # fmt: skip


def _transformers(path, context, weights="", engine="auto"):
    """``weights`` and ``engine`` of kit.hf.load; no weights: transformers' own conversion to float32."""
    import torch
    import transformers

    from kit.hf.held import CACHE

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(usable_cores())
    path = Path(path)
    if weights:
        model = kit.hf.load(path, weights, engine=engine)[0]
    else:
        with kit.open(path) as file:
            need, room = 2 * kit.Weights(file).working_set, memory_available()  # it converts all to float32, one by one
        if need > room:
            raise ReportError(f"needs about {format_bytes(need)} to load this file, {format_bytes(room)} are free")
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)

    @torch.inference_mode()
    def logits(ids, held, wanted):
        out = model(torch.tensor([ids]), **{CACHE: held}, use_cache=True, logits_to_keep=wanted)
        return out.logits[0].numpy(), out[CACHE]

    return logits


def _no_transformers() -> str:
    return "" if importlib.util.find_spec("transformers") else "not installed: pip install transformers"


def _in_transformers(**options) -> Engine:
    return Engine(partial(_transformers, **options), ("kit.hf.model", "kit.cpu.linear"), _no_transformers, __name__)


_MODULES = "torch", "transformers.modeling_utils", "transformers.modeling_gguf_pytorch_utils"
ENGINES |= {
    IK: Engine(partial(llama_engine, make=IkLlama), (), no_ik, __name__),
    "transformers": Engine(_transformers, _MODULES, _no_transformers, __name__),
    "kit in transformers": _in_transformers(weights="blocks"),
    "kit in transformers, modules": _in_transformers(weights="blocks", engine="modules"),
    "kit in transformers, int8 activations": _in_transformers(weights="blocks-int8"),
}
