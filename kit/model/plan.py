"""The forward pass of one token, recorded once from kit.model.forward and then run by the kit's threads without Python."""

from typing import NamedTuple

import numpy as np
import torch

from kit.cpu import attention, dequantize, norm
from kit.cpu.elementwise import Rotation, as_bits, compiled, tasks_of
from kit.cpu.history import Append, append
from kit.cpu.linear import Activations
from kit.cpu.simd.tiers import tier
from kit.cpu.threads import Program
from kit.gguf.formats import FORMATS
from kit.gguf.names import layer_of
from kit.lab.trace import Span
from kit.model.cpu_ops import scaled_logits
from kit.model.forward import forward

_ROTATED = {"interleaved": 16, "neox": 32}  # rotated elements of a head must be a multiple of this
_TABLE = 512  # positions in the table of cosines and sines
_EMBEDDING = "token_embd.weight"

# Arguments that change from token to token.
_BLOCKS = Program.column(dequantize.Chunk, "blocks")
_TURN = Program.column(Rotation, "table")
_PLACE = Program.column(Append, "position")
_FIRST, _POSITIONS, _CHUNKS = (Program.column(attention.Chunk, name) for name in ("first", "positions", "chunks"))
_JOINED = Program.column(attention.Join, "chunks")


def obstacle(model) -> str:
    """The reason why a model's pass cannot be recorded; "" when it can."""
    c, weights = model.config, model.weights
    ropes = [rope for rope in map(c.rope_of, range(c.layers)) if rope]
    vectors = [shape[-1] for name, shape in c.tensors().items() if name != "rope_freqs.weight"]
    reasons = {
        "the linear layers do not read blocks": not model.linear.activations,
        "attention is not fused": model.attention != "fused",
        "experts are chosen token by token": c.experts,
        "attention is over a latent": c.latent,
        "norms subtract the mean": c.family.layer_norm,
        "scores are capped or have sinks": c.attention_cap or c.family.sinks,
        f"the activation is {c.family.activation}": c.family.activation not in ("silu", "gelu"),
        "weights are not float32": getattr(weights, "dtype", None) != torch.float32,
        "a size is no multiple of 16": any(n % 16 for n in (*vectors, c.head_dim, c.hidden_size)),
        "RoPE rotates parts of a vector": any(rope.dims % _ROTATED[c.family.rope] for rope in ropes),
        "too many query heads share a key": c.heads > attention.GROUP * c.kv_heads,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class _Op(NamedTuple):
    """The fields of a trace's span for the steps from ``first`` to ``last``."""

    what: str
    tensor: str
    layer: int
    nbytes: int
    outcome: str
    first: int
    last: int


class Plan:
    """Ops that record a model's pass over one token into a program; ``step`` runs it.

    Norm weights and biases are copied; matrices are read from the mapped file. The program holds addresses of the KV cache,
    so a plan belongs to one cache.
    """

    def __init__(self, model, cache):
        self.config, self.weights, self.trace, self._cache = model.config, model.weights, model.trace, cache
        self._how, self._ropes = model.linear.activations, model.ropes
        self.program, self._ops, self._held = Program(), [], []
        self._position_bytes = cache.bytes_per_position // self.config.layers
        self._rotations, self._appends = [], []
        self._attentions: dict[int, list] = {}  # window -> (step of the chunks, step that joins them) of each layer
        self._tables: dict = {}
        most = self.config.heads * attention.chunks_of(0, cache.context) * attention.part_bytes(self.config.head_dim)
        self._parts = torch.empty(most, dtype=torch.uint8)
        self._logits = forward(self, self.config, slice(None))
        self._position, self._cache = -1, None

    # ---- running

    def step(self, token: int, position: int) -> torch.Tensor:
        """Logits (1, vocabulary) after ``token``, whose keys and values are written to ``position`` of the cache."""
        steps = self.program.steps
        steps[self._embed, _BLOCKS] = self._blocks.ctypes.data + int(token) * self._blocks.shape[1]
        self._move_to(position)
        self.program.run()
        self._record(position)
        return scaled_logits(self._logits.clone(), self.config)

    def _move_to(self, position):
        """Set the arguments that depend on the position."""
        steps = self.program.steps
        if position // _TABLE != self._position // _TABLE or self._position < 0:
            for key, table in self._tables.items():
                table.fill(self._ropes[key], position // _TABLE * _TABLE)
        self._position = position
        for rotation, table in self._rotations:
            steps[rotation, _TURN] = table.address(position % _TABLE)
        steps[self._appends, _PLACE] = position
        for window, steps_of in self._attentions.items():
            chunk, join = np.transpose(steps_of)
            first = max(0, position + 1 - window) if window else 0
            chunks = attention.chunks_of(first, position + 1)
            steps[chunk, _FIRST], steps[chunk, _POSITIONS], steps[chunk, _CHUNKS] = first, position + 1, chunks
            steps[chunk, Program.TASKS] = self.config.kv_heads * chunks
            steps[join, _JOINED] = chunks

    def _record(self, position):
        """Add a span for each operation to the trace, with times taken by the threads."""
        ends = self.program.ends().tolist()
        starts = [self.program.started, *ends]
        self.trace.spans.extend(
            Span(op.what, op.tensor, op.layer, self.trace.token, op.nbytes, starts[op.first], ends[op.last], op.outcome)
            if op.what != "attention"
            else Span(
                op.what, "", op.layer, self.trace.token, (min(op.nbytes, position + 1) or position + 1) * self._position_bytes,
                starts[op.first], ends[op.last], op.outcome,
            )
            for op in self._ops
        )  # fmt: skip

    # ---- recording

    def _add(self, *steps) -> int:
        """Append steps (function, arguments, tasks); returns the index of the first."""
        return min(self.program.add(*step) for step in steps)

    def _span(self, what, tensor, layer, nbytes=0, outcome="", *, first):
        self._ops.append(_Op(what, tensor, layer, nbytes, outcome, first, len(self.program.steps) - 1))

    def _new(self, *shape) -> torch.Tensor:
        self._held.append(torch.empty(*shape))
        return self._held[-1]

    def _weight(self, name) -> torch.Tensor:
        self._held.append(self.weights[name].contiguous())
        return self._held[-1]

    def _input(self, x) -> Activations:
        self._held.append(Activations(x))
        return self._held[-1]

    def embed(self):
        c, info = self.config, self.weights.info(_EMBEDDING)
        self._blocks, x = self.weights.blocks(_EMBEDDING), self._new(1, c.hidden_size)
        self._embed = self._add(dequantize.step(self._blocks[:1], FORMATS[info.qtype], x))
        if c.embedding_scale != 1:
            self._add((compiled("scale"), (x.data_ptr(), c.hidden_size, as_bits(c.embedding_scale)), tasks_of(c.hidden_size)))
        self._span("embed", _EMBEDDING, -1, x.nbytes, first=self._embed)
        return x

    def norm(self, x, name):
        return self._input(self.rms_norm(x, name) if name else x)

    def rms_norm(self, x, name):
        weight, y = self._weight(name), self._new(*x.shape)
        arguments = x.data_ptr(), weight.data_ptr(), y.data_ptr(), len(weight), *norm.as_bits(self.config.norm_eps)
        first = self._add((norm.rows(), arguments, -x.numel() // len(weight)))
        self._span("norm", name, layer_of(name), first=first)
        return y

    def linear(self, name, input, add_to=None):
        blocks, info = self.weights.blocks(name), self.weights.info(name)
        y = self._new(1, len(blocks))
        first = self._add(*input.product(blocks, info.qtype, y, self._how))
        bias = name.removesuffix("weight") + "bias"
        if bias in self.weights.file.tensors:
            self._sum(y, self._weight(bias), 1)
        self._span("linear", name, layer_of(name), blocks.nbytes, first=first)
        if add_to is not None:
            self.add(add_to, y)
        return y

    def _sum(self, x, y, factor):
        n = x.numel()
        self._add((compiled("add"), (x.data_ptr(), y.data_ptr(), n, as_bits(factor)), tasks_of(n)))

    def add(self, x, y):
        self._sum(x, y, self.config.residual_scale)

    def rotate(self, layer, heads):
        c, rope, first = self.config, self.config.rope_of(layer), len(self.program.steps)
        table = self._tables.setdefault(rope, _Table(rope.dims, c.family.rope))
        for x in heads:
            arguments = Rotation(x.data_ptr(), c.head_dim, rope.dims)
            self._rotations.append((self._add((compiled(c.family.rope), arguments, -x.shape[1])), table))
        self._span("rope", "", layer, first=first)

    def attend(self, layer, q, k, v):
        c, window = self.config, self.config.window_of(layer)
        first, histories = len(self.program.steps), self._cache.histories(layer)
        for history, new in zip(histories, (k, v), strict=True):
            arguments = Append(new.data_ptr(), 0, 1, c.head_dim, *history[1:])
            self._appends.append(self._add((append(history.kind, tier()), arguments, -c.kv_heads)))
        mixed, group = self._new(1, c.heads * c.head_dim), c.heads // c.kv_heads
        arguments = attention.chunk_arguments(
            q.data_ptr(), *histories, self._parts.data_ptr(), group, c.head_dim, c.attention_scale
        )
        chunk = self._add((attention.attend_chunk(histories[0].kind, tier()), arguments, 0))
        join = self._add((attention.combine(), attention.Join(self._parts.data_ptr(), mixed.data_ptr(), c.head_dim), -c.heads))
        self._attentions.setdefault(window, []).append((chunk, join))
        self._span("attention", "", layer, window, "fused", first=first)
        return self._input(mixed)

    def activate(self, gate, up):
        out, n = self._new(*gate.shape), gate.numel()
        arguments = gate.data_ptr(), up.data_ptr(), out.data_ptr(), n
        self._add((compiled(self.config.family.activation), arguments, tasks_of(n)))
        return self._input(out)

    def logits(self, name, input):
        return self.linear(name, input)


class _Table:
    """Cosines and sines of _TABLE positions for each element of a head; sines are negative for the first of a pair."""

    def __init__(self, dims: int, layout: str):
        self._numbers, self._layout = np.empty((_TABLE, 2, dims), np.float32), layout

    def fill(self, rope, start: int) -> None:
        rotations = rope.cos_sin(start, _TABLE)[:, 0].numpy()
        cos, sin = rotations.real, rotations.imag
        cosines, sines = self._numbers[:, 0], self._numbers[:, 1]
        if self._layout == "interleaved":
            cosines[:, ::2], cosines[:, 1::2], sines[:, ::2], sines[:, 1::2] = cos, cos, -sin, sin
        else:
            cosines[:], sines[:] = np.hstack([cos, cos]), np.hstack([-sin, sin])

    def address(self, row: int) -> int:
        return self._numbers[row].ctypes.data
