"""The effect of a precision on a model's quality: perplexity, and KL divergence of the next-token distribution."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

import kit
from kit.codec.codings import quantize
from kit.codec.compressor import matrices_of
from kit.cpu import gemm, gemm_codes
from kit.errors import GGUFError, library
from kit.lab.costs.ways import PRECISION_OF
from kit.model import perplexity
from kit.model.weights import Weights
from kit.system.files import replacing
from kit.system.paths import PACKAGE, models_folder

_ROWS = 16  # rows of logits in float64 at a time
_ROUNDED_ROWS = 256  # rows of weights that are rounded at a time, so that they stay in the CPU's caches
_AT_ONCE = min(gemm.FEWEST, gemm_codes.FEWEST) - 1  # tokens that the kernels of a decode multiply
_SAMPLE = 4096  # bytes of each end of a tensor that are part of a file's digest
_CODE = (*(f"{part}/**/*.py" for part in ("codec", "cpu", "gguf", "model", "quants")), "lab/costs/quality.py")


class Precision(NamedTuple):
    """What is rounded: ``told`` in words, ``command`` as options of `kit perplexity`. ``weights``: a function that rounds a
    float32 tensor. Activations are rounded by ``linear``, the KV cache by ``kv``."""

    told: str = ""
    command: str = ""
    weights: Callable[[torch.Tensor], torch.Tensor] | None = None
    linear: str = "fused"
    kv: str = "float32"


def _int8(weight: torch.Tensor) -> torch.Tensor:
    """A matrix rounded as kit.codec stores it: INT8 with a scale for each row."""
    values, scales = quantize(weight)
    return torch.from_numpy(values) * torch.from_numpy(scales)[:, None]


EXACT = "f32"
PRECISIONS = {
    EXACT: Precision("exact to float32", linear="matmul"),  # by the same products as the others
    "f16": Precision("weights rounded to 11 bits", "--dtype float16", lambda weight: weight.half().float(), "matmul"),
    "bf16": Precision("weights rounded to 8 bits", "--dtype bfloat16", lambda weight: weight.bfloat16().float(), "matmul"),
    "int8 activations": Precision("activations rounded to 8 bits", "--linear fused-int8", linear="fused-int8"),
    "INT8 tiles": Precision("weights rounded to 8 bits, a scale a row", "--dtype int8", _int8, "matmul"),
    "f16 KV": Precision("keys and values rounded to 11 bits", "--kv float16", kv="float16"),
    "q8_0 KV": Precision("keys and values rounded to 8 bits, a scale for 32", "--kv q8_0", kv="q8_0"),
}


def rounding_to(dtype: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function that rounds float32 weights to ``dtype``; None for float32."""
    return PRECISIONS[PRECISION_OF[dtype]].weights


class Rounded(Weights):
    """Weights in float32 that ``rounding`` has changed."""

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


def quality(file, names=None, tokens: int = 256, progress: bool = False):
    """One row for each precision (``names`` of PRECISIONS; None: all), measured on ``tokens`` tokens of an English text, with
    attention by torch, and a few tokens at a time where weights are blocks.

    Columns, with standard errors in ``..._error``: perplexity; ratio (perplexity over that of float32); kl (mean KL
    divergence of the next-token distribution from that of float32, nats); same (share of tokens with the same most
    probable token); tokens (scored); command (options of ``kit perplexity``). Standard errors assume independent tokens.
    Rows are stored in the models folder under a digest of the file and of the code that computes logits. ModelError for a
    file that the kit cannot run, TokenizerError for one without a tokenizer.
    """
    names = list(PRECISIONS if names is None else names)
    model = partial(model_of, file, attention="blas")  # and _AT_ONCE: kit explain compiles no kernels for one prompt
    exact = model(PRECISIONS[EXACT])
    window = window_of(exact, tokens)
    path = models_folder() / f"quality-{_digest(file, exact.config, window)}.json"
    known = {}
    with suppress(OSError, ValueError):  # what cannot be read is measured again
        known = json.loads(path.read_text(encoding="utf-8"))
    missing = [name for name in names if name not in known]
    if missing:
        truth = exact.logits(window)[:-1]
        bar = tqdm(missing, "quality", disable=None if progress else True)
        for name in bar:
            bar.set_postfix_str(name)
            logits = truth if name == EXACT else _logits(model(PRECISIONS[name]), window)[:-1]
            known[name] = compared(truth, logits, window[1:])
        with suppress(OSError, GGUFError):  # what cannot be written is measured again at the next call
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as out:
                out.write(json.dumps(known, indent=1).encode())
    rows = [{"precision": name, **known[name], "command": PRECISIONS[name].command} for name in names]
    return library("pandas").DataFrame(rows).set_index("precision")


