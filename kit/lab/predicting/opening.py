"""A model as the commands open it: `kit generate`, `kit perplexity` and `kit experts` refuse the same options by one table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import click
from click.core import ParameterSource

import kit
from kit.cache.policies.base import Policy
from kit.gguf.foreign import check_language_model, check_model
from kit.model.architectures import ARCHITECTURES, SIDECARS
from kit.model.budget import Budget, room_for_kept, weights_within
from kit.model.pinned import PinnedBlocks
from kit.products import PRODUCTS
from kit.units import format_bytes, printable

THROUGH = {row.linear: row.weights for row in PRODUCTS.values()}  # --linear -> weights of kit.hf.load
BLOCKS = tuple(THROUGH)  # variants of kit.linear that use no cache and no backend
OWN, TRANSFORMERS = "kit's own pass", "transformers"  # whose pass runs a file
_OWN_BLOCKS = "multiplies with the file's own blocks"
_ON_TILES = ("backend", "dtype", "linear", "memory")  # what changes nothing of a compressed model
_ON_TRANSFORMERS = ("attention", "backend", "context", "dtype", "kv", "memory", "routes")


class Options(NamedTuple):
    """The options of a command that opens a model, as `kit generate --help` says them; ``dtype`` as `kit perplexity --help`
    does. ``asked``: the names of those that the user gave."""

    linear: str = "auto"
    cache: str | None = None
    memory: str | None = None
    policy: str = "LRU"
    backend: str = "cpu"
    attention: str = "fused"
    context: int | None = None
    kv: str = "float32"
    pages: str = "large"
    dtype: str = "float32"
    asked: frozenset[str] = frozenset()

    @property
    def pins(self) -> bool:
        """Whether --cache names blocks to hold in memory, where the products read blocks."""
        return (self.cache or "").startswith("pinned:") and not self.memory

    def chosen(self, file) -> str:
        """What --linear auto is: the file's blocks, unless rounded weights, a backend or a cache of float32 weights are asked
        for; pinned:SIZE holds blocks where the kit's own pass and direct reads run the file."""
        if self.linear != "auto":
            return self.linear
        holds = (self.cache or "").startswith("pinned:") and via(file) == OWN and file.byteorder == "little"
        floats = "backend" in self.asked or ("cache" in self.asked and not holds)
        return "matmul" if self.dtype != "float32" else "dequantized" if floats else "fused"


def asked_of(ctx: click.Context) -> frozenset[str]:
    """The names of the options that a user gave."""
    return frozenset(name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT)


def refuse(idle: dict[str, str], asked: frozenset[str]) -> None:
    """UsageError for the first option of ``idle`` that was ``asked`` for: its name -> why it has no effect."""
    for name in filter(asked.__contains__, idle):
        raise click.UsageError(f"--{name.replace('_', '-')} has no effect {idle[name]}")


def refuse_idle(how: Options) -> None:
    """UsageError for an option that has no effect beside the others, whatever the file."""
    floats = ("cache", "backend", "dtype")
    idle = {} if how.memory else {"policy": "without --memory: add --memory SIZE"}
    if how.linear in BLOCKS:
        why = f"because --linear {how.linear} {_OWN_BLOCKS}; use --linear dequantized, or leave it out"
        idle |= {name: why for name in floats if name != "cache" or not how.pins}
    if how.memory:
        idle |= dict.fromkeys(floats, "with --memory, which holds the file's own blocks: leave it out")
        if how.linear not in (*BLOCKS, "auto"):
            idle["memory"] = f"with --linear {how.linear}, because it holds the file's own blocks: use --linear fused"
    refuse(idle, how.asked - {"dtype"} if how.dtype == "float32" else how.asked)


def via(file) -> str:
    """Whose pass runs an open file."""
    own = file.compressed or file.architecture in (*ARCHITECTURES, *SIDECARS)  # kit says best what is no model
    return OWN if own or not kit.hf.installed() else TRANSFORMERS


def open_file(path, pages: str = "large", blocks: bool = False):
    """An open language model; ModelError for any other file, and with ``blocks`` for a compressed model."""
    file = kit.open(path, pages)
    (check_model if blocks else check_language_model)(file)
    return file


