"""A second turn that only appends: what a server computes again, by its own account or by the time to the first token."""

_TURN, _MORE = 192, 16  # positions of a first turn, and those that a second one appends


def measured(running) -> dict | None:
    """Positions of both turns, new ones and computed ones, seconds to the first token with the prefix cache and without; None
    where it cannot be asked. ``running``: a kit.lab.explaining.running.Running."""
    tokenizer = running.server.tokenizer
    length = _TURN if running.per_position * _TURN < max(1.0, (running.budget - running.spent) / 4) else 48
    if tokenizer is None or not running.prompts or (running.context and length + 2 * _MORE + 8 > running.context):
        return None
    first = running.prompt(length)
    turn = running.ask(first, 8)
    if turn.fault:
        return None
    said = [*turn.ids] or tokenizer.encode(turn.text, special=False, ends=False)
    second = [*first, *said, *running.further(_MORE)]
    on = running.ask(second, 1)
    if on.fault or not on.first:
        return None
    whole = second if running.server.protocol.takes_ids else running.prompt(len(second))
    off = running.ask(whole, 1, cached=False)
    cold = off.first if not off.fault else None
    new = len(second) - length - len(said)
    computed = on.report.computed
    if computed is None or (computed == len(second) and on.report.cached is None and running.server.name == "Ollama"):
        whole_time = max((cold or length * running.per_position + running.overhead) - running.overhead, 1e-9)
        computed = round(len(second) * min(1.0, max(0.0, on.first - running.overhead) / whole_time))
    again = max(0, min(len(second), computed) - new - 1)  # the last token of the answer was never computed
    if computed != on.report.computed and computed < len(second) / 2:
        again = 0  # a time tells no less than that
    return {
        "positions": len(second), "new": new, "computed": computed, "again": again, "seconds": on.first,
        "seconds_without_cache": cold,
    }  # fmt: skip
