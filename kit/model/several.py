"""The forward pass of a few tokens at the end of a sequence, recorded as kit.model.plan records that of one.

Each matrix is read once for all of them. Where activations are rounded, each token's numbers are bit for bit those of a pass
over it alone: otherwise a difference in the last bit would round some activations the other way. Experts are chosen by each
token for itself. After the pass, a part of the tokens can be kept: what a recurrent layer remembers is computed again for those
from what the layer saw, which the pass left in its place.
"""

import torch

from kit.cpu.linear import Activations
from kit.gguf.names import layer_of
from kit.model.forward import matrices, scaled
from kit.model.plan import Plan, obstacle
from kit.products import PRODUCTS


class NotRecorded(Exception):
    """A pass that cannot be recorded for several tokens, and why."""


class PlanOfSeveral(Plan):
    """Ops that record a model's pass over ``tokens`` tokens, 2 or more, after those in a cache; NotRecorded says why not."""

    def __init__(self, model, cache, tokens: int):
        if reason := obstacle(model) or ("experts are not all in memory" if model.weights.experts else ""):
            raise NotRecorded(reason)
        self.tokens, self._first = tokens, 0
        super().__init__(model, cache)
        self._again = self.program.part(self.program.scans)  # the recurrent layers alone

    def steps(self, tokens, position: int) -> torch.Tensor:
        """Logits (tokens, vocabulary) after each of the tokens, whose keys and values are written from ``position`` on."""
        for step, (blocks, n) in self._embedded.items():
            self.program.set([step], blocks=blocks[int(tokens[n])])
        self.program.move_to(position)
        self.program.run()
        self._trace(position + self.tokens - 1)
        return scaled(self._logits.clone(), self.config)

    def again(self, count: int) -> None:
        """Carry the states from those before the last pass to those after the first ``count`` of its tokens."""
        for step in range(len(self._again.steps)):
            self._again.set([step], tokens=count)
        self._again.run()

    # ---- recording

    def do(self, name, *operands, **constants):
        if not self.program.takes_views(name) and any(isinstance(x, torch.Tensor) and not x.is_contiguous() for x in operands):
            raise NotRecorded(f"{name} of several tokens takes no view")
        return super().do(name, *operands, **constants)

    def _whole(self, x):
        """x (tokens, ...) itself, or a contiguous copy."""
        if x.is_contiguous():
            return x
        y = self.new(*x.shape)
        for part, target in zip(x, y, strict=True):
            self.program.place(part[None] if part.dim() == 1 else part, target[None] if part.dim() == 1 else target)
        return y

    def end(self, what, start, tensor="", layer=-1, nbytes=0, outcome="", part=0, parts=1):
        if "_exps." in tensor:
            stack, _, place = tensor.removesuffix("]").partition("[")
            tensor = f"{stack}[{self._first + int(place)}]"
        super().end(what, start, tensor, layer, nbytes, outcome, part, parts)

    def input(self, x):
        return self._activations(self._whole(x))

    def _activations(self, x):
        return Activations(x, recorded=True, alike=not PRODUCTS[self._how].exact)

    def normed(self, x, weight, bias):
        return super().normed(self._whole(x), weight, bias)

    def plus(self, x, y, factor):
        if x.shape != y.shape and len(x) > 1:  # a bias is the same for each token, of which some vectors may hold parts of two
            y = self.new(*x.shape).copy_(y.expand_as(x))
        super().plus(x, y.view(x.shape), factor)

    def experts(self, router, stacks, input, scored=None):
        routing, layer = self.config.layers[layer_of(router)].feed_forward.routing, layer_of(router)
        scores = self.linear(router, scored or input)
        bias, scales = (
            self.vector(router.replace("ffn_gate_inp.weight", name)) for name in (routing.bias, "ffn_down_exps.scale")
        )
        for token in range(self.tokens):
            self._first = token * routing.used
            chosen, shares = self._chosen[layer, self._first : self._first + routing.used], self.new(routing.used)
            step = self.do("route", scores[token : token + 1], chosen, shares, routing, bias, scales)
            self._sets = self._choices[step] = []
            row = self._activations(input.x[token : token + 1])
            for place in range(routing.used):
                yield place, self._weighed(row, place) if routing.inside else row, (token, None if routing.inside else place)
        self._first = 0

    def mix(self, x, y, share):
        token, place = share
        super().mix(x[token : token + 1], y, place)

    def choose(self, layer, q, weights=None):
        raise NotRecorded("a choice of positions is that of one token")

    index = index_blocks = choose

    def index_pools(self, layer, keys, gates):
        self.choose(layer, keys)

    def compress(self, layer, rows, scores, *, name):
        raise NotRecorded("rows of several positions are those of one token")

    def attend(self, layer, q, k=None, v=None):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        if mixer.choice:
            raise NotRecorded("a choice of positions is that of one token")
        histories, mixed = cache.histories(), self.new(self.tokens, q.shape[1] * q.shape[2])
        for history, new in ({} if k is None else dict(zip(histories, (k, v), strict=True))).items():
            self.program.append(new if new.stride(1) == new.shape[2] else self._whole(new), history)
        sinks = self.vector(f"blk.{layer}.attn_sinks.weight")
        last = mixer.scale, mixer.chunks or mixer.window, mixer.cap, sinks
        for token in range(self.tokens):  # by itself, with the operations and bits of a pass over one token
            one = slice(token, token + 1)
            self.program.attend(self._whole(q[one]), *histories, mixer.kv_heads, mixed[one], *last, token=token)
        self.end("attention", first, layer=layer, nbytes=cache.bytes_attended, outcome="fused")
        return mixed

    def by_head(self, name, x, rows=False):
        y = []
        if self.vector(name.replace("weight", "bias")) is not None:
            raise NotRecorded("a bias of heads")
        for own, part in zip(matrices(name, x.shape[1], rows), x.unbind(1), strict=True):
            y.append(self.linear(own, self.input(part)))
        out = self.new(self.tokens, len(y), y[0].shape[1])
        for head, part in enumerate(y):
            self.program.place(part, out[:, head])
        return out

    def activate(self, activation, gate, up=None):
        return super().activate(activation, self._whole(gate), None if up is None else self._whole(up))
