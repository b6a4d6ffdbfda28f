"""Whether the tensors of a file are those that its hyperparameters tell of, and its layers can be run."""

import itertools
import re

from kit.errors import ModelError
from kit.gguf.names import layer_of
from kit.model.config import Config
from kit.model.keys import ModelKeys

# Tensors that no token of text reads: of images and sounds, and of the prediction of further tokens.
_OTHERS = re.compile(r"(v|a|mm|resampler)\.|blk\.\d+\.(nextn|exp_probs_b_vl)\.|nextn\.")


def check_tensors(file, config: Config, of: str) -> None:
    """ModelError where a tensor that a drafter needs is missing, or has another shape."""
    for name, shape in config.tensors().items():
        if (tensor := file.tensors.get(name)) is None or tensor.shape != shape:
            has = f"has shape {tensor.shape}" if tensor else "is missing"
            raise ModelError(f"{file.path}: the tensor {name!r} of {of} {has}; expected shape {shape}")


def check_file(file, config: Config) -> None:
    """ModelError where kit cannot run such layers, or where a tensor is missing, has another shape or no place."""
    layers = (f"{each}: the kit cannot run such a {config.architecture} model" for each in _of_layers(config))
    for problem in itertools.chain(layers, _of_names(file, config), _of_shapes(file, config)):
        raise ModelError(f"{file.path}: {problem}")


def _of_layers(config):
    for mixer, feed_forward, *_ in config.layers:
        yield from (problem for sound, problem in mixer.problems() if not sound)
        if hasattr(feed_forward, "routing"):
            yield from _of_routing(feed_forward.experts, feed_forward.routing)


def _of_routing(experts, routing):
    used, of = routing.groups_used, routing.groups
    if routing.used > experts:
        yield f"{routing.used} of {experts} experts a token"
    if experts % of or (of > 1 and experts // of < 2):
        yield f"{experts} experts in {of} groups"
    if of > 1 and used > of:
        yield f"{used} of {of} groups a token"
    if of > 1 and routing.used > used * (experts // of):
        yield f"{routing.used} experts a token of {used} of {of} groups"


def _of_names(file, config):
    layers, predicting = len(config.layers), ModelKeys(file).count("nextn_predict_layers", 0)
    known = config.tensors() | config.optional_tensors() | config.unread_tensors()
    key, again = f"{file.architecture}.nextn_predict_layers", "the logits: convert the model again"
    for name in file.tensors:
        layer = layer_of(name)
        if ".nextn." in name and 0 <= layer < layers:
            problem = f"the tensor {name!r} belongs to a layer that predicts further tokens, but {key} does not count it"
            yield f"{problem}, so its layer would change {again}"
        if name in known or _OTHERS.match(name) or layers <= layer < layers + predicting:
            continue
        if layer >= layers + predicting:
            problem = f"the key {file.architecture}.block_count says {layers + predicting} layers: convert the model again"
            yield f"the file has the tensor {name!r}, but {problem}"
        message = f"the tensor {name!r} has no place in a {config.architecture} model that the kit can run"
        yield f"{message}; ignoring it would give wrong logits"
    present, further = set(map(layer_of, file.tensors)), {layer_of(name) for name in file.tensors if ".nextn." in name}
    for layer in range(layers, layers + predicting):  # whose own tensors may have been dropped, all of them
        if layer in present - further:
            yield f"the key {key} counts layer {layer}, which has no tensor of nextn, so leaving it out would change {again}"


def _of_shapes(file, config):
    needed = config.tensors()
    for name, shape in (needed | config.optional_tensors() | config.unread_tensors()).items():
        tensor = file.tensors.get(name)
        if tensor is None and name in needed:
            yield f"the tensor {name!r} is missing; expected shape {shape}"
        if tensor is not None and tensor.shape != shape:
            yield f"the tensor {name!r} has shape {tensor.shape}; expected {shape}"
