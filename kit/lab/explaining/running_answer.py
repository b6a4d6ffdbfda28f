"""kit explain of a running server as a command: what is printed, compared with an earlier answer, and tried."""

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import kit
from kit.errors import ServerError
from kit.gguf.foreign import check_model
from kit.gguf.sources import resolve
from kit.lab.engines import bounds_of
from kit.lab.engines.server import is_server
from kit.lab.engines.started import Started, changed
from kit.lab.explaining import causes, of_engines, running_words, second_turn
from kit.lab.explaining.lines import paragraph
from kit.lab.explaining.of_engines import this_machine
from kit.lab.explaining.running import NEAR, Running
from kit.lab.measuring.minutes import as_fast
from kit.lab.measuring.state import BUSY
from kit.system.files import check_writable, read_bytes
from kit.units import format_seconds, from_json, to_json

_BUDGET, _ANY = 45.0, 10_000.0  # seconds for what comes after the first answer; of a budget that waits for everything
_ROUNDS = 4  # of before and after, in turn


def explain(
    url: str, say: Callable[[str], object], served: str = "", file: Path | None = None, thorough: bool = False,
    as_json: bool = False, compare: str | None = None, trying: bool = False, figure: str | None = None,
) -> dict:  # fmt: skip
    """Explain a running server; text goes to ``say`` as soon as it is known. Returns the answer as plain data. ``compare``: an
    earlier answer as JSON. ``trying``: name the command that makes the change, because this server is the user's own.
    ``figure``: where decode and prompt are drawn under one roof."""
    before = _read(compare) if compare else None
    answer: dict = {}
    if figure:
        from kit.lab import figures

        check_writable("--figure", figure, ServerError, figures.FILES)
    with Running(url, served, file, budget=_ANY if thorough else _BUDGET) as running:
        if figure and running.file is None:
            raise ServerError(f"--figure: {url}: {'; '.join(running.owner.missing)}: without the file there is no roof")
        for key, value, text in running_words.sections(running):
            if key:
                answer[key] = value
            if text and not as_json:
                say(text + "\n")
        answer["machine"] = this_machine()
        if before:
            answer["compared"] = compared(before, answer)
            as_json or say(answer["compared"]["told"] + "\n")
        if figure and (data := under_roof(running, url)):
            from kit.lab.explaining import roofline

            roofline.save(data, figure)
        if trying and not as_json:
            say(_to_try(running, answer["change"]))
    if as_json:
        say(to_json(answer))
    return answer


def under_roof(running: Running, label: str) -> dict:
    """What is pasted, and drawn by kit.lab.explaining.roofline; prompts are measured for it. {} without the file."""
    if running.file is None or not running.prompts:
        return {}
    told = {key: value for key, value, _ in running_words.decode_sections(running) if key}
    told["engine"] |= {"label": label}
    length, roof = running.prompts[-1][0], bounds_of.measured()
    roof.bandwidth = running.gbps * 1e9  # of the minutes of the decode
    tests = {
        "decode": told["decode"] | {"name": f"tg{running.window_tokens}"},
        "prompt": running_words.prompt(running) | {"name": f"pp{length}", "seconds": running.per_position},
    }
    found = [running_words.plain(cause) for cause in running.decode]
    return told | tests | {
        "engines": [{key: told[key] for key in ("engine", "bound", "mbu")} | tests | {"causes": found}],
        "work": vars(bounds_of.work_of(running.file, length)), "machine": of_engines.this_machine() | vars(roof),
        "file": {"name": running.owner.file.name, "bytes": sum(running.file.sizes)},
    }  # fmt: skip


def of_engine(
    name: str, engine: str, say: Callable[[str], object], served: str, thorough: bool, as_json: bool, compare: str | None,
    trying: bool,
) -> None:  # fmt: skip
    """Explain one server that was named by --engine: its URL, or what starts it on the file ``name``."""
    file = resolve(name)
    with kit.open(file) as opened:
        check_model(opened)
    if is_server(engine):
        explain(engine, say, served, file, thorough, as_json, compare, trying)
    elif trying:
        try_change(engine, file, say, as_json)
    else:
        with Started(engine, file) as server:
            explain(server.url, say, served, file, thorough, as_json, compare)


def _read(path: str) -> dict:
    try:
        said = from_json(read_bytes(path, ServerError))
        compared(said, said)  # what is missing, or of another kind, is said before anything is measured
        return said
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        raise ServerError(f"{path}: not an answer of `kit explain URL --json`: make one before the change") from None


def compared(before: dict, after: dict) -> dict:
    """How many times as fast ``after`` is as ``before``, with an interval from both of theirs, and the sentences: a token near
    the beginning, one at depth where both have the same positions, and what a second turn waits."""
    first, second = before["decode"], after["decode"]
    found, text = _judged(first, second)
    took = f" A token took {format_seconds(first['seconds'])} and takes {format_seconds(second['seconds'])}."
    if max(each.get("others") or 0.0 for each in (first, second)) > BUSY:  # no verdict of a busy machine
        found |= {"verdict": "busy"}
        text = "Other processes used the cores in one of the two: no comparison; measure again without them." + took
    else:
        text = f"It is {text}.{took}"
        (deep, later), turns = ([each.get(key) for each in (before, after)] for key in ("at_depth", "second_turn"))
        if deep and later and deep["positions"] == later["positions"]:
            found["at_depth"], told = _judged(deep, later)
            text += f" After {deep['positions']:,} positions it is {told}."
        if all(turns):
            waits, again = ([format_seconds(each["seconds"]), f"{each['again']:,}"] for each in turns)
            text += f" A second turn waited {waits[0]} and waits {again[0]}; "
            text += f"it computed {waits[1]} positions again and computes {again[1]}."
    names = [Path(each["engine"].get("file") or each["engine"].get("model") or "?").name for each in (before, after)]
    if names[0] != names[1]:
        text += f" The files differ: {names[0]} before, {names[1]} now."
    return found | {"told": paragraph(text)}


