"""The model of a file as transformers knows it, without a number in it: its configuration and its modules."""

import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from kit.errors import ModelError
from kit.gguf.metadata import MetadataArray
from kit.gguf.reader import GGUFFile


def config_of(file: GGUFFile) -> transformers.PretrainedConfig:
    """The configuration, by transformers' own tables; ModelError when it has none for the architecture.

    transformers reads a whole file for it, word by word of the vocabulary: it gets one of the metadata and the tensors' names.
    """
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: no tensor 'token_embd.weight': this is not a language model")
    vocabulary = file.tensors["token_embd.weight"].shape[0]
    with tempfile.TemporaryDirectory() as folder:
        _write_head(Path(folder, "head.gguf"), file, file.metadata | {f"{file.architecture}.vocab_size": vocabulary})
        try:
            return transformers.AutoConfig.from_pretrained(folder, gguf_file="head.gguf", vocab_size=vocabulary)
        except (ValueError, KeyError) as error:
            said = f"transformers cannot configure {file.architecture!r}: {str(error).rstrip('.')}"
            raise ModelError(f"{file.path}: {said}; kit explain works on any file") from None


def _write_head(path, file, metadata):
    writer = gguf.GGUFWriter(path, file.architecture)
    for key, value in metadata.items():
        if isinstance(value, MetadataArray):
            if len(value) <= 4096 and not key.startswith("tokenizer."):
                writer.add_array(key, value.tolist())
        elif key != "general.architecture":
            kinds = {bool: writer.add_bool, int: writer.add_int64, float: writer.add_float64, str: writer.add_string}
            kinds[type(value)](key, value)
    writer.add_array("tokenizer.ggml.tokens", ["<s>"])
    for name in file.tensors:
        writer.add_tensor(name, np.zeros(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def skeleton(file: GGUFFile, config, model_class=None) -> transformers.PreTrainedModel:
    """The model on the meta device, in the class that its configuration names (or ``model_class``)."""
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
