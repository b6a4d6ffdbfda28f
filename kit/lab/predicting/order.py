"""The order in which a decode uses weights, recorded from a live decode or derived from the file's tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

import kit
from kit import hf
from kit.cache.traces import Requests
from kit.cpu.threads import torch_alone
from kit.errors import KitError, ModelError
from kit.gguf.foreign import check_model
from kit.gguf.formats import FORMATS, described
from kit.gguf.names import find_tensor, layer_of
from kit.gguf.uses import Use, assumed, uses_of
from kit.lab.measuring import state
from kit.model.architectures import ARCHITECTURES
from kit.model.linear import linear_named
from kit.products import PRODUCTS

FUSED = tuple(row.linear for row in PRODUCTS.values())


class Kind(NamedTuple):
    """ggml type and shape (of one expert of a stack); tensors of one kind cost the same."""

    qtype: str
    shape: tuple[int, ...]


def kind_of(weights, name: str) -> Kind:
    """The kind of ``name``, or of ``stack[expert]``."""
    shape = _shape(weights, name)
    return Kind(weights.info(name).qtype, (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape)


def kinds_of(file) -> set[Kind]:
    """Every kind of an open file, of whole tensors and of experts."""
    weights, stacks = kit.Weights(file), [f"{name}[0]" for name, info in file.tensors.items() if len(info.shape) == 3]
    return {kind_of(weights, name) for name in [*file.tensors, *stacks]}


def _shape(weights, name):
    """The shape of a tensor, or of one expert of a stack."""
    shape = weights.info(name).shape
    return shape if find_tensor(weights.file, name)[1] is None else shape[1:]


class ProgramCost(NamedTuple):
    """Cost of a token that runs as a recorded program (kit.model.plan): seconds of a product by kind, and of the rest."""

    rest: float
    products: dict[Kind, float]


@dataclass(frozen=True)
class Order:
    """``tokens[t]``: names of the tensors that token t uses, in order (``stack[expert]`` for an expert).

    ``seconds``: of each token of the recording decode, which reads blocks and runs no program. ``rest``: median seconds of
    a token outside uses of weights (attention, norms, embedding). ``reason``: why the file cannot be run, else ""; with a
    reason, ``seconds`` is empty, and the tokens are drawn (kit.gguf.uses), with what was ``assumed`` in words.
    ``left_out``: tensors of a format that the kit cannot dequantize. ``programs``: linear variant -> cost of a token as a
    program. ``via``: row of DECODES. ``uses``: what a token uses of the file, rows of the embedding included.
    """

    tokens: list[list[str]]
    seconds: tuple[float, ...] = ()
    rest: float = 0.0
    reason: str = ""
    left_out: tuple[str, ...] = ()
    programs: dict[str, ProgramCost] = field(default_factory=dict)
    via: str = "kit"
    uses: tuple[Use, ...] = ()
    assumed: str = ""

    @property
    def kept_as(self) -> tuple:
        """What tells it from another in a run (kit.lab.measuring.kept): its times differ from one recording to the next."""
        return self.tokens, self.reason, self.left_out, self.via

    @property
    def names(self) -> list[str]:
        """Every tensor that is used, in the order of its first use."""
        return list(dict.fromkeys(name for token in self.tokens for name in token))

    def requests(self, nbytes) -> Requests:
        """The order as accesses to a cache; ``nbytes(name)``: bytes of a tensor there."""
        size = {name: nbytes(name) for name in self.names}
        keys = [name for token in self.tokens for name in token]
        numbers = [number for number, token in enumerate(self.tokens) for _ in token]
        return Requests(keys, [size[key] for key in keys], numbers)

    def scaled(self, times: float, tokens: list[list[str]], uses) -> "Order":
        """The order of a model with so many ``times`` the layers: ``tokens`` and ``uses`` are its own, its rest grows."""
        programs = {linear: program._replace(rest=times * program.rest) for linear, program in self.programs.items()}
        return replace(self, tokens=tokens, rest=times * self.rest, programs=programs, uses=tuple(uses))


def order_of(file, tokens: int = 4, via: str = "", skew: float = 0.0) -> Order:
    """Decode ``tokens`` tokens from blocks and record the tensors in use; for a file that cannot run, draw what they use.
    ``via``: a row of DECODES, whose failure is an error; "": the kit's pass, or transformers for other architectures.
    ``skew``: of the drawn experts, as in `draw`."""
    check_model(file)
    if via:
        return _recorded(file, tokens, via)
    try:
        kit_has_it = file.architecture in ARCHITECTURES or not hf.installed()
        return _recorded(file, tokens, "kit" if kit_has_it else "transformers")
    except KitError as error:
        some = {name: FORMATS[info.qtype] for name, info in file.tensors.items() if info.is_known and info.elements}
        known = {name for name, format in some.items() if described(format)}
        if not known:
            raise ModelError(f"{file.path}: no tensor of a format that the kit can dequantize") from None
        uses = [use for use in uses_of(file) if use.name in known]
        left_out = tuple(name for name in file.tensors if name not in known)
        order = draw(uses, tokens, skew)
        return Order(order, reason=str(error), left_out=left_out, uses=tuple(uses), assumed=assumed(file, uses))


def _recorded(file, tokens, via):
    weights = kit.Weights(file)
    steps = DECODES[via](weights, "fused")
    steps.model.unplanned = "a recorded program does not fetch vectors, but the order of all uses is wanted"
    steps.step()  # warm-up: pages, threads, compiled kernels
    weights.trace.clear()
    order, seconds, rest = [], [], []
    for _ in range(tokens):
        steps.step()
        spans = weights.trace.frame()
        order.append(spans.loc[spans["what"].isin(("linear", "access")), "tensor"].tolist())
        seconds.append(float(spans.loc[spans["what"] == "token", "seconds"].sum()))
        vectors = (spans["what"] == "access") & ~spans["tensor"].str.endswith("bias")  # a bias is part of a product's span
        rest.append(seconds[-1] - float(spans.loc[(spans["what"] == "linear") | vectors, "seconds"].sum()))
        weights.trace.clear()
    programs = {linear: _program(file, linear, min(tokens, 8)) for linear in FUSED if via == "kit"}
    programs = {name: program for name, program in programs.items() if program}
    known = {name.partition("[")[0] for token in order for name in token}
    if via == "transformers":  # which holds convolutions and the like as its own: they are read all the same
        known |= {name for name in file.tensors if not name.startswith("enc.")}
    uses = tuple(use for use in uses_of(file) if use.is_rows or use.name in known)
    return Order(order, tuple(seconds), float(np.median(rest)), programs=programs, via=via, uses=uses)


def _program(file, linear, tokens) -> ProgramCost | None:
    """Median costs over ``tokens`` tokens of a recorded program, taken again up to twice if other processes disturb it; None
    when the pass cannot be recorded."""
    weights = kit.Weights(file)
    steps = Decode(weights, linear)
    if steps.model.unplanned:
        return None

    def timed():
        for _ in range(3):  # the second token records the program, the third warms it up
            steps.step()
        weights.trace.clear()
        for _ in range(tokens):
            steps.step()
        return weights.trace.frame()

    spans, _ = state.undisturbed(timed, tries=3)
    uses = spans[spans["what"] == "linear"]
    kinds = uses.assign(kind=[kind_of(weights, name) for name in uses["tensor"]]).groupby("kind")["seconds"]
    token = float(spans.loc[spans["what"] == "token", "seconds"].median())
    products = kinds.median()
    return ProgramCost(max(0.0, token - float((products * kinds.count()).sum()) / tokens), products.to_dict())


class Decode:
    """Decode through kit.Transformer with fixed token ids, from an empty context."""

    def __init__(self, weights, linear: str, tokens: int = 64):
        self.model = kit.Transformer(weights, linear=linear)
        self.cache = self.model.new_cache(min(tokens, self.model.max_context))

    def step(self) -> torch.Tensor:
        """Logits of one more token; a full context is emptied first."""
        if self.cache.length == self.cache.context:
            self.cache.truncate(0)
        return self.model.step([1 + self.cache.length % 3], self.cache)


class DecodeInTransformers:
    """Decode through transformers' model of the file, over the same weights (kit.hf)."""

    def __init__(self, weights, linear: str, tokens: int = 64):
        self.model, self._context, self._held = hf.model_over(hf.Source(weights, linear)), tokens, 0

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        """Logits of one more token; a full context is emptied first."""
        first = self._held % self._context == 0
        ids = torch.tensor([[1 + self._held % self._context % 3]], dtype=torch.int64, device="cpu")
        past = {} if first else self._past
        if self.model.config.is_encoder_decoder:
            past = {"decoder_input_ids": ids} | past
        out = self.model(**past if "encoder_outputs" in past else past | {"input_ids": ids}, use_cache=True)
        self._past = {name: held for name, held in out.items() if name in hf.CACHE_NAMES}
        if self.model.config.is_encoder_decoder:
            self._past["encoder_outputs"] = (out.encoder_last_hidden_state,)
        self._held += 1
        return out.logits[0, -1]