def _judged(first: dict, second: dict) -> tuple[dict, str]:
    """Two tests of tokens: ``times``, ``interval``, ``verdict``; and the same in words."""
    times = first["seconds"] / second["seconds"]
    low, high = first["interval"][0] / second["interval"][1], first["interval"][1] / second["interval"][0]
    verdict = "faster" if low > 1 else "slower" if high < 1 else "as fast"
    span = f" ({low:.2f} to {high:.2f})" * (verdict != "as fast")
    return {"times": times, "interval": [low, high], "verdict": verdict}, f"{as_fast(times, low, high, 'before')}{span}"


def _to_try(running: Running, change: dict | None) -> str:
    remedy = change["remedy"] if change else ""
    if not remedy:
        return "There is nothing to try.\n"
    command = running.owner.command
    again = f"kit explain {running.server.url} --compare before.json"
    text = "This server is yours, so kit does not restart it. Keep this answer (`--json > before.json`), then "
    if command and change["flags"]:
        text += "start the server like this, and ask again:"
        return f"{paragraph(text)}\n    {changed(shlex.join(command), change['flags'])}\n    {again}\n"
    return f"{paragraph(f'{text}change this: {remedy}. Then ask again:')}\n    {again}\n"


def try_change(spec: str, file: Path, say: Callable[[str], object], as_json: bool = False) -> dict:
    """Explain a llama-server that kit starts, change what the largest cause names, and time in turn what that cause is of."""
    tell = (lambda text: None) if as_json else say
    with Started(spec, file) as server:
        answer = explain(server.url, tell, file=file)
    change = answer["change"] or {}
    timed = _TIMED.get(change.get("of"))
    if not change.get("flags") or timed is None:
        tell("There is no flag to try.\n")
    else:
        new = changed(spec, change["flags"])
        positions = answer["at_depth"]["positions"] if change["of"] == causes.DEEP else NEAR
        seconds = turns(file, spec, new, _ROUNDS, timed, positions)
        answer["tried"] = {"change": change["flags"], "of": change["of"]} | told_in_turn(spec, new, seconds, change["of"])
        tell(answer["tried"]["told"] + "\n")
    if as_json:
        say(to_json(answer))
    return answer


def _token(running: Running, prompt: list[int]) -> float:
    return running.again(prompt).seconds


def _second_turn(running: Running, prompt: list[int]) -> float:
    _ = running.prompts  # how long its prompts may be
    turn = second_turn.measured(running)
    if turn is None:
        raise ServerError(f"{running.server.url}: a second turn could not be measured")
    return turn["seconds"]


_TIMED = {causes.DECODE: _token, causes.DEEP: _token, causes.TURN: _second_turn}  # a first request is no matter of turns


def turns(
    file: Path, before: str, after: str, rounds: int, timed: Callable[[Running, list[int]], float] = _token,
    positions: int = NEAR,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds of two settings of a server, both started, that answer in turn: one of them computes at a time. ``timed``: of a
    token after a prompt of so many ``positions``, or of a second turn."""
    seconds: dict[str, list[float]] = {before: [], after: []}
    with ExitStack() as stack:
        sides = {}
        for spec in seconds:
            url = stack.enter_context(Started(spec, file)).url
            sides[spec] = stack.enter_context(Running(url, file=file))
        prompts = {spec: running.prompt(positions) for spec, running in sides.items()}
        for number in range(rounds):
            for spec in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                seconds[spec].append(timed(sides[spec], prompts[spec]))
    return seconds


def told_in_turn(before: str, after: str, seconds: dict[str, list[float]], of: str = causes.DECODE) -> dict:
    """The ratio of two settings that were timed in turn, with its interval, and the sentence."""
    import numpy as np

    from kit.lab.measuring.measure import interval_of

    ratios = np.array(seconds[before]) / np.array(seconds[after])
    low, high = interval_of(ratios)
    first, second = (float(np.median(seconds[each])) for each in (before, after))
    what = {causes.DECODE: "per token", causes.DEEP: "per token at depth", causes.TURN: "until a second turn's first token"}[of]
    text = f"Before: {format_seconds(first)} {what} with `{before}`. After: {format_seconds(second)} with `{after}`, "
    times = float(np.median(ratios))
    span = f" ({low:.2f} to {high:.2f})" * (not low <= 1 <= high)
    text += f"{as_fast(times, low, high, 'before')}{span}, alternating {len(ratios)} times."
    return {"before": first, "after": second, "times": times, "interval": [low, high], "told": paragraph(text)}
