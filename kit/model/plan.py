"""The forward pass of one token, recorded once from kit.model.forward and then run by the kit's threads without Python."""

import math

import numpy as np
import torch

from kit.cpu import attention, dequantize, norm
from kit.cpu.elementwise import as_bits, compiled, tasks_of
from kit.cpu.history import History, append
from kit.cpu.linear import Activations
from kit.cpu.routing import choose, scratch_floats
from kit.cpu.simd.tiers import tier
from kit.cpu.threads import Program
from kit.gguf.formats import FORMATS
from kit.gguf.names import blocks_of, find_tensor, layer_of
from kit.model.forward import Ops, forward, scaled
from kit.model.parts import Parts, RecordedMixture
from kit.trace import Span

_TABLE = 512  # positions in the table of cosines and sines


def obstacle(model) -> str:
    """The reason why a model's pass cannot be recorded; "" when it can."""
    c, weights = model.config, model.weights
    sizes = [size for layer in c.layers for size in layer.widths()]
    reasons = {
        "the linear layers do not read blocks": not model.linear.activations,
        "blocks are read at every use": not getattr(weights, "mapped", True),
        "attention is not fused": model.attention != "fused",
        "weights are not float32": getattr(weights, "dtype", None) != torch.float32,
        "a size is no multiple of 16": any(n % 16 for n in (*sizes, c.hidden_size)),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class Plan(Ops):
    """Ops that record a model's pass over one token into a program; ``step`` runs it.

    Norm weights and biases are copied; matrices are read from the mapped file. The program holds addresses of the KV cache, so
    a plan belongs to one cache. Products of experts are recorded with placeholder experts; the routing step writes the chosen
    addresses.
    """

    def __init__(self, model, cache):
        super().__init__(model)
        self._how, self._cache = model.linear.activations, cache
        self.program, self._held = Program(), []
        self._spans: list[tuple[Span, int, int]] = []  # whose times are a part of parts of those of a first to a last step
        self._appends, self._turns = [], {}  # steps, and those of each RoPE
        self._attentions: dict[int, list] = {}  # window -> (step of the chunks, step that joins them, tasks of a chunk)
        self._tables: dict = {}
        self._choices: dict[int, list] = {}  # step -> what it sets: (step, argument, place, address and bytes of expert 0)
        self._chosen = np.zeros((len(self.config.layers), self.config.experts_used), np.int64)
        self._vectors, self._biases = {}, {}  # by name; where an expert's begins -> (place, address and bytes of expert 0)
        attending = [mixer for mixer, *_ in self.config.layers if mixer.memory.position]
        most = max((mixer.heads * attention.part_bytes(mixer.head_dim) for mixer in attending), default=0)
        self._parts = torch.empty(most * attention.chunks_of(0, cache.context), dtype=torch.uint8)
        self._embedded: dict = {}  # step -> the blocks of which it takes a token's row
        self._mixtures, self._uses = [], []  # what kit.model.parts needs to know of each layer's experts
        self._logits = forward(self, self.config, slice(None))
        self._position, self._cache = -1, None
        for step, set_ in self._choices.items():  # now that no step is added, and none moves
            words = np.array([(self.program.address(at, name), *of_expert) for at, name, *of_expert in set_])
            self.program.set([step], words=self.hold(words).ctypes.data, count=len(words))
        self._parts_of = Parts(self.program, self._mixtures, self._chosen) if self.weights.experts else None

    # ---- running

    def step(self, token: int, position: int) -> torch.Tensor:
        """Logits (1, vocabulary) after ``token``, whose keys and values are written to ``position`` of the cache."""
        for step, blocks in self._embedded.items():
            self.program.set([step], blocks=blocks.ctypes.data + int(token) * blocks.shape[1])
        self._move_to(position)
        self._parts_of.run(self.weights.experts) if self._parts_of else self.program.run()
        self._trace(position)
        return scaled(self._logits.clone(), self.config)

    def _move_to(self, position):
        """Set the arguments that depend on the position."""
        new, self._position = position // _TABLE != self._position // _TABLE, position
        for rope, steps in self._turns.items():
            if new:
                self._tables[rope] = self.ropes[rope].table(position // _TABLE * _TABLE, _TABLE)
            self.program.set(steps, table=self._tables[rope][position % _TABLE].data_ptr())
        self.program.set(self._appends, position=position)
        for window, steps_of in self._attentions.items():
            parts, joins, shares = np.transpose(steps_of)
            first = max(0, position + 1 - window) if window else 0
            chunks = attention.chunks_of(first, position + 1)
            self.program.set(parts, first=first, positions=position + 1, chunks=chunks)
            self.program.steps[parts, Program.TASKS] = shares * chunks
            self.program.set(joins, chunks=chunks)

    def _trace(self, position):
        """Add a span for each operation to the trace, with times taken by the threads."""
        clock, token, chosen = self.program.times(), self.trace.token, self._chosen.tolist()

        def spans():
            starts, done = (each.tolist() for each in clock())
            for (what, tensor, layer, _, nbytes, first, last, outcome), part, parts in self._spans:
                if what == "attention":  # there bytes of a position
                    nbytes *= self.config.layers[layer].mixer.memory.seen(position + 1)
                if "_exps." in tensor:
                    stack, _, place = tensor.removesuffix("]").partition("[")
                    tensor = f"{stack}[{chosen[layer][int(place)]}]"
                start, took = starts[first], done[last] - starts[first]
                times = start + took * part // parts, start + took * (part + 1) // parts
                yield Span(what, tensor, layer, token, nbytes, *times, outcome)

        self.trace.later(spans)

    # ---- recording

    def begin(self):
        return len(self.program.steps)

    def end(self, what, start, tensor="", layer=-1, nbytes=0, outcome="", part=0, parts=1):
        layer = layer_of(tensor) if tensor else layer
        self._spans.append((Span(what, tensor, layer, -1, nbytes, start, len(self.program.steps) - 1, outcome), part, parts))

    def hold(self, value):
        self._held.append(value)  # the program has its address
        return value

    def new(self, *shape) -> torch.Tensor:
        """Memory of that shape, and after it as much as a vector of sixteen may touch."""
        n = math.prod(shape)
        return self.hold(torch.empty(n + -n % 16))[:n].view(shape)

    def do(self, task, arguments, tasks):
        self.program.add(task, arguments, tasks)

    def state(self, layer):
        return self._cache.states[layer]

    def values(self, input):
        return input.x

    def vector(self, name):
        name, _, place = name.removesuffix("]").partition("[")
        if name not in self.weights.file.tensors:
            return None
        if name not in self._vectors:
            vector = self.weights[name]
            self._vectors[name] = self.new(*vector.shape).copy_(vector)
        vector = self._vectors[name]
        if place:
            self._biases[vector[int(place)].data_ptr()] = int(place), vector.data_ptr(), vector[0].nbytes
        return vector[int(place)] if place else vector

    def input(self, x) -> Activations:
        return self.hold(Activations(x))

    def embed(self, name, factor):
        info, first, blocks = self.weights.info(name), self.begin(), self.weights.blocks(name)
        x = self.new(1, info.shape[1])
        self._embedded[self.program.add(*dequantize.step(blocks[:1], FORMATS[info.qtype], x))] = blocks
        if factor != 1:
            self.scale(x, factor)
        self.end("embed", first, name, nbytes=x.nbytes)
        return x

    def normed(self, x, weight, bias):
        y, n, layer = self.new(*x.shape), x.shape[-1], bool(self.config.family.layer_norm)
        groups = 1 if weight is None else weight.numel() // n
        arguments = dict(x=x.data_ptr(), y=y.data_ptr(), n=n) | norm.constants(self.config.norm_eps, groups=groups)
        for name, vector, number in (("weight", weight, 1.0), ("bias", bias, 0.0))[: 1 + layer]:
            arguments[name] = (self.hold(torch.full((n,), number)) if vector is None else vector).data_ptr()
        self.program.add(norm.rows("layer" if layer else "rms"), arguments, -x.numel() // n)
        return y

    def product(self, name, input):
        blocks = blocks_of(self.weights.file, name) if "_exps." in name else self.weights.blocks(name)
        y = self.new(1, len(blocks))
        for step in input.product(blocks, self.weights.info(name).qtype, y, self._how):
            last = self.program.add(*step)
        if "_exps." in name:
            stack, place = find_tensor(self.weights.file, name)
            self._sets.append((last, "blocks", place, blocks_of(self.weights.file, stack).ctypes.data, blocks.nbytes))
            self._uses.append((last, stack, place))
        return y

    def nbytes(self, name):
        return blocks_of(self.weights.file, name).nbytes

    def _elementwise(self, name, factor=None, **tensors):
        n = next(iter(tensors.values())).numel()
        numbers = {"n": n} if factor is None else {"n": n, "factor": as_bits(factor)}
        return self.program.add(compiled(name), numbers | {key: x.data_ptr() for key, x in tensors.items()}, tasks_of(n))

    def plus(self, x, y, factor):
        step = self._elementwise("add", x=x, y=y, factor=factor)
        if y.data_ptr() in self._biases:
            self._sets.append((step, "y", *self._biases[y.data_ptr()]))

    def zeros(self, x):
        y = self.new(*x.shape)
        self._elementwise("zero", x=y)
        return y

    def experts(self, router, stacks, input, scored=None):
        routing, scores = self.config.layers[layer_of(router)].feed_forward.routing, self.linear(router, scored or input)
        products = []
        for stack in stacks[:-1]:  # experts share the records of their input, and may run in another order
            blocks, qtype = blocks_of(self.weights.file, f"{stack}[0]"), self.weights.info(stack).qtype
            for step in input.product(blocks, qtype, scores, self._how)[:-1]:
                self.program.add(*step)
        bias, scales = (
            self.vector(router.replace("ffn_gate_inp.weight", name)) for name in ("exp_probs_b.bias", "ffn_down_exps.scale")
        )
        arguments = dict(
            scores=scores.data_ptr(), bias=0 if bias is None else bias.data_ptr(),
            scales=0 if scales is None else scales.data_ptr(), experts=scores.shape[1], used=routing.used,
            sigmoids=routing.sigmoid, normed=routing.normed, scale=as_bits(routing.scale), groups=routing.groups,
            groups_used=routing.groups_used, chosen=self._chosen[layer_of(router)].ctypes.data,
            shares=self.new(routing.used).data_ptr(), scratch=self.new(scratch_floats(scores.shape[1])).data_ptr(),
            words=0, count=0,
        )  # fmt: skip
        self._sets = self._choices[self.program.add(choose(), arguments)] = []
        self._uses = []
        for place in range(routing.used):
            first = len(self.program.steps)
            yield place, input, place
            products.append(range(first, len(self.program.steps) - 1))
        self._mixtures.append(RecordedMixture(layer_of(router), products, self._uses))

    def mix(self, x, y, share):
        self._sets.append((self._elementwise("add", x=x, y=y, factor=0.0), "factor", share, 0, 0))

    def scale(self, x, factor):
        self._elementwise("scale", x=x, factor=factor)

    def clamp(self, x, limit):
        self._elementwise("clamp", x=x, factor=limit)

    def turn(self, x, rope):
        arguments = dict(x=x.data_ptr(), head_dim=x.shape[2], dims=rope.dims, heads=x.shape[1], table=0)
        self._turns.setdefault(rope, []).append(self.program.add(compiled(self.config.family.rope), arguments, -x.shape[1]))

    def attend(self, layer, q, k=None, v=None):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        heads, kv_heads, dim = mixer.heads, mixer.kv_heads, mixer.head_dim
        histories = cache.histories()
        written = {} if k is None else dict(zip(histories, (k, v), strict=True))  # of a latent both are one
        for history, new in written.items():
            arguments = dict(source=new.data_ptr(), token_bytes=0, tokens=1, dim=dim, position=0)
            step = self.program.add(append(history.kind, tier()), arguments | history.arguments("target"), -kv_heads)
            self._appends.append(step)
        mixed, parts, group = self.new(1, heads * dim), self._parts.data_ptr(), heads // kv_heads
        arguments = attention.chunk_arguments(q.data_ptr(), *histories, parts, group, dim, mixer.scale, mixer.cap)
        chunk = self.program.add(attention.attend_chunk(histories[0].kind, tier()), arguments, 0)
        sinks = self.vector(f"blk.{layer}.attn_sinks.weight")
        sinks = 0 if sinks is None else sinks.data_ptr()
        arguments = dict(parts=parts, sinks=sinks, out=mixed.data_ptr(), dim=dim, chunks=0)
        join, shares = self.program.add(attention.combine(), arguments, -heads), kv_heads * attention.shares_of(group)
        self._attentions.setdefault(mixer.window, []).append((chunk, join, shares))
        self.end("attention", first, layer=layer, nbytes=cache.bytes_per_position, outcome="fused")
        return mixed

    def by_head(self, name, x):
        heads, start = [f"{name}[{head}]" for head in range(x.shape[1])], self.begin()
        blocks, qtype = [self.weights.blocks(head) for head in heads], self.weights.info(name).qtype
        y = self.new(1, len(heads), len(blocks[0]))
        each = zip(map(self.input, x.unbind(1)), blocks, y.unbind(1), strict=True)
        for steps in zip(*(x.product(own, qtype, y, self._how) for x, own, y in each), strict=True):
            self.program.add_together(steps)
        bias = self.vector(name.replace("weight", "bias"))
        if bias is not None:
            self.plus(y, bias, 1.0)
        for part, head in enumerate(heads):
            self.end("linear", start, head, nbytes=blocks[part].nbytes, part=part, parts=len(heads))
        return y

    def join(self, parts, size):
        y, first = self.new(1, parts[0].shape[1], size).zero_(), 0  # what no part fills stays zero
        for part in parts:
            _, heads, dim = part.shape
            arguments = dict(source=part.data_ptr(), token_bytes=4 * part.stride(1), tokens=heads, dim=dim, position=0)
            target = History("float32", y[..., first:].data_ptr(), 0, 4 * size)  # a head a position
            self.program.add(append("float32", tier()), arguments | target.arguments("target"))
            first += dim
        return y

    def activate(self, activation, gate, up=None):
        out, up = self.new(*gate.shape), self.new(*gate.shape).fill_(1) if up is None else up
        self._elementwise(activation, gate=gate, up=up, out=out)
        return self.input(out)
