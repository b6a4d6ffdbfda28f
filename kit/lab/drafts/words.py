"""What kit explain MODEL --draft X prints: one sentence that answers, then the passages, the curve and the costs."""

from math import inf

from kit.lab.drafts.explain import DRAFTED
from kit.lab.explaining.lines import paragraph
from kit.lab.explaining.tables import as_text
from kit.lab.measuring.busy import WORTH, Busy
from kit.lab.tables import frame
from kit.units import format_bytes, format_seconds

_NAMES = {"ngram": "text that repeats", "mtp": "the file's MTP head"}
NONE = "–"


def text(data: dict) -> str:
    """All of it, for a terminal."""
    parts = [Busy(data["busy_others"]).line] if data["busy"] else []
    parts.append(answer(data))
    if head := data["head"]:
        parts.append(of_head(head))
    parts = list(map(paragraph, parts))
    if data["passages"]:
        parts += [_passages(data), _curve(data), paragraph(_costs(data))]
    return "\n\n".join(parts)


def answer(data: dict) -> str:
    """The sentence: on what a draft pays, what it accepts there, and at which acceptance it breaks even."""
    name, rows = _NAMES.get(data["draft"], data["draft"]), data["passages"]
    known = [row for row in rows if row["acceptance"] is not None]
    if not rows:
        share = data["head"]["share"]
        return (
            f"A draft by {name} reads {share:.0%} of the bytes of a token: below an acceptance of {share:.0%} it loses even if "
            "verification costs nothing."
        )
    if not known:
        return f"A draft by {name} proposed nothing for {_listed([row['name'] for row in rows])}, so it changes nothing."
    accepts = f"the model accepts {_listed([_percent(row) for row in known])}"
    if data["busy"]:
        texts = _listed([row["name"] for row in known])
        return f"A busy machine hides whether a draft by {name} pays: on {texts} {accepts}."
    even = data["break_even"][str(DRAFTED)]
    even = f"it breaks even at {even:.0%}" if even is not None else "it would lose if all were accepted"
    gains = {row["name"]: row["measured"] or row["predicted"] for row in known}
    kinds = {"pays on": _between(gains, WORTH, inf), "changes nothing on": _between(gains, 1 / WORTH, WORTH),
             "does not pay on": _between(gains, 0, 1 / WORTH)}  # fmt: skip
    said = ", ".join(f"{verb} {_listed(some)}" for verb, some in kinds.items() if some)
    return f"A draft by {name} {said}: {accepts}; {even}."


def _between(gains: dict[str, float], low: float, high: float) -> list[str]:
    """The texts on which a draft is from ``low`` to below ``high`` times as fast, each with its gain."""
    return [f"{on} ({gain:.3g} times)" for on, gain in gains.items() if low <= gain < high]


def of_head(head: dict) -> str:
    """What an MTP head costs, in bytes."""
    least = head["least_break_even"]["1"]
    even = f"a draft of one token then breaks even at {least:.0%}" if least is not None else "no draft of one token gains"
    return (
        f"The file's MTP head (layer {head['layer']}) reads {format_bytes(head['draft_bytes'])} for a drafted token: "
        f"{format_bytes(head['block_bytes'])} of its block and {format_bytes(head['output_bytes'])} of {head['output']}. "
        f"A token reads {format_bytes(head['token_bytes'])}. If a verification cost no more than a token, {even}."
    )


def _passages(data) -> str:
    rows = [
        (row["name"], _percent(row), row["accepted"], row["drafted"], _number(row["tokens_per_pass"]), _times(row["predicted"]),
         _times(row["measured"]), _best(row))
        for row in data["passages"]
    ]  # fmt: skip
    names = ("passage", "accepts", "taken", "drafted", "per pass", "predicted", "measured", "best")
    return f"WHAT A DRAFT OF {DRAFTED} GAINS (accepts: if all before it were taken)\n" + as_text(frame(rows, *names))


def _curve(data) -> str:
    even = data["break_even"]
    rows = [
        (row["tokens"], format_seconds(row["measured"]), _times(row["times"]), format_seconds(row["seconds"]), row["by"],
         _share(even.get(str(row["tokens"] - 1))))
        for row in data["curve"]
    ]  # fmt: skip
    return "A PASS OVER SEVERAL TOKENS\n" + as_text(frame(rows, "tokens", "seconds", "of one", "least", "by", "breaks even at"))


def _costs(data) -> str:
    cost = data["costs"]
    reads = f"and reads {format_bytes(cost['draft_bytes'])}" if cost["draft_bytes"] else "and reads no weights"
    told = (
        f"A drafted token takes {format_seconds(cost['drafted_token'])} {reads}. Each draft takes "
        f"{format_seconds(cost['catch_up'])} more, each further token that it reads {format_seconds(cost['read_token'])}, and "
        f"taking tokens back {format_seconds(cost['back'])}."
    )
    if cost["state_bytes"]:
        states = format_bytes(cost["state_bytes"])
        told += f" A pass copies {states} of states first, in {format_seconds(cost['copies'])}."
    return told


def _listed(words) -> str:
    *some, last = words
    return f"{', '.join(some)} and {last}" if some else last


def _percent(row) -> str:
    return _share(row["acceptance"])


def _share(value) -> str:
    return NONE if value is None else f"{value:.0%}"


def _times(value) -> str:
    return NONE if value is None else f"{value:.2f}x"


def _number(value) -> str:
    return NONE if value is None else f"{value:.2f}"


def _best(row) -> str:
    if row["best"] is None:
        return NONE
    return f"{row['best']} ({row['best_predicted']:.2f}x)" if row["best"] else "none"
