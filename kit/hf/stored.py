"""StoredWeight: a torch tensor without numbers of its own; products and look-ups are computed by a weight source."""

import time
from typing import NamedTuple

import torch
import torch.nn.functional as F

from kit.cache.policies.base import HashMap, Policy
from kit.cpu.linear import Product
from kit.errors import ModelError, known
from kit.gguf.names import layer_of
from kit.gguf.reader import GGUFFile
from kit.gguf.reader import open as open_file
from kit.model.budget import weights_within
from kit.model.hyperparameters import read_config
from kit.model.linear import linear_named
from kit.model.weights import Weights
from kit.products import PRODUCTS
from kit.trace import Trace

_aten, _CONTEXT = torch.ops.aten, 4096  # positions whose keys and values a limit of memory has room for
WAYS = {  # weights= -> (policy of the cache, variant of kit.model.linear)
    **{row.weights: (None, row.linear) for row in PRODUCTS.values()},
    "float32": (HashMap, "dequantized"),
}


class Source:
    """The weights of a model, and the variant of kit.model.linear that multiplies by them.

    Copies of the model share it. ``again``: (path of the file, row of WAYS), which is what pickling stores; unpickling opens
    the file again.
    """

    def __init__(self, weights: Weights, linear: str, again: tuple | None = None):
        self.weights, self.linear, self._again = weights, linear_named(linear), again
        self._known: dict[str, tuple] = {}  # name -> layer, bytes that a product reads, function for one token or None

    @classmethod
    def of(
        cls, file, way="blocks", cache: Policy | None = None, trace: Trace | None = None, memory=None, policy="LRU"
    ) -> "Source":
        """A Source with the arguments of kit.hf.load: ``file`` a path or an open file, ``way`` a row of WAYS."""
        known("weights", way, WAYS, ModelError)
        keeps, linear = WAYS["float32" if cache is not None else way]
        if memory is not None and (cache is not None or keeps):
            raise ModelError("memory= holds the file's own blocks: leave out cache= and weights='float32'")
        file = file if isinstance(file, GGUFFile) else open_file(file, "large" if memory is None else "small")
        if memory is not None:
            return cls(weights_within(file, memory, policy, trace, context=min(_CONTEXT, read_config(file).context))[0], linear)
        weights = Weights(file, cache=cache if cache is not None else keeps and keeps(), trace=trace)
        return cls(weights, linear, None if cache is not None else (file.path, way))

    def product(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, in) float32 times the matrix ``name``, (tokens, out); adds a span to the trace."""
        start = time.perf_counter_ns()
        layer, nbytes, of_one = self._known.get(name) or self._learn(name)
        if of_one and len(x) == 1:
            self.weights.blocks(name)  # raises GGUFError if the file has changed
            y = of_one(x)
        else:
            y = self.linear.apply(self.weights, name, x)
        self.weights.trace.add("linear", start, time.perf_counter_ns(), name, layer, None, nbytes)
        return y

    def _learn(self, name):
        of_one = None
        whole = not name.endswith("]")  # experts: the buffers of all would be too large
        if self.linear.activations and self.weights.mapped and whole:
            of_one = Product(self.weights.blocks(name), self.weights.info(name).qtype, self.linear.activations)
        return self._known.setdefault(name, (layer_of(name), self.linear.nbytes(self.weights, name), of_one))

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        if self._again is None:
            path = self.weights.file.path
            raise ModelError(f"{path}: a model with a cache cannot be pickled: load it without cache= and memory=")
        return Source.of, self._again


class Rows(NamedTuple):
    """Rows of one matrix of the file: those of the index ``rows``, or all in order (None). ``columns``: the number in the
    weight of each of the matrix's columns; None: the same."""

    name: str
    rows: torch.Tensor | None = None
    columns: torch.Tensor | None = None


