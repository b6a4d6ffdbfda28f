"""The forward pass of one token, recorded once from kit.model.forward and then run by the kit's threads without Python."""

import math

import numpy as np
import torch

from kit.cpu.linear import Activations
from kit.cpu.operations import Recording
from kit.gguf.formats import FORMATS
from kit.gguf.names import blocks_of, find_tensor, layer_of
from kit.model.config import HeadConfig
from kit.model.forward import Ops, forward, matrices, scaled
from kit.model.layers.mixture import of_tokens
from kit.model.layers.ngrams import TABLE
from kit.model.parts import Parts, RecordedMixture
from kit.trace import Span


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

    Norm weights and biases are copied; matrices are read from the mapped file. The program holds the memory of the KV cache, so
    a plan belongs to one cache. Products of experts are recorded with placeholder experts; the routing step writes the chosen
    addresses.
    """

    tokens, keeps = 1, True

    def __init__(self, model, cache):
        super().__init__(model)
        self._how, self._cache = model.linear.activations, cache
        self.program = Recording(cache.context, self.tokens)
        self._spans: list[tuple[Span, int, int]] = []  # whose times are a part of parts of those of a first to a last step
        self._choices: dict[int, list] = {}  # step -> what it sets: (step, argument, place, memory and bytes of expert 0)
        self._chosen = np.zeros((len(self.config.layers), self.tokens * self.config.experts_used), np.int64)
        self._vectors, self._biases = {}, {}  # by name; where an expert's begins -> (place, memory and bytes of expert 0)
        self._ngrams: list = []  # of a layer with a table of n-grams: (its numbers, last tokens, steps, blocks)
        self._hashed: list = []  # of a layer with a table of experts: (its number, network, blocks)
        self._embedded: dict = {}  # step -> the blocks of which it takes a token's row, and the token's place
        self._mixtures, self._uses = [], []  # what kit.model.parts needs to know of each layer's experts
        self.given = self.kept = None  # what an MTP head reads of the positions before, and what it, or the model, leaves
        self._logits = forward(self, self.config, slice(-1 if isinstance(self.config, HeadConfig) else 0, None))
        self._cache = None
        for step, set_ in self._choices.items():  # now that no step is added, and none moves
            self.program.chosen(step, set_)
        self._parts_of = Parts(self.program, self._mixtures, self._chosen) if self.weights.experts else None

    # ---- running

    def step(self, token: int, position: int) -> torch.Tensor:
        """Logits (1, vocabulary) after ``token``, whose keys and values are written to ``position`` of the cache."""
        for step, (blocks, _) in self._embedded.items():
            self.program.set([step], blocks=blocks[token])
        for ngrams, state, steps, blocks in self._ngrams:
            before = (state.long() - 1).tolist()
            for step, row in zip(steps, ngrams.chosen([token], before)[0].tolist(), strict=True):
                self.program.set([step], blocks=blocks[row])
            state.copy_(torch.tensor([*before[1:], int(token)], dtype=torch.float32, device="cpu") + 1)
        for layer, network, blocks in self._hashed:
            self._chosen[layer] = of_tokens(blocks, [token], network, self.weights.file.path)[0]
        self.program.move_to(position)
        self._parts_of.run(self.weights.experts) if self._parts_of else self.program.run()
        self._trace(position)
        return scaled(self._logits.clone(), self.config)

    def _trace(self, position):
        """Add a span for each operation to the trace, with times taken by the threads."""
        clock, token, chosen = self.program.times(), self.trace.token, self._chosen.tolist()

        def spans():
            starts, done = (each.tolist() for each in clock())
            for (what, tensor, layer, _, nbytes, first, last, outcome), part, parts in self._spans:
                if what in ("attention", "index"):  # there bytes of a position, or of a unit
                    memory = self.config.layers[layer].mixer.memory
                    nbytes *= memory.seen(position + 1) if what == "attention" else memory.choice.units(position + 1)
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

    def new(self, *shape) -> torch.Tensor:
        """Memory of that shape, and after it as much as a vector of sixteen may touch."""
        n = math.prod(shape)
        return torch.empty(n + -n % 16, dtype=torch.float32, device="cpu")[:n].view(shape)

    def do(self, name, *operands, **constants):
        return self.program.do(name, *operands, **constants)

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
            self._biases[vector[int(place)].data_ptr()] = int(place), vector, vector[0].nbytes
        return vector[int(place)] if place else vector

    def input(self, x) -> Activations:
        return Activations(x, recorded=True)

    def embed(self, name, factor):
        info, first, blocks = self.weights.info(name), self.begin(), self.weights.blocks(name)
        x = self.new(self.tokens, info.shape[1])
        for n in range(self.tokens):
            self._embedded[self.do("dequantize", blocks[:1], FORMATS[info.qtype], x[n : n + 1])] = blocks, n
        if factor != 1:
            self.scale(x, factor)
        self.end("embed", first, name, nbytes=x.nbytes)
        return x

    def normed(self, x, weight, bias):
        y, n, layer = self.new(*x.shape), x.shape[-1], bool(self.config.family.layer_norm)
        given = ((weight, 1.0), (bias, 0.0))[: 1 + layer]
        vectors = (self.new(n).fill_(number) if vector is None else vector for vector, number in given)
        self.do("norm", x, y, self.config.norm_eps, *vectors, alone=True)
        return y

    def product(self, name, input):
        blocks = blocks_of(self.weights.file, name) if "_exps." in name else self.weights.blocks(name)
        y = self.new(len(input.x), len(blocks))
        for step in input.product(blocks, self.weights.info(name).qtype, y, self._how):
            last = self.program.add(*step)
        if "_exps." in name:
            stack, place = find_tensor(self.weights.file, name)
            self._sets.append((last, "blocks", place, blocks_of(self.weights.file, stack), blocks.nbytes))
            self._uses.append((last, stack, place))
        return y

    def nbytes(self, name):
        return blocks_of(self.weights.file, name).nbytes

    def plus(self, x, y, factor):
        step = self.do("add", x, y, factor=factor)
        if y.data_ptr() in self._biases:
            self._sets.append((step, "y", *self._biases[y.data_ptr()]))

    def keep(self, state):
        self.kept = state

    def before(self):
        self.given = self.new(self.tokens, self.config.read_size)
        return self.given

    def zeros(self, x):
        y = self.new(*x.shape)
        self.do("zero", y)
        return y

    def experts(self, router, stacks, input, scored=None):
        network = self.config.layers[layer_of(router)].feed_forward
        routing, scores = network.routing, self.linear(router, scored or input)
        if routing.tokens:
            table = self.weights.blocks(router.replace("ffn_gate_inp", "ffn_gate_tid2eid"))
            self._hashed.append((layer_of(router), network, table))
        products = []
        for stack in stacks[:-1]:  # experts share the records of their input, and may run in another order
            blocks, qtype = blocks_of(self.weights.file, f"{stack}[0]"), self.weights.info(stack).qtype
            for step in input.product(blocks, qtype, scores, self._how)[:-1]:
                self.program.add(*step)
        bias, scales = (
            self.vector(router.replace("ffn_gate_inp.weight", name)) for name in (routing.bias, "ffn_down_exps.scale")
        )
        chosen, shares = self._chosen[layer_of(router)], self.new(routing.used)
        step = self.do("route", scores, chosen, shares, routing, bias, scales, given=bool(routing.tokens))
        self._sets = self._choices[step] = []
        self._uses = []
        for place in range(routing.used):
            first = len(self.program.steps)
            yield place, self._weighed(input, place) if routing.inside else input, None if routing.inside else place
            products.append(range(first, len(self.program.steps) - 1))
        self._mixtures.append(RecordedMixture(layer_of(router), products, self._uses))

    def _weighed(self, input, share):
        """An input times the share of an expert."""
        y = self.zeros(input.x)
        self._sets.append((self.do("add", y, input.x, factor=0.0), "factor", share, None, 0))
        return self.input(y)

    def mix(self, x, y, share):
        if share is None:
            self.do("add", x, y, factor=1.0)
            return
        self._sets.append((self.do("add", x, y, factor=0.0), "factor", share, None, 0))

    def scale(self, x, factor):
        self.do("scale", x, factor=factor)

    def clamp(self, x, limit, below=True):
        self.do("clamp" if below else "ceiling", x, factor=limit)

    def turn(self, x, rope):
        self.program.rotate(rope.layout or self.config.family.rope, x, self.ropes[rope])

    def index(self, layer, keys):
        self.program.append(keys[:, None], self._cache.states[layer].index.history)

    def ngram_rows(self, layer, x):
        ngrams, info, first = self.config.layers[layer].mixer.ngrams, self.weights.info(TABLE), self.begin()
        blocks, rows = self.weights.blocks(TABLE), self.new(1, len(ngrams.sizes) * info.shape[1])
        steps = [self.do("dequantize", blocks[:1], FORMATS[info.qtype], row) for row in rows.split(info.shape[1], 1)]
        self._ngrams.append((ngrams, self._cache.states[layer]["tokens"], steps, blocks))
        self.end("embed", first, TABLE, nbytes=rows.nbytes)
        return rows

    def index_blocks(self, layer, keys):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        each, mean = mixer.choice.each, self.new(1, keys.shape[1])
        self.program.pool(keys, cache["block"], mean)
        self.end("pool", first, layer=layer, nbytes=2 * cache["block"].nbytes)
        mean = self.rms_norm(mean, f"blk.{layer}.indexer.k_norm.weight")[:, None]
        rope = mixer.index_rope
        self.program.rotate(rope.layout or self.config.family.rope, mean, self.ropes[rope], each)
        self.program.append(mean, cache.index.history, each)

    def index_pools(self, layer, keys, gates):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        held, made = (cache["keys"], cache["gates"]), self.new(1, mixer.index_size)
        self.program.compress(keys, gates, self.vector(f"blk.{layer}.indexer_compressor_ape.weight"), held, made)
        self.end("pool", first, layer=layer, nbytes=2 * sum(part.nbytes for part in held))
        self.program.append(made[:, None], cache.index.history, mixer.choice.each)

    def compress(self, layer, rows, scores, *, name):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        held, index = (cache[f"{name}_rows"], cache[f"{name}_scores"]), name.startswith("indexer")
        made = self.new(1, mixer.index_size if index else mixer.size)
        self.program.compress(rows, scores, self.vector(f"blk.{layer}.{name}_ape.weight"), held, made)
        self.end("pool", first, layer=layer, nbytes=2 * sum(part.nbytes for part in held))
        made = mixer.turned_first(self, self.rms_norm(made, f"blk.{layer}.{name}_norm.weight")[:, None])
        self.program.rotate(mixer.rope.layout or self.config.family.rope, made, self.ropes[mixer.rope.of_keys], mixer.every)
        self.program.append(made, cache.index.history if index else cache.ring_and_rows()[1], mixer.every)

    def choose(self, layer, q, weights=None):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        self.program.score(q, cache.index.history, mixer.choice, weights)
        self.end("index", first, layer=layer, nbytes=cache.bytes_indexed)
        first = self.begin()
        (self.program.choose_rows if mixer.memory.every else self.program.choose)(mixer.choice)
        self.end("choice", first, layer=layer)

    def attend(self, layer, q, k=None, v=None):
        mixer, cache, first = self.config.layers[layer].mixer, self._cache.states[layer], self.begin()
        mixed = self.new(1, q.shape[1] * q.shape[2])
        sinks = self.vector(f"blk.{layer}.attn_sinks.weight")
        if mixer.memory.every:
            ring, rows = cache.ring_and_rows()
            self.program.write_ring(k, ring, mixer.rows)
            own = self.program.gather_rows(ring, rows, mixer.size, mixer.choice, mixer.window) if mixer.choice else ring
            self.program.attend(q, own, own, 1, mixed, mixer.scale, mixer.rows, mixer.cap, sinks)
            self.end("attention", first, layer=layer, nbytes=cache.bytes_attended, outcome="fused")
            return mixed
        histories = cache.histories()
        written = {} if k is None else dict(zip(histories, (k, v), strict=True))  # of a latent both are one
        for history, new in written.items():
            self.program.append(new, history)
        if mixer.choice:
            histories = self.program.gather(histories, mixer.kv_heads, q.shape[2], mixer.choice)
        limit = mixer.choice or mixer.chunks or mixer.window
        self.program.attend(q, *histories, mixer.kv_heads, mixed, mixer.scale, limit, mixer.cap, sinks)
        self.end("attention", first, layer=layer, nbytes=cache.bytes_attended, outcome="fused")
        return mixed

    def by_head(self, name, x, rows=False):
        heads, start = matrices(name, x.shape[1], rows), self.begin()
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
        y, first = self.new(self.tokens, parts[0].shape[1], size).zero_(), 0  # what no part fills stays zero
        for part in parts:
            for token in range(self.tokens):
                self.program.place(part[token], y[token, :, first:])
            first += part.shape[2]
        return y

    def activate(self, activation, gate, up=None):
        out, up = self.new(*gate.shape), self.new(*gate.shape).fill_(1) if up is None else up
        self.do(activation, gate, up, out)
        return self.input(out)
