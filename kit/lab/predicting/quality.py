"""The effect of a precision on a model's quality: perplexity, and KL divergence of the next-token distribution."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch

import kit
from kit.codec.codings import quantize
from kit.cpu.linear import FEWEST, rounds_alike
from kit.errors import ModelError, library
from kit.lab.compressor import matrices_of
from kit.lab.engines.table import ROUNDED
from kit.lab.measuring import conditions
from kit.lab.measuring.machine import machine_id
from kit.lab.measuring.measurements import QUALITY, Reading, digest_of, shared
from kit.lab.predicting import divergence
from kit.lab.predicting.divergence import LogitSource
from kit.lab.predicting.losses import format_kl
from kit.lab.predicting.ways import PRECISION_OF
from kit.model.hyperparameters import read_config
from kit.model.tokenizer import tokenizer_of
from kit.model.weights import Weights
from kit.system.paths import PACKAGE
from kit.units import format_count, with_error

_ROUNDED_ROWS = 256  # rows of weights that are rounded at a time, so that they stay in the CPU's caches
_AT_ONCE = FEWEST - 1  # tokens that the kernels of a decode multiply
_FEW = 5e11  # weights times tokens
_CODE = (
    *(f"{part}/**/*.py" for part in ("codec", "cpu", "gguf", "model", "quants")),
    "lab/predicting/quality.py",
    "lab/predicting/divergence.py",
)


class Precision(NamedTuple):
    """What is rounded: ``told`` in words, ``command`` as options of `kit perplexity`. ``weights``: a function that rounds a
    float32 tensor. ``linear`` rounds activations, ``kv`` the KV cache."""

    told: str = ""
    command: str = ""
    weights: Callable[[torch.Tensor], torch.Tensor] | None = None
    linear: str = "fused"
    kv: str = "float32"


def _int8(weight: torch.Tensor) -> torch.Tensor:
    """A matrix rounded as kit.codec stores it: INT8 with one scale per row."""
    values, scales = quantize(weight)
    return torch.from_numpy(values) * torch.from_numpy(scales)[:, None]


EXACT = "float32"
PRECISIONS = {
    EXACT: Precision("exact to float32", linear="matmul"),  # by the same products as the others
    "float16": Precision("weights rounded to 11 bits", "--dtype float16", lambda weight: weight.half().float(), "matmul"),
    "bfloat16": Precision("weights rounded to 8 bits", "--dtype bfloat16", lambda weight: weight.bfloat16().float(), "matmul"),
    **{
        row.precision: Precision(
            f"activations rounded to {row.product.bits} bits", row.product.option.strip(), linear=row.product.linear
        )
        for row in ROUNDED
    },
    "INT8 tiles": Precision("weights rounded to 8 bits, a scale a row", "--dtype int8", _int8, "matmul"),
    "float16 KV": Precision("keys and values rounded to 11 bits", "--kv float16", kv="float16"),
    "q8_0 KV": Precision("keys and values rounded to 8 bits, a scale for 32", "--kv q8_0", kv="q8_0"),
}


def rounding_to(dtype: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function that rounds float32 weights to ``dtype``; None for float32."""
    return PRECISIONS[PRECISION_OF[dtype]].weights


class Rounded(Weights):
    """float32 weights after ``rounding``."""

    def __init__(self, file, rounding):
        super().__init__(file)
        self._rounding = rounding
        self._kept = set(file.tensors) - {name for name, _ in matrices_of(file)} if rounding is _int8 else ()

    def load(self, name):
        return self._round(name, super().load(name))

    def rows(self, name, index):
        return self._round(name, super().rows(name, index))

    def _round(self, name, weight):
        for rows in () if name in self._kept else weight.split(_ROUNDED_ROWS):
            rows.copy_(self._rounding(rows))
        return weight


def model_of(file, precision: Precision, **options) -> "kit.Transformer":
    """The model of an open file with weights, activations and KV cache rounded to ``precision``."""
    weights = Rounded(file, precision.weights) if precision.weights else Weights(file)
    return kit.Transformer(weights, linear=precision.linear, kv_dtype=precision.kv, **options)


