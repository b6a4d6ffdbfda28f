"""The transformers model of a file without its weights: configuration and modules."""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from kit.errors import ModelError
from kit.gguf import writer
from kit.gguf.metadata import MetadataArray
from kit.gguf.reader import GGUFFile, TensorInfo


def config_of(file: GGUFFile) -> transformers.PretrainedConfig:
    """The configuration by transformers' tables; ModelError when it has none for the architecture.

    transformers reads a whole file, which is slow; here it gets a small one with the metadata and the tensors' names.
    """
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: no tensor 'token_embd.weight': this is not a language model")
    vocabulary = file.tensors["token_embd.weight"].shape[0]
    with tempfile.TemporaryDirectory() as folder:
        _write_head(Path(folder, "head.gguf"), file, vocabulary)
        try:
            return transformers.AutoConfig.from_pretrained(folder, gguf_file="head.gguf", vocab_size=vocabulary)
        except (ValueError, KeyError) as error:
            said = f"transformers cannot configure {file.architecture!r}: {str(error).rstrip('.')}"
            raise ModelError(f"{file.path}: {said}; kit explain works on any file") from None


def _write_head(path, file, vocabulary):
    metadata = {f"{file.architecture}.vocab_size": vocabulary, "tokenizer.ggml.tokens": ["<s>"]}
    for key, value in file.metadata.items():
        if not isinstance(value, MetadataArray):
            metadata.setdefault(key, value)
        elif len(value) <= 4096 and not key.startswith("tokenizer."):
            metadata[key] = value.tolist() if value.kind == "string" else value.numpy()
    specs = [TensorInfo(name, "F32", (1,), 0, 4) for name in file.tensors]
    writer.write(path, metadata, specs, [np.zeros(1, np.float32)] * len(specs))


def skeleton(file: GGUFFile, config, model_class=None) -> transformers.PreTrainedModel:
    """The model on the meta device, of the class named in its configuration (or ``model_class``)."""
    cls = model_class or _class_of(file, config)
    with transformers.utils.ContextManagers(cls.get_init_context(torch.float32, False, False, None)):
        return cls(config).eval()


def _class_of(file, config):
    for name in config.architectures or ():
        return getattr(transformers, name)
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM, transformers.AutoModel):
        if type(config) in auto._model_mapping:
            return auto._model_mapping[type(config)]
    raise ModelError(f"{file.path}: transformers has no model for {type(config).__name__}; give kit.hf.load a model_class")
