"""What kit explain adds for whoever runs llama.cpp and named no engine: its flags here, and prompts against arithmetic."""

import shlex

from kit.lab.engines import bounds_of
from kit.lab.explaining import together
from kit.lab.explaining.answer import Conclusion
from kit.lab.explaining.study import Study
from kit.lab.measuring import measurements
from kit.system.cores import cores
from kit.system.paths import shown
from kit.units import format_rate

_LEAST = 5e7  # weights, below which a prompt takes no time


def flags(found: Conclusion) -> str:
    """The advice in llama.cpp's own flags, in sentences; "" for a file that has no path, or does not fit."""
    study = found.study
    if study.file.path is None or study.cut or not study.room.fits:
        return ""
    path, here = shlex.quote(shown(study.file.path)), cores()
    speed = (
        f" {format_rate(1 / other.seconds)} tokens per second are its build in the package xllamacpp."
        if (other := found.peer)
        else ""
    )
    return (
        f"With llama.cpp: `llama-server -m {path} -t {here.useful}`, because this process may run on {here.told}.{speed} "
        "With `--engine` and the path of your llama-bench, kit explain measures your own build."
    )


def prompt(study: Study) -> tuple[dict | None, str]:
    """(plain data, sentences) on prompts: the limit by the measured arithmetic, and what each way and llama.cpp reach; None for
    a file of few weights, or one that does not fit. Measured once, with the engines (peers.readings): the store has it
    afterwards; on a busy machine what the store has, or None."""
    if study.cut or study.file.path is None or not study.room.fits or study.facts["parameters"] < _LEAST:
        return None, ""
    if not (known := together.rates(study.store, study.by, study.again, not study.gives_way)):
        return None, ""
    least = bounds_of.Roof(study.read_gbps * 1e9, known, {}).prompt(bounds_of.work_of(study.file, together.PROMPT))
    limits = [f"{format_rate(row['tokens_per_second'])} by {kind}" for kind, row in least.items()]
    text = f"A prompt of {together.PROMPT}, in tokens per second: at most {', '.join(limits)} arithmetic."
    digest, engines, told = measurements.digest_of(study.file), {}, []
    for name, row in together.readings(study.store, digest, together.PROMPT).items():
        bound = least.get(together.kind_of(name), least["float32"])["seconds"]
        told.append(f"{together.short(name)} {format_rate(1 / row.median)} ({bound / row.median:.0%} of its limit)")
        engines[together.short(name)] = {"seconds": row.median, "samples": row.samples}
    text += f" Reached: {', '.join(told)}." * bool(told)
    return {"tokens": together.PROMPT, "bounds": least, "engines": engines}, text