def quality(file, names=None, tokens: int = 0, progress: bool = False, others: Mapping[str, LogitSource] | None = None):
    """One row for each precision (``names`` of PRECISIONS; None: all) and each of ``others``, which compute the same text
    elsewhere, by the estimator of kit.lab.predicting.divergence, with attention by torch.

    Columns, with standard errors in ``..._error``: perplexity; ratio (perplexity over that of float32); kl (mean KL
    divergence of the next-token distribution from that of float32, nats); same (share of tokens with the same most
    probable token); tokens (scored); command (options of ``kit perplexity``). Standard errors allow for neighboring tokens that
    depend on each other (measuring.intervals). A way that rounds activations is asked a few tokens at a time where a prompt
    rounds them less: its KL is that of a decode, beside whose speed it is shown.
    ``tokens``: of the text; 0: as many as divergence.tokens_for says.
    Rows are kept in the shared store under a digest of the file and of the code that computes logits. ModelError for a
    file that the kit cannot run or whose text takes minutes, TokenizerError for one without a tokenizer.
    """
    names, others = list(PRECISIONS if names is None else names), dict(others or {})
    weights = sum(info.elements for info in file.tensors.values())
    if not (tokens := tokens or divergence.tokens_for(weights)):
        raise ModelError(f"{file.path}: with {format_count(weights)} weights this takes minutes: add --thorough")
    model = partial(model_of, file, attention="blas")  # kit explain compiles no kernel of attention for one prompt
    exact = model(PRECISIONS[EXACT])
    window = divergence.window_of(exact.tokenizer, exact.config.context, tokens)
    digest = _digest(file, exact.config, window)
    known = _known(digest)
    few = weights * len(window) < _FEW  # then no kernel for prompts is compiled
    if missing := [name for name in (*names, *others) if name not in known]:
        truth = _source(exact, len(window), few)
        sources = {name: others[name] if name in others else truth if name == EXACT
                   else _source(model(PRECISIONS[name]), len(window), few) for name in missing}  # fmt: skip
        for name, row in divergence.compare(window, truth, sources, progress).items():
            known[name] = shared().add(Reading(QUALITY + name, digest, (row["kl"],), "nats", row=row)).row
    commands = {name: PRECISIONS[name].command for name in names}
    rows = [{"precision": name, **known[name], "command": commands.get(name, "")} for name in (*names, *others)]
    return library("pandas").DataFrame(rows).set_index("precision")


def kept(file, tokens: int = 0) -> dict[str, dict[str, float]]:
    """Name -> the columns of ``quality`` that were measured of an open file before, of precisions and of ``others``, on so many
    ``tokens``; nothing is measured. KitError as of ``quality``."""
    weights = sum(info.elements for info in file.tensors.values())
    if not (tokens := tokens or divergence.tokens_for(weights)):
        return {}
    config = read_config(file)
    return _known(_digest(file, config, divergence.window_of(tokenizer_of(file), config.context, tokens)))


def _known(digest: str) -> dict[str, dict[str, float]]:
    rows = (row for row in shared() if row.file == digest and row.way.startswith(QUALITY))
    return {row.way.removeprefix(QUALITY): row.row for row in rows if row.row.keys() >= divergence.COLUMNS}


def from_blocks(file, tokens: int, linear: str = "fused") -> LogitSource:
    """Products computed from the blocks, by a row of kit.products, for a text of this many tokens."""
    return _source(model_of(file, Precision(linear=linear), attention="blas"), tokens, few=False)


def _source(model, context: int, few: bool) -> LogitSource:
    """A model as a LogitSource; with ``few``, a few tokens at a time from the blocks."""
    cache = model.new_cache(context)
    rounds = model.linear.activations
    some = _AT_ONCE if rounds and (few or not rounds_alike(rounds)) else context

    def step(ids):
        return torch.cat([model.logits(ids[at : at + some], 0, cache) for at in range(0, len(ids), some)])

    return LogitSource(step)


def lost(name: str, table=None) -> str:
    """What a precision rounds, in words, with its KL divergence from a ``table`` of ``quality`` that has it."""
    if name == EXACT or table is None:
        return PRECISIONS[name].told
    if isinstance(table, str) or name not in table.index:
        return f"{PRECISIONS[name].told}, its effect not measured"
    row = table.loc[name]
    over = f" over {row['tokens']:,.0f} positions" if "tokens" in row else ""
    return f"{PRECISIONS[name].told}, KL {format_kl(row['kl'], row['kl_error'])} nats{over}"


def with_errors(table):
    """The table of ``quality`` as text, with each error next to its figure."""
    texts = {"perplexity": partial(with_error, digits=".2f"), "ratio": partial(with_error, digits=".4f"), "kl": format_kl}
    columns = {
        name: [text(*pair) for pair in zip(table[name], table[f"{name}_error"], strict=True)] for name, text in texts.items()
    }
    names = {"ratio": "of float32's", "kl": "KL to float32 (nats)"}
    out = library("pandas").DataFrame(columns, index=table.index).rename(columns=names)
    return out.assign(**{"same token": [f"{share:.1%}" for share in table.same], "kit perplexity": table.command})


def _digest(file, config, window) -> str:
    """A digest of what the figures depend on: hyperparameters, samples of every tensor, tokens, code, and how this machine adds
    up: its vectors, threads and libraries."""
    how = machine_id(), sorted(conditions.computing().items())
    digest = hashlib.sha256(repr((torch.__version__, config, window, digest_of(file), how)).encode())
    for source in sorted(path for pattern in _CODE for path in PACKAGE.glob(pattern)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