class StoredWeight(torch.Tensor):
    """A frozen weight (out, in), or of experts (experts, out, in): the rows of all ``parts``, concatenated.

    It has a shape and a dtype, but no storage. F.linear, F.embedding, torch.addmm (of a Conv1D, with ``transposed``) and
    indexing by one expert use the source; every other operation dequantizes the whole weight once. Writing raises
    ModelError.
    """

    @staticmethod
    def __new__(cls, source: Source, parts: tuple[Rows, ...], dtype=torch.float32, transposed=False):
        shapes = [source.weights.shape(part.name) for part in parts]
        shape = (*shapes[0][:-2], sum(shape[-2] for shape in shapes), shapes[0][-1])
        return torch.Tensor._make_wrapper_subclass(cls, shape[::-1] if transposed else shape, dtype=dtype)

    def __init__(self, source, parts, dtype=torch.float32, transposed=False):
        self.source, self.parts, self.transposed = source, parts, transposed

    def like(self, **changes) -> "StoredWeight":
        """The same weight with another dtype, or other parts."""
        now = {"source": self.source, "parts": self.parts, "dtype": self.dtype, "transposed": self.transposed}
        return StoredWeight(**now | changes)

    def same(self, other: torch.Tensor) -> bool:
        """Whether ``other`` is the same weight of the same file."""
        return isinstance(other, StoredWeight) and self._identity() == other._identity()

    def _identity(self):
        order = (None if each is None else each.tolist() for part in self.parts for each in part[1:])
        return self.source.weights.file.path, [part.name for part in self.parts], *order

    def numbers(self) -> torch.Tensor:
        """The whole weight dequantized, through the source's cache."""
        sort = lambda columns: None if columns is None else columns.argsort()  # noqa: E731
        parts = [_ordered(_ordered(self._matrix(name), rows, -2), sort(columns), -1) for name, rows, columns in self.parts]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
        return (whole.T if self.transposed else whole).to(self.dtype)

    def _matrix(self, name):
        weights = self.source.weights
        shape = weights.shape(name)
        if len(shape) < 3:
            return weights[name]
        return torch.stack([weights[f"{name}[{expert}]"] for expert in range(shape[0])])

    def expert(self, index: int) -> "StoredWeight":
        """The matrix of one expert."""
        return self.like(parts=tuple(part._replace(name=f"{part.name}[{index}]") for part in self.parts))

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., out) in the type of x; differentiable in x."""
        if x.requires_grad and torch.is_grad_enabled():
            return _Product.apply(x, self)
        flat = x.reshape(-1, x.shape[-1])
        flat = flat if x.dtype is torch.float32 else flat.float()
        parts = [
            _ordered(self.source.product(name, _ordered(flat, columns, -1)), rows, -1) for name, rows, columns in self.parts
        ]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        y = y if x.dtype is torch.float32 else y.to(x.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])

    def lookup(self, index: torch.Tensor) -> torch.Tensor:
        """The rows ``index``, (*index.shape, in); only these are dequantized."""
        (part,) = self.parts
        start = time.perf_counter_ns()
        flat = index.flatten()
        rows = self.source.weights.rows(part.name, flat if part.rows is None else part.rows[flat])
        self.source.weights.trace.add("embed", start, time.perf_counter_ns(), part.name, nbytes=rows.nbytes)
        return rows.to(self.dtype).view(*index.shape, rows.shape[-1])

    def __repr__(self, **_):
        names = " + ".join(part.name for part in self.parts)
        return f"StoredWeight({names}, shape={tuple(self.shape)}, {self.source.weights.file.path})"

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), _parameter(self.source, self.parts, self.dtype, self.transposed))

    def __reduce_ex__(self, protocol):
        return _parameter, (self.source, self.parts, self.dtype, self.transposed)

    @classmethod
    @torch.compiler.disable
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(*args, **kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():  # results are ordinary tensors
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (_aten.detach.default, _aten.alias.default):
            return args[0].like()
        if func is _aten._to_copy.default and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return args[0].like(dtype=kwargs.get("dtype") or args[0].dtype)
        if func is _aten.copy_.default and isinstance(args[0], StoredWeight) and args[0].same(args[1]):
            return args[0]  # load_state_dict with the same weights
        if func._schema.is_mutable and isinstance(args[0], StoredWeight):
            raise ModelError(f"{args[0]!r} is read-only ({func}): train an adapter instead")
        if func is _aten._to_copy.default:
            raise ModelError(f"{args[0]!r} cannot be moved to another device: kit.hf runs on the CPU")
        return func(*torch.utils._pytree.tree_map_only(StoredWeight, StoredWeight.numbers, args), **kwargs)


def _parameter(source, parts, dtype, transposed):
    return torch.nn.Parameter(StoredWeight(source, parts, dtype, transposed), requires_grad=False)


class _Product(torch.autograd.Function):
    """y = W x; the gradient of x is W^T times that of y, with W dequantized."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return weight.product(x.detach())

    @staticmethod
    def backward(ctx, gradient):
        numbers = ctx.weight.numbers().to(gradient.dtype)
        return gradient @ (numbers.T if ctx.weight.transposed else numbers), None


def _ordered(tensor, rows, axis):
    return tensor if rows is None else tensor.index_select(axis, rows)


def _linear(input, weight, bias=None):
    y = weight.product(input)
    return y if bias is None else y + bias


def _addmm(bias, input, weight, *, beta=1, alpha=1):
    if not (isinstance(weight, StoredWeight) and weight.transposed):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.addmm(bias, input, weight, beta=beta, alpha=alpha)
    return torch.add(beta * bias, weight.product(input), alpha=alpha)


def _getitem(weight, index):
    if weight.ndim == 3 and (isinstance(index, int) or (isinstance(index, torch.Tensor) and index.ndim == 0)):
        return weight.expert(int(index))
    with torch._C.DisableTorchFunctionSubclass():
        return weight.numbers()[index]


_HANDLERS = {
    F.linear: _linear,
    F.embedding: lambda input, weight, *_, **__: weight.lookup(input),
    torch.addmm: _addmm,
    torch.Tensor.__getitem__: _getitem,
}
