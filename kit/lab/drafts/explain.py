"""What kit explain MODEL --draft X says: what a draft costs, how often it is taken, what it gains; as data and in words."""

from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean

import kit
from kit.errors import ModelError
from kit.gguf.foreign import check_language_model
from kit.gguf.sources import model_name
from kit.lab.drafts import costs, heads, passages, predicted
from kit.lab.engines import bounds_of
from kit.lab.measuring.busy import Busy, watching
from kit.model.drafters import MOST, drafter_of
from kit.model.drafts import Drafting, passes
from kit.model.generate import Sampler
from kit.model.hyperparameters import read_config

TOKENS, DRAFTED = 48, 4  # of an answer to a passage; of a draft, as kit generate has it
_CONTEXT = 1024


def explain(name: str, draft: str, say: Callable[[str], None] = lambda text: None, tokens: int | None = None) -> dict:
    """Plain data; docs/json.md has its keys. ``draft``: ngram, mtp, or the file of a smaller model. ModelError, in one line,
    before anything is measured for a draft that cannot be."""
    with kit.open(name) as file:
        check_language_model(file)
        head = heads.head_of(file)
        if draft == "mtp" and head is None:
            raise ModelError(f"{file.path}: it has no MTP head: give ngram, or the file of a smaller model")
        data = {"file": model_name(name), "draft": model_name(draft), "drafted": DRAFTED, "head": head}
        if draft == "mtp" and not heads.runs(file):
            return data | {"curve": [], "costs": None, "passages": []} | Busy().facts
        busy = Busy()
        with watching(busy):
            data |= measured(file, draft, say, tokens or TOKENS)
        return without_times(data) | busy.facts if busy else data | busy.facts


def measured(file, draft, say: Callable[[str], None] = lambda text: None, tokens: int = TOKENS, linear: str = "fused") -> dict:
    """``curve``, ``costs``, ``break_even`` and ``passages`` of an open file and a draft for it."""
    model = kit.Transformer(kit.Weights(file), linear=linear, max_context=min(_CONTEXT, read_config(file).context))
    drafter, texts = drafter_of(model, draft, DRAFTED), {name: passages.ids_of(model, name) for name in passages.PASSAGES}
    say("measuring memory and arithmetic")
    roof = bounds_of.measured()
    turns = in_turn(model, drafter, texts, tokens, say)
    cost = costs.typical([own for _, own in turns.values()])
    curve = [
        bound | {"measured": seconds, "times": seconds / cost.plain}
        for bound, seconds in zip(costs.bounds(model, roof), cost.verify, strict=True)
    ]
    rows = [_passage(name, *turn) for name, turn in turns.items()]
    even = {str(drafted): predicted.break_even(cost, drafted) for drafted in range(1, MOST + 1)}
    return {
        "curve": curve, "bandwidth": roof.bandwidth, "rates": roof.rates, "break_even": even, "passages": rows,
        "costs": {
            "token": cost.plain, "verify": cost.verify[DRAFTED], "drafted_token": cost.draft, "catch_up": cost.catch_up,
            "read_token": cost.read, "copies": cost.copies, "back": cost.back, "draft_bytes": drafter.nbytes,
            "state_bytes": model.new_cache().fixed_bytes,
        },
    }  # fmt: skip


def in_turn(model, drafter, texts, tokens: int, say: Callable[[str], None] = lambda text: None) -> dict:
    """Text -> (what drafts gave in its answer, the costs before and after it): on a machine that is slower for a minute, costs
    of another minute predict nothing. Drafts are timed for the first text, passes after the second."""
    drafted, passed, *_ = texts.values()

    def timed():
        say(f"timing passes over 1 to {MOST + 1} tokens")
        return costs.one_round(model, drafter, passed, drafted)

    turns, before = {}, timed()
    for name, ids in texts.items():
        say(f"answering {name} with the draft")
        told, after = answered(model, drafter, ids, tokens), timed()
        turns[name], before = (told, costs.typical([before, after])), after
    return turns


def answered(model, drafter, ids, tokens: int) -> Drafting:
    """What drafts gave in an answer of up to so many tokens. A draft that loses stays."""
    told, cache = Drafting(drafter.name, drafter.nbytes, stays=True), model.new_cache()
    ends, done = model.tokenizer.end_tokens, 0
    for new, _, _ in passes(model, cache, ids, Sampler(), drafter, DRAFTED, ends, tokens, told):
        done += len(new)
        if done >= tokens or new[-1] in ends or cache.length == cache.context:
            break
    return told


def _passage(name: str, told: Drafting, cost: predicted.Costs) -> dict:
    """A row: what was counted, what that predicts, and what was measured."""
    row = {"name": name} | {key: asdict(told)[key] for key in ("drafted", "accepted", "passes", "idle", "ties")}
    chance, known = told.chance, told.chance is not None
    seen = told.accepted + told.refused
    drafted, gain = predicted.best(cost, chance, told.share) if known else (0, 1.0)
    return row | {
        "acceptance": chance,
        "error": (chance * (1 - chance) / seen) ** 0.5 if known else None,
        "of_all": told.acceptance,
        "tokens_per_pass": told.tokens / told.passes if told.passes else None,
        "share": told.share,
        "predicted": foreseen(cost, told),
        "measured": gained(told),
        "best": drafted,
        "best_predicted": gain,
    }


def foreseen(cost: predicted.Costs, told: Drafting) -> float | None:
    """The gain from costs alone, by the passes that were timed, each of its own width: a text whose tokens are easy in some
    places and hard in others gives other numbers than one chance for all. None without such."""
    if not told.timed:
        return None
    spent = fmean(predicted.seconds(cost, each.drafted, each.refused, each.read) for each in told.timed)
    return predicted.gain(cost, told.mean("tokens"), spent, told.share)


def gained(told: Drafting) -> float | None:
    """Tokens per second with the draft, passes for which there was none included, over those without, in turn."""
    if not told.timed or not told.plain:
        return None
    drafted, others = told.share * told.mean("tokens"), 1 - told.share  # tokens of a pass, by each kind
    return (drafted + others) / told.plain_speed / (drafted / told.speed + others / told.plain_speed)


def without_times(data: dict) -> dict:
    """The same where others used the cores: counts stay, and nothing is said that compares times."""
    times = dict.fromkeys(("predicted", "measured", "best", "best_predicted"))
    return data | {
        "passages": [row | times for row in data["passages"]],
        "curve": [row | {"times": None} for row in data["curve"]],
        "break_even": dict.fromkeys(data["break_even"]),
    }
