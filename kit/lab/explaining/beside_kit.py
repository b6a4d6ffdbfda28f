"""What kit explain adds for whoever runs llama.cpp and named no engine: its flags here, and prompts against arithmetic."""

import shlex
from contextlib import ExitStack, suppress

from kit.errors import KitError
from kit.lab.engines import bounds_of, turns
from kit.lab.engines.table import opened
from kit.lab.explaining.answer import Conclusion
from kit.lab.explaining.study import Study
from kit.lab.measuring import arithmetic, measurements, state
from kit.lab.measuring.measurements import Reading
from kit.system.cores import cores
from kit.system.paths import shown
from kit.units import format_rate

TOKENS = 512
_ENGINES = {"kit": "float32", "llama.cpp": "int8"}  # -> what it multiplies by
_LEAST = 5e7  # weights, below which a prompt takes no time
_SECONDS, _QUICK = 15.0, 3.0  # of one prompt at most; of one that is taken several times
_RATE = "arithmetic, "  # begins the way of a rate in the store


def flags(found: Conclusion) -> str:
    """The advice in llama.cpp's own flags, in sentences; "" for a file that has no path, or does not fit."""
    study = found.study
    if study.file.path is None or study.cut or not study.room.fits:
        return ""
    path, here = shlex.quote(shown(study.file.path)), cores()
    speed = f", {format_rate(1 / other.seconds)} tokens per second in the wheel's build" if (other := found.peer) else ""
    return (
        f"In llama.cpp: `llama-server -m {path} -t {here.useful}`{speed}. This process may run on {here.told}. "
        "With `--engine` and the path of your llama-bench, kit explain measures your own build."
    )


def prompt(study: Study) -> tuple[dict | None, str]:
    """(plain data, sentences) on prompts of TOKENS: the limit by the measured arithmetic, and what kit and llama.cpp reach;
    None for a file of few weights, or one that does not fit. Measured once: the store has it afterwards; on a busy machine what
    the store has, or None."""
    if study.cut or study.file.path is None or not study.room.fits or study.facts["parameters"] < _LEAST:
        return None, ""
    if not (rates := _rates(study)):
        return None, ""
    work = bounds_of.work_of(study.file, TOKENS)
    rows = bounds_of.Roof(study.read_gbps * 1e9, rates, {}).prompt(work)
    speeds = _speeds(study, work.prompt_operations / rates["float32"])
    limits = " and ".join(f"{format_rate(row['tokens_per_second'])} by {kind} arithmetic" for kind, row in rows.items())
    text = f"A prompt of {TOKENS}: at most {limits}, in tokens per second."
    for name, row in speeds.items():
        least = rows.get(_ENGINES[name], rows["float32"])["seconds"]
        busy = ", while other processes used the cores" * row.busy
        text += f" {name} reaches {format_rate(1 / row.median)} ({least / row.median:.0%} of its limit{busy})."
    plain = {name: {"seconds": row.median, "samples": row.samples, "others_cores": row.others} for name, row in speeds.items()}
    return {"tokens": TOKENS, "bounds": rows, "engines": plain}, text


def _rates(study: Study) -> dict[str, float]:
    """Operations per second by kind of arithmetic: the best that the store has of this machine, else measured now, unless the
    machine is busy."""
    kinds = "float32", "int8"
    known = {kind: measurements.shared().best(f"{_RATE}{kind}", "op/s") for kind in kinds}
    if (known["float32"] is None or study.again) and not study.gives_way:
        study.say("measuring arithmetic")
        taken, others, disturbed = state.watched(arithmetic.probe)
        for kind, rate in taken.items():
            reading = Reading(f"{_RATE}{kind}", "", tuple(rate.samples), "op/s", others=others * disturbed, by=study.by)
            row = measurements.note(study.store, reading)
            known[kind] = row if known[kind] is None or rate.best > max(known[kind].samples) else known[kind]
    return {kind: max(row.samples) for kind, row in known.items() if row}


def _speeds(study: Study, seconds: float) -> dict[str, Reading]:
    """Engine -> its seconds per token of a prompt; none of a file whose prompt takes longer than _SECONDS, at the limit."""
    if not study.runs or seconds > _SECONDS:
        return {}
    digest = measurements.digest_of(study.file)
    ways = {name: f"a prompt of {TOKENS}, {name}" for name in _ENGINES}
    known = {name: study.store.known(way, digest) for name, way in ways.items()}
    missing = [name for name, row in known.items() if row is None or study.again]
    if missing and not study.gives_way:
        study.say(f"measuring a prompt of {TOKENS} tokens: {', '.join(missing)}")
        for name, series in _in_turn(missing, study.file.path, rounds=3 if seconds < _QUICK else 1).items():
            if series.per_token:
                reading = Reading(ways[name], digest, tuple(series.per_token), others=series.others, by=study.by)
                known[name] = measurements.note(study.store, reading)
    return {name: row for name, row in known.items() if row}


def _in_turn(names: list[str], path, rounds: int) -> dict[str, turns.Series]:
    """Engine -> its prompts, of those that run the file: llama.cpp may be missing, or not know the architecture."""
    with ExitStack() as stack:
        runners = []
        for name in names:
            with suppress(KitError):
                runner = opened(name, path)
                stack.callback(runner.close)
                runner.prompt(8)
                runners.append(runner)
        return turns.in_turn(runners, turns.PROMPT, TOKENS, rounds=rounds) if runners else {}
