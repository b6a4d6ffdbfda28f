"""Page 12: which models draft for which, their costs and answers, measured once a run."""

from dataclasses import replace
from pathlib import Path

import kit
from kit.errors import ModelError
from kit.gguf.trained import TRAINED
from kit.lab.drafts import costs, explain, passages
from kit.lab.drafts.predicted import Costs
from kit.lab.measuring import arithmetic
from kit.lab.measuring.kept import once_a_run
from kit.lab.synthetic.write import cached_model
from kit.model.drafters import drafter_of
from kit.model.drafts import Drafting
from kit.system.paths import models_folder

_PAIR = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
_HYBRID = {"smoke": ("tiny-qwen35", 4), "quick": ("qwen3.5-2b", 4), "full": ("qwen3.5-2b", None)}
_MOST = 200  # tokens of a passage: a generated vocabulary has one for each byte
_BLOCKS = 3  # of the passes of an answer, each a sample


def gains(told: Drafting) -> list[float]:
    """Tokens per second with the draft over those without, in turn, by thirds of an answer."""
    if not told.plain or len(told.timed) < _BLOCKS:
        return []
    size = len(told.timed)
    parts = (told.timed[size * n // _BLOCKS : size * (n + 1) // _BLOCKS] for n in range(_BLOCKS))
    return [replace(told, timed=part).speed / told.plain_speed for part in parts]


def pair_of(lab, draft: str = "") -> tuple[Path, str, bool]:
    """(the model, its draft, whether both are trained): those that were given; without a draft Qwen2.5-Coder 1.5B and 0.5B
    where they are here, unless the profile is smoke; else a generated model in two types, of which the smaller drafts."""
    if draft and not lab.model:
        raise ModelError(f"page 12: {draft} drafts for no model: give `model` too")
    if draft:
        return lab.path(), draft, True
    trained = [models_folder() / TRAINED[name].file for name in _PAIR]
    if lab.profile.name != "smoke" and all(path.exists() for path in trained):
        return trained[0], str(trained[1]), True
    name, layers = lab.profile.models["tinyllama-1.1b"]
    sides = [cached_model(name, mix, layers, lab.seed, models_folder()) for mix in ("Q8_0", "Q4_K_M")]
    return sides[0], str(sides[1]), False


def without_draft(lab, draft: str, path: Path) -> str:
    """What the page says where it answers for a pair (of ``path``) that is not the user's model."""
    if draft or not lab.model or lab.path() == path:
        return ""
    return " Your model has no draft here: give one by `-p draft=FILE`, of the same vocabulary."


def hybrid_of(lab) -> Path:
    """A generated model most of whose layers have states."""
    name, layers = _HYBRID[lab.profile.name]
    return cached_model(name, "Q4_K_M", layers, lab.seed, models_folder())


def _model(path):
    file = kit.open(path)
    return kit.Transformer(kit.Weights(file), linear="fused", max_context=min(1024, kit.Transformer(file).max_context))


@once_a_run
def verification(path: Path, samples: int, most: int = 8) -> list[Costs]:
    """Costs of passes over 1 to ``most`` + 1 tokens, a row for each of ``samples`` rounds."""
    model = _model(path)
    ids, cache = passages.ids_of(model, "prose")[:_MOST], model.new_cache()
    model.step(ids, cache)
    return costs.verification(model, cache, ids, most, samples)


@once_a_run
def drafting(path: Path, draft: str, samples: int) -> dict:
    """What costs.drafting finds."""
    model = _model(path)
    return costs.drafting(model, drafter_of(model, draft, 4), passages.ids_of(model, "code")[:_MOST], samples)


@once_a_run
def answers(path: Path, draft: str, tokens: int) -> dict[str, tuple[Drafting, Costs]]:
    """Passage -> what drafts gave in an answer of up to ``tokens`` tokens, in drafts of explain.DRAFTED, and what they cost."""
    model = _model(path)
    texts = {name: passages.ids_of(model, name)[-_MOST:] for name in passages.PASSAGES}
    return explain.in_turn(model, drafter_of(model, draft, explain.DRAFTED), texts, tokens)


@once_a_run
def agreement(path: Path, draft: str) -> dict[str, tuple[float, float]]:
    """Passage -> how often in % both models have the same next token in its second half, (without, with) the first half."""
    both, shares = [_model(path), _model(draft)], {}
    for name in passages.PASSAGES:
        ids = passages.ids_of(both[0], name)[:_MOST]
        half = len(ids) // 2
        short, long = ([model.logits(some, -(len(ids) - half)).argmax(1) for model in both] for some in (ids[half:], ids))
        shares[name] = tuple(100 * float((a == b).float().mean()) for a, b in (short, long))
    return shares


@once_a_run
def rates() -> dict[str, float]:
    """Operations per second by kind of arithmetic."""
    return {kind: rate.best for kind, rate in arithmetic.probe(2).items()}