def _logits(model, window: list[int]) -> torch.Tensor:
    """Logits after each token of the window; from blocks a few tokens at a time."""
    some, cache = _AT_ONCE if model.linear.activations else len(window), model.new_cache(len(window))
    return torch.cat([model.logits(window[at : at + some], 0, cache) for at in range(0, len(window), some)])


class Truth(NamedTuple):
    """The token ids of a text, and the exact logits after each: (tokens, vocabulary) float32."""

    window: list[int]
    logits: torch.Tensor

    def beside(self, logits) -> dict[str, float]:
        """The columns of ``quality`` for other logits of the same shape, also of numpy; the last has no token that follows."""
        return compared(self.logits[:-1], torch.as_tensor(logits[:-1]), self.window[1:])


def truth_of(file, tokens: int) -> Truth:
    """At most ``tokens`` of an English text as one prompt, multiplied by weights that are dequantized to float32."""
    model = kit.Transformer(Weights(file), linear="matmul")
    window = window_of(model, tokens)
    return Truth(window, model.logits(window))


def window_of(model, tokens: int) -> list[int]:
    """At most ``tokens`` token ids of an English text that fit the model's context, as the file begins a text."""
    begin = [] if model.tokenizer.bos is None else [model.tokenizer.bos]
    room = min(tokens, model.config.context) - len(begin)
    return begin + perplexity.encode(model.tokenizer, perplexity.english(), room)


def with_errors(table):
    """The table of ``quality`` as text, with each error beside its figure."""
    pairs = {"perplexity": "{:.2f} ± {:.2f}", "ratio": "{:.4f} ± {:.4f}", "kl": "{:.1e} ± {:.0e}"}
    columns = {
        name: [pattern.format(*pair) for pair in zip(table[name], table[f"{name}_error"], strict=True)]
        for name, pattern in pairs.items()
    }
    names = {"ratio": "of f32's", "kl": "KL to f32 (nats)"}
    out = library("pandas").DataFrame(columns, index=table.index).rename(columns=names)
    return out.assign(**{"same token": [f"{share:.1%}" for share in table.same], "kit perplexity": table.command})


def compared(truth: torch.Tensor, logits: torch.Tensor, targets: Sequence[int]) -> dict[str, float]:
    """The columns of ``quality`` for logits (tokens, vocabulary) beside the exact ones; ``targets``: the tokens that follow."""
    index, parts = torch.as_tensor(targets)[:, None], []
    for at in range(0, len(targets), _ROWS):
        right, found = (side[at : at + _ROWS].double().log_softmax(1) for side in (truth, logits))
        surprisals = (-side.gather(1, index[at : at + _ROWS])[:, 0] for side in (right, found))
        same = (right.argmax(1) == found.argmax(1)).double()
        parts.append(torch.stack([*surprisals, (right.exp() * (right - found)).sum(1), same]))
    right, found, divergence, same = torch.cat(parts, 1).numpy()
    value, ratio = math.exp(found.mean()), math.exp((found - right).mean())
    return {
        "perplexity": value, "perplexity_error": value * perplexity.standard_error(found),
        "ratio": ratio, "ratio_error": ratio * perplexity.standard_error(found - right),
        "kl": float(divergence.mean()), "kl_error": perplexity.standard_error(divergence),
        "same": float(same.mean()), "tokens": len(targets),
    }  # fmt: skip


def _digest(file, config, window) -> str:
    """A digest of what the figures depend on: hyperparameters, samples of every tensor, tokens, code."""
    digest = hashlib.sha256(repr((torch.__version__, config, window)).encode())
    for source in sorted(path for pattern in _CODE for path in PACKAGE.glob(pattern)):
        digest.update(source.read_bytes())
    for name, info in file.tensors.items():
        data = np.ascontiguousarray(file.blocks(name)).reshape(-1)
        digest.update(repr((name, info.qtype, info.shape)).encode())
        digest.update(data[:_SAMPLE].tobytes() + data[-_SAMPLE:].tobytes())
    return digest.hexdigest()[:16]