@dataclass(frozen=True)
class OpenModel:
    """``file`` with what runs it: ``linear``, and the ``kept`` policy of dequantized weights or of pinned blocks. ``budget``
    says how --memory is divided, None without. ``make(policy, trace)``: the model with another policy."""

    file: object
    how: Options
    linear: str
    via: str
    kept: Policy
    make: Callable
    budget: Budget | None = None
    slots: object = None

    @property
    def pins(self) -> bool:
        """Whether a part of the file's blocks is held in memory by --cache."""
        return self.linear in BLOCKS and "cache" in self.how.asked

    @property
    def straight(self) -> bool:
        """Whether the kit's own pass reads the blocks of a file that fits: what drafts and times by depth need."""
        return self.linear in BLOCKS and self.via == OWN and not self.how.memory

    @property
    def told(self) -> str:
        """Where the weights of a token are, in words."""
        if self.budget and not self.budget.whole:
            pinned = f"{format_bytes(self.budget.pinned)} of blocks pinned"
            return self.slots.how if self.slots else pinned if self.budget.pinned else "straight from the file"
        return "straight from the file" if self.linear in BLOCKS and not self.pins else repr(self.kept)

    def model(self, trace=None):
        """The model, with ``logits(tokens, first)``, ``tokenizer`` and ``max_context``."""
        return self.make(self.kept, trace)

    def generate(self, policy, *given, trace=None, **more) -> "kit.Generation":
        """kit.generate with another policy, or kit.hf.generate where transformers runs the file."""
        if self.via == OWN:
            return kit.generate(self.make(policy, trace), *given, **more)
        return kit.hf.generate(self.file, *given, **more, **_through(self.linear, policy))


def open_model(path, how: Options, within: Callable[[object], dict] | None = None, trace=None) -> OpenModel:
    """The model of a file as the options say. ``within(file)``: arguments of kit.model.budget.divide, for --memory.

    UsageError for options that have no effect, ModelError where the file or the options do not fit; nothing has run then."""
    refuse_idle(how)
    file = open_file(path, "small" if how.memory and "pages" not in how.asked else how.pages)
    if file.compressed:
        return _of_tiles(file, how)
    linear = how.chosen(file)
    if via(file) == TRANSFORMERS:
        return _of_transformers(file, how, linear)
    if how.memory:
        given = within(file)
        weights, budget = weights_within(file, how.memory, how.policy, trace, kv_dtype=how.kv, **given)
        model = kit.Transformer(weights, how.attention, linear, given["context"], how.kv)
        return OpenModel(file, how, linear, OWN, kit.NoCache(), lambda *_: model, budget, weights.experts)

    def make(policy, trace):
        return kit.Transformer(_weights(file, how, linear, policy, trace), how.attention, linear, how.context, how.kv)

    make(None, None)  # raises before anything runs
    return OpenModel(file, how, linear, OWN, _kept(file, how, linear), make)


def _of_tiles(file, how: Options) -> OpenModel:
    refuse(dict.fromkeys(_ON_TILES, "on a compressed model: leave it out"), how.asked)
    tiles = kit.codec.CompressedFile(file.path)

    def make(policy, trace):
        weights = kit.codec.CompressedWeights(tiles, policy, trace=trace)
        return kit.Transformer(weights, how.attention, None, how.context, how.kv)

    make(None, None)
    kept = policy_of(how.cache, file, kit.codec.CompressedWeights(tiles).unpacked_bytes)
    return OpenModel(file, how, "compressed tiles", OWN, kept, make)


def _of_transformers(file, how: Options, linear: str) -> OpenModel:
    from kit.lab.predicting.perplexity import Through

    why = f"on {printable(file.architecture)}, which runs through transformers: leave it out"
    refuse(dict.fromkeys((*_ON_TRANSFORMERS, *["cache"] * (linear in BLOCKS)), why), how.asked)
    make = lambda policy, _: Through(file, **_through(linear, policy))  # noqa: E731
    return OpenModel(file, how, linear, TRANSFORMERS, _kept(file, how, linear), make)


def _kept(file, how: Options, linear: str) -> Policy:
    if linear in BLOCKS and not how.cache:
        return kit.NoCache()
    return policy_of(how.cache, file, kit.Weights(file).working_set)


def _through(linear: str, policy) -> dict:
    return {"weights": THROUGH[linear]} if linear in THROUGH else {"cache": policy}


def _weights(file, how: Options, linear: str, policy, trace):
    if how.dtype != "float32":
        from kit.lab.predicting.quality import Rounded, rounding_to

        return Rounded(file, rounding_to(how.dtype))
    if isinstance(policy, kit.Pinned) and linear in BLOCKS:
        return PinnedBlocks(file, policy.capacity, trace)
    return kit.Weights(file, policy, how.backend, trace=trace)


def policy_of(text: str | None, file, working_set: int) -> Policy:
    """The policy of --cache for weights of so many bytes."""
    text = text or "auto"
    name, _, capacity = text.partition(":")
    if text == "auto":
        room = room_for_kept(file)
        return kit.HashMap() if working_set <= room else kit.Pinned(room) if room else kit.NoCache()
    plain, limited = {"none": kit.NoCache, "all": kit.HashMap}, {"lru": kit.LRU, "pinned": kit.Pinned}
    if name in plain and not capacity:
        return plain[name]()
    if name in limited and capacity:
        return limited[name](capacity)
    message = f"{text!r} is not one of none, all, auto, lru:SIZE, pinned:SIZE (a size such as 4GiB)"
    raise click.BadParameter(message, param_hint="--cache")