DECODES = {"kit": Decode, "transformers": DecodeInTransformers}


class Walk:
    """One use of every tensor in order: a substitute for a token of a file that cannot be run."""

    def __init__(self, weights, linear: str, order: list[str]):
        self.trace, self._uses = weights.trace, [use_of(weights, linear, name) for name in order]

    def step(self) -> torch.Tensor:
        """All products and fetched vectors in order, concatenated to one axis."""
        with self.trace.span("token"), torch_alone():
            results = [use() for use in self._uses]
        return torch.cat([result.flatten() for result in results])


def use_of(weights, linear: str, name: str) -> Callable[[], torch.Tensor]:
    """A function that does what a decode does with ``name`` for one token: multiply by a matrix, or fetch what is no matrix."""
    shape = _shape(weights, name)
    if len(shape) != 2:
        return lambda: weights[name]
    x = torch.randn(1, shape[-1], generator=torch.Generator().manual_seed(shape[-1]), dtype=torch.float32, device="cpu")
    return lambda: linear_named(linear).apply(weights, name, x)


def draw(uses: list[Use], tokens: int, skew: float = 0.0, seed: int = 0) -> list[list[str]]:
    """``[t]``: names of the tensors that token t uses, ``stack[expert]`` for an expert, whose matrices follow one another.

    Each layer draws its experts without replacement, the k-th most popular with a probability proportional to k^-``skew``
    (0: evenly); which are popular differs by layer. Embeddings of which a token takes a row are left out.
    """
    random, orders, drawn = np.random.default_rng(seed), {}, []
    groups = [
        (key, [use.name for use in group])
        for key, group in groupby((use for use in uses if not use.is_rows), lambda use: (layer_of(use.name), use.used, use.of))
    ]
    for _ in range(tokens):
        names = []
        for (layer, used, of), members in groups:
            if of == 1:
                names += members
                continue
            popular = orders.setdefault((layer, of), random.permutation(of))
            weights = np.arange(1, of + 1, dtype=float) ** -skew
            # the largest of log(weight) + Gumbel noise are a draw without replacement
            best = np.argsort(np.log(weights) + random.gumbel(size=of))[of - used :]
            names += [f"{name}[{expert}]" for expert in sorted(popular[best].tolist()) for name in members]
        drawn.append(names)
    return drawn
