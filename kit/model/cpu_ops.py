"""The operations of a forward pass on the CPU, over a weight source; each adds a span to its trace."""

import time

import torch
import torch.nn.functional as F

from kit.cpu.attention import attend, fits
from kit.cpu.buffers import ARENA
from kit.cpu.choice import attend_chosen, choose
from kit.cpu.linear import in_pieces
from kit.cpu.norm import rms_norm
from kit.cpu.operations import run
from kit.cpu.threads import torch_alone
from kit.gguf.names import blocks_of, layer_of
from kit.model.attention import ATTENTION, variant_for
from kit.model.best_experts import best_experts
from kit.model.forward import Ops, matrices
from kit.model.grouped import ProductsOfGroup, groups
from kit.model.layers.mixture import of_tokens
from kit.model.layers.ngrams import TABLE
from kit.model.linear import GEMV_MAX_TOKENS
from kit.model.rows import attend_rows, blocks, numbers


class CpuOps(Ops):
    """Ops of kit.model.forward for ``tokens`` after the positions in ``cache``. An input is a tensor (tokens, in)."""

    begin, _group = staticmethod(time.perf_counter_ns), None

    def __init__(self, model, tokens, cache):
        super().__init__(model)
        self.tokens, self.cache = torch.as_tensor(tokens, dtype=torch.int64, device="cpu"), cache
        self._linear, self._attention, self._vectors, self.chosen = model.linear, model.attention, model.vectors, None
        self._cos_sin, self._tables = (
            {key: getattr(rope, name)(cache.length, len(tokens)) for key, rope in model.ropes.items()}
            for name in ("cos_sin", "table")
        )

    def end(self, what, start, tensor="", layer=-1, nbytes=0, outcome=""):
        layer = layer_of(tensor) if tensor else layer
        self.trace.add(what, start, time.perf_counter_ns(), tensor, layer, nbytes=nbytes, outcome=outcome)

    def new(self, *shape):
        return ARENA.results.empty(shape, torch.float32)

    do = staticmethod(run)

    def state(self, layer):
        return self.cache.states[layer]

    def values(self, input):
        return input

    def vector(self, name):
        start, vector = self.begin(), self._vectors.get(name)
        if vector is not None:
            self.end("access", start, name, nbytes=vector.nbytes, outcome="hit")
        elif name.partition("[")[0] in self.weights.file.tensors:
            vector = self.weights[name]
            if self._linear.activations:
                self._vectors[name] = vector
        return vector

    def input(self, x):
        return x

    def embed(self, name, factor):
        start = self.begin()
        x = self.weights.rows(name, self.tokens).float()
        x *= factor
        self.end("embed", start, name, nbytes=x.nbytes)
        return x

    def normed(self, x, weight, bias):
        if self.config.family.layer_norm:
            return F.layer_norm(x, x.shape[-1:], weight, bias, self.config.norm_eps)
        weight = x.new_ones(x.shape[-1]) if weight is None else weight
        return rms_norm(x.contiguous(), weight, self.config.norm_eps)

    def product(self, name, input):
        return self._linear.apply(self.weights, name, input)

    def nbytes(self, name):
        return self._linear.nbytes(self.weights, name)

    def plus(self, x, y, factor):
        if x.shape != y.shape or not run("add", x, y, factor=factor):
            x.add_(y, alpha=factor)

    def scale(self, x, factor):
        x *= factor

    def clamp(self, x, limit, below=True):
        x.clamp_(-limit if below else None, limit)

    def turn(self, x, rope):
        if not run(rope.layout or self.config.family.rope, x, self._tables[rope]):
            self.ropes[rope].rotate(x, self._cos_sin[rope])

    def index(self, layer, keys):
        self.cache.states[layer].index.write(self.cache.length, keys[:, None])

    def ngram_rows(self, layer, x):
        ngrams, state, start = self.config.layers[layer].mixer.ngrams, self.cache.states[layer]["tokens"], self.begin()
        before = (state.long() - 1).tolist()
        chosen = ngrams.chosen(self.tokens.tolist(), before)
        rows = self.weights.rows(TABLE, torch.from_numpy(chosen.ravel())).float().view(len(chosen), -1)
        state.copy_(torch.tensor([*before, *self.tokens.tolist()][-len(before) :], dtype=torch.float32, device="cpu") + 1)
        self.end("embed", start, TABLE, nbytes=rows.nbytes)
        return rows

    def index_blocks(self, layer, keys):
        mixer, start, cache, length = self.config.layers[layer].mixer, self.begin(), self.cache.states[layer], self.cache.length
        each, held = mixer.choice.each, cache["block"]
        first = length - length % each
        rows = torch.cat([held[: length - first], keys])
        blocks = len(rows) // each
        if blocks:
            means = rows[: each * blocks].unflatten(0, (blocks, each)).mean(1)
            means = self.rms_norm(means, f"blk.{layer}.indexer.k_norm.weight")[:, None]
            turn = self.ropes[mixer.index_rope]
            turn.rotate(means, turn.cos_sin(first, each * blocks)[::each])
            cache.index.write(first // each, means)
        left = rows[each * blocks :]
        held[: len(left)] = left
        self.end("pool", start, layer=layer, nbytes=2 * held.nbytes)

    def index_pools(self, layer, keys, gates):
        mixer, start, cache, length = self.config.layers[layer].mixer, self.begin(), self.cache.states[layer], self.cache.length
        each, held = mixer.choice.each, (cache["keys"], cache["gates"])
        gates = gates + self.vector(f"blk.{layer}.indexer_compressor_ape.weight")[numbers(length, length + len(keys)) % each]
        pools = blocks(keys, gates, held, length, each)
        if len(pools):
            cache.index.write(length // each, pools[:, None])
        self.end("pool", start, layer=layer, nbytes=2 * sum(part.nbytes for part in held))

    def compress(self, layer, rows, scores, *, name):
        mixer, start, cache, length = self.config.layers[layer].mixer, self.begin(), self.cache.states[layer], self.cache.length
        scores = scores + self.vector(f"blk.{layer}.{name}_ape.weight")[numbers(length, length + len(rows)) % mixer.every]
        held = cache[f"{name}_rows"], cache[f"{name}_scores"]
        made = blocks(rows, scores, held, length, mixer.every)
        if len(made):
            made = mixer.turned_first(self, self.rms_norm(made, f"blk.{layer}.{name}_norm.weight")[:, None])
            first, turn = length // mixer.every, self.ropes[mixer.rope.of_keys]
            turn.rotate(made, turn.cos_sin(first * mixer.every, len(made) * mixer.every)[:: mixer.every])
            cache.write_rows(first, made, name.startswith("indexer"))
        self.end("pool", start, layer=layer, nbytes=2 * sum(part.nbytes for part in held))

    def choose(self, layer, q, weights=None):
        mixer, start, cache = self.config.layers[layer].mixer, self.begin(), self.cache.states[layer]
        positions = self.cache.length + len(q)
        left = mixer.choice.units(positions) * cache.bytes_indexed  # of the first tokens' span: further ones read it again

        def told(what):
            nonlocal start, left
            nbytes, left = (left, 0) if what == "index" else (0, left)
            self.end(what, start, layer=layer, nbytes=nbytes)
            start = self.begin()

        self.chosen = choose(q, cache.index.history, positions, mixer.choice, weights, told)

    def attend(self, layer, q, k=None, v=None):
        mixer, start, cache = self.config.layers[layer].mixer, self.begin(), self.cache.states[layer]
        sinks, positions = self.vector(f"blk.{layer}.attn_sinks.weight"), self.cache.length + len(q)
        chosen, runs = self.chosen if mixer.choice else None, [(0, positions)]
        if mixer.memory.every:
            seen = mixer.memory.seen(positions)
            with torch_alone(len(q) <= GEMV_MAX_TOKENS):
                mixed = attend_rows(q, k, cache, self.cache.length, mixer, chosen, sinks)
            self.end("attention", start, layer=layer, nbytes=seen * cache.bytes_attended, outcome="blas")
            return mixed.flatten(1)
        if k is not None:
            cache.write(self.cache.length, k, v)
        fused = self._attention == "fused" and fits(q.shape[2])  # reads it as it is stored
        if chosen is not None:
            variant, mixed = self._to_chosen(fused, mixer, cache, q, chosen, sinks)
        else:
            runs = mixer.chunks.runs(self.cache.length, positions) if mixer.chunks else runs
            sizes = [stop - max(first, self.cache.length) for first, stop in runs]
            parts = q.split(sizes) if len(runs) > 1 else [q]
            found = [self._to_all(fused, mixer, cache, *own, sinks) for own in zip(parts, runs, strict=True)]
            variant, mixed = found[0][0], torch.cat([part for _, part in found]) if len(found) > 1 else found[0][1]
        seen = sum(stop - first for first, stop in runs)
        seen = min(seen, mixer.window + len(self.tokens) - 1) if mixer.window else seen
        seen = seen if chosen is None else max(chosen.counts)
        self.end("attention", start, layer=layer, nbytes=seen * cache.bytes_attended, outcome=variant)
        return mixed.flatten(1)

    def _to_all(self, fused, mixer, cache, q, run, sinks):
        """(variant, result) of attention of the last tokens of a ``run`` of positions to these, or to a window."""
        (first, stop), last = run, (mixer.scale, mixer.window, mixer.cap, sinks)
        q = q.transpose(0, 1)
        if fused:
            sides = [side._replace(memory=side.memory[:, first:]) for side in cache.histories()]
            return "fused", attend(q, *sides, mixer.kv_heads, stop - first, *last).transpose(0, 1)
        keys, values = (side[:, first:] for side in cache.read(stop))
        variant = variant_for(self._attention, q, keys, values)
        with torch_alone(len(q) <= GEMV_MAX_TOKENS):
            return variant, ATTENTION[variant](q, keys, values, *last).transpose(0, 1)

    def _to_chosen(self, fused, mixer, cache, q, chosen, sinks):
        """(variant, result) of attention to positions that were chosen; the first tokens may attend to all."""
        first, last = self.cache.length, (mixer.scale, mixer.window, mixer.cap, sinks)
        all_ = sum(mixer.choice.takes_all(first + token + 1) for token in range(len(q)))
        if fused:
            histories, own = cache.histories(), chosen.after(all_)
            mixed = [attend_chosen(q[all_:], *histories, mixer.kv_heads, own, mixer.scale, mixer.cap, sinks)]
            if all_:
                whole = attend(q[:all_].transpose(0, 1), *histories, mixer.kv_heads, first + all_, *last)
                mixed.insert(0, whole.transpose(0, 1))
            return "fused", torch.cat(mixed)
        keys, values = cache.read(first + len(q))
        variant, each = variant_for(self._attention, q, keys, values), []
        with torch_alone(len(q) <= GEMV_MAX_TOKENS):
            for token, count in enumerate(chosen.counts):
                own = chosen.positions[token, :count].long()
                one = q[token : token + 1].transpose(0, 1)
                each.append(ATTENTION[variant](one, keys[:, own], values[:, own], *last)[:, 0])
        return variant, torch.stack(each)

    def by_head(self, name, x, rows=False):
        parts = zip(matrices(name, x.shape[1], rows), x.unbind(1), strict=True)
        return torch.stack([self.linear(own, self.input(part.contiguous())) for own, part in parts], 1)

    def join(self, parts, size):
        return F.pad(torch.cat(tuple(parts), -1), (0, size - sum(part.shape[-1] for part in parts)))

    def activate(self, activation, gate, up=None):
        return UNGATED[activation](gate) if up is None else ACTIVATIONS[activation](gate, up)

    @property
    def keeps(self):
        return self.cache.kept is not None

    def keep(self, state):
        if self.keeps:
            self.cache.keep(state, len(self.tokens))

    def before(self):
        return self.cache.before(len(self.tokens))

    def zeros(self, x):
        return torch.zeros_like(x)

    def experts(self, router, stacks, input, scored=None):
        share, chosen = self.route(router, input if scored is None else scored)
        scales = self.vector(router.replace("ffn_gate_inp.weight", "ffn_down_exps.scale"))
        share = share if scales is None else share * scales[chosen]
        self.expects([f"{stack}[{expert}]" for expert in chosen.unique().tolist() for stack in stacks])
        one = len(chosen) == 1  # which has its experts in order of time, as when it is recorded
        for group in groups(chosen, share, lambda tokens: one or self.alone(stacks, tokens)):
            self._group = ProductsOfGroup(group, self._linear.activations) if len(group.experts) > 1 else None
            rows, token, own = self.rows(input, group.token), group.token, group.share
            inside = self._inside(router)
            yield group, rows * own if inside else rows, (token, torch.ones_like(own) if inside else own)
        self._group = None

    def alone(self, stacks: list[str], tokens: int) -> bool:
        """Whether an expert with so many tokens is computed alone: its blocks are not all at hand, or torch multiplies them."""
        how, types = self._linear.activations, [self.weights.info(stack).qtype for stack in stacks]
        mapped = getattr(self.weights, "mapped", True) and not self.weights.experts
        return not how or not mapped or any(in_pieces(qtype, tokens, how) for qtype in types)

    def linear(self, name, input, add_to=None):
        if self._group is None or "_exps." not in name:
            return super().linear(name, input, add_to)
        return self._group.linear(self, name.partition("[")[0], input)

    def _inside(self, router):
        return self.config.layers[layer_of(router)].feed_forward.routing.inside

    def mix(self, x, y, share):
        self.do("mix", x, y.contiguous(), *share)

    def expects(self, names: list[str]) -> None:
        """Announces the experts' matrices that are used next, in order."""
        if self.weights.experts:
            self.weights.experts.expects(names)

    def rows(self, input, index: torch.Tensor):
        """The input of the tokens ``index``."""
        out = self.new(len(index), input.shape[1])
        self.do("take", input.contiguous(), index, out)
        return out

    def route(self, name, x) -> tuple[torch.Tensor, torch.Tensor]:
        """(share, expert) of each token's best experts by the router ``name``, (tokens, experts in use) each."""
        network = self.config.layers[layer_of(name)].feed_forward
        routing = network.routing
        bias = self.vector(name.replace("ffn_gate_inp.weight", routing.bias))
        scores = self.linear(name, x)
        if not scores.is_cpu:
            return best_experts(scores, routing, bias)
        share, chosen = (scores.new_empty(len(scores), routing.used, dtype=dtype) for dtype in (torch.float32, torch.int64))
        if routing.tokens:
            file, table = self.weights.file, name.replace("ffn_gate_inp", "ffn_gate_tid2eid")
            chosen = torch.from_numpy(of_tokens(blocks_of(file, table), self.tokens, network, file.path))
        self.do("route", F.pad(scores, (0, -scores.shape[1] % 16))[:, : scores.shape[1]], chosen, share, routing, bias,
                given=bool(routing.tokens))  # fmt: skip
        return share, chosen


class RowsOps(CpuOps):
    """CpuOps for several rows of tokens at once, each after the positions of its own cache. It has no cache itself: what sees
    the positions of a sequence is done row by row."""

    def __init__(self, model, rows, caches):
        Ops.__init__(self, model)
        self._rows = [CpuOps(model, tokens, cache) for tokens, cache in zip(rows, caches, strict=True)]
        self.tokens = torch.cat([row.tokens for row in self._rows])
        self._linear, self._vectors = model.linear, model.vectors

    keeps = False

    def keep(self, state):
        """Nothing: rows of a batch have no MTP head."""


def _by_row(name):
    def each(self, layer, *tensors, **named):
        rows = zip(*(x.split([len(row.tokens) for row in self._rows]) for x in tensors), strict=True)
        results = [getattr(row, name)(layer, *parts, **named) for row, parts in zip(self._rows, rows, strict=True)]
        return None if results[0] is None else torch.cat(results)

    return each


for _name in Ops.OF_SEQUENCE:
    setattr(RowsOps, _name, _by_row(_name))


def _clamped(gate, up):
    """The activation of gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), with gate and up clamped at 7."""
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate.mul_(torch.sigmoid(1.702 * gate)).mul_(up.add_(1))


ACTIVATIONS = {
    "silu": lambda gate, up: gate if run("silu", gate, up, gate) else F.silu(gate).mul_(up),
    "gelu": lambda gate, up: gate if run("gelu", gate, up, gate) else F.gelu(gate, approximate="tanh").mul_(up),
    "sigmoid": lambda gate, up: gate if run("sigmoid", gate, up, gate) else gate.sigmoid_().mul_(up),
    "times": lambda gate, up: gate if run("times", gate, up, gate) else gate.mul_(up),
    "clamped": lambda gate, up: gate if run("clamped", gate, up, gate) else _clamped(gate, up),
}


UNGATED = {"silu": F.silu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "squared_relu": lambda x: x.relu_().square_()}
