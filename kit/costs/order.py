"""The order in which a decode asks for weights: recorded from a live decode, or from the tensors alone."""

from dataclasses import dataclass

import numpy as np
import torch

import kit
from kit.cache.traces import Requests
from kit.cpu.dequantize import FORMATS as DECODABLE
from kit.errors import KitError, ModelError


@dataclass(frozen=True)
class Order:
    """``tokens[t]`` names the tensors that token t asks for, in order (``stack[expert]`` for an expert).

    ``seconds``: of each token of the decode that recorded it, straight from the blocks; ``rest``: of those, the median
    outside all weights (attention, norms, embedding). Both are empty or 0 when ``reason`` says why the file cannot
    be run; then every matrix and vector counts as used once a token, in file order. ``left_out``: tensors that nothing
    can dequantize.
    """

    tokens: list[list[str]]
    seconds: tuple[float, ...] = ()
    rest: float = 0.0
    reason: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Every tensor that is used, in the order of its first use."""
        return list(dict.fromkeys(name for token in self.tokens for name in token))

    def requests(self, nbytes) -> Requests:
        """The same as accesses to a cache; ``nbytes(name)`` is what a tensor occupies there."""
        size = {name: nbytes(name) for name in self.names}
        keys = [name for token in self.tokens for name in token]
        numbers = [number for number, token in enumerate(self.tokens) for _ in token]
        return Requests(keys, [size[key] for key in keys], numbers)


def order_of(file, tokens: int = 4) -> Order:
    """Decode ``tokens`` tokens straight from the blocks and keep what they asked for; else take the file's own order."""
    try:
        return _recorded(file, tokens)
    except KitError as error:
        usable = [name for name, info in file.tensors.items() if info.qtype in DECODABLE and info.elements]
        if not usable:
            raise ModelError(f"{file.path}: no tensor of a format that the kit can dequantize") from None
        left_out = tuple(name for name in file.tensors if name not in usable)
        return Order([_once(file, usable)] * tokens, reason=str(error), left_out=left_out)


def _recorded(file, tokens):
    weights = kit.Weights(file)
    steps = Decode(weights, "fused")
    steps.step()  # pages, threads and compiled kernels are not part of a token
    weights.trace.clear()
    order, seconds, rest = [], [], []
    for _ in range(tokens):
        steps.step()
        spans = weights.trace.frame()
        order.append(spans.loc[spans["what"].isin(("linear", "access")), "tensor"].tolist())
        seconds.append(float(spans.loc[spans["what"] == "token", "seconds"].sum()))
        rest.append(seconds[-1] - float(spans.loc[spans["what"] == "linear", "seconds"].sum()))
        weights.trace.clear()
    return Order(order, tuple(seconds), float(np.median(rest)))


def _once(file, names) -> list[str]:
    """Every tensor once, each expert of a stack by itself; an embedding only where there is no other output matrix."""
    order = []
    for name in names:
        shape = file.tensors[name].shape
        if name == "token_embd.weight" and "output.weight" in file.tensors:
            continue
        order += [f"{name}[{expert}]" for expert in range(shape[0])] if len(shape) == 3 else [name]
    return order


class Decode:
    """Tokens one after another through kit.Transformer, fixed inputs, the context growing from empty."""

    def __init__(self, weights, linear: str, tokens: int = 64):
        self.model = kit.Transformer(weights, linear=linear)
        self.cache = self.model.new_cache(min(tokens, self.model.max_context))

    def step(self) -> torch.Tensor:
        """Logits of one more token; starts again from an empty context when it is full."""
        if self.cache.length == self.cache.context:
            self.cache.truncate(0)
        return self.model.step([1 + self.cache.length % 3], self.cache)


class Walk:
    """Every tensor applied once to a random vector: what is left of a token when nobody knows the forward pass."""

    def __init__(self, weights, linear: str, order: list[str], seed: int = 0):
        from kit.model.linear import linear_named

        self.weights, self.order, self._apply = weights, order, linear_named(linear).apply
        random = torch.Generator().manual_seed(seed)
        widths = {weights.info(name).shape[-1] for name in order}
        self._inputs = {width: torch.randn(1, width, generator=random) for width in widths}

    def step(self) -> torch.Tensor:
        """The products one after another, 1-D; a vector is only asked for."""
        trace, results = self.weights.trace, []
        with trace.span("token"):
            for name in self.order:
                if is_matrix(self.weights.info(name)):
                    results.append(self._apply(self.weights, name, self._inputs[self.weights.info(name).shape[-1]]))
                else:
                    self.weights[name]
        return torch.cat([result.flatten() for result in results])


def is_matrix(info) -> bool:
    """Whether a tensor (or each expert of a stack) is something to multiply by, not a vector."""
    return len(info.shape) >= 2
