"""What kit explain adds for whoever runs llama.cpp and named no engine: its flags here, and prompts against arithmetic."""

from kit.lab.engines import bounds_of
from kit.lab.engines.table import OURS
from kit.lab.explaining import together
from kit.lab.explaining.answer import Conclusion
from kit.lab.explaining.study import Study
from kit.lab.measuring import measurements
from kit.system.cores import cores
from kit.units import format_rate

_LEAST = 5e7  # weights, below which a prompt takes no time


def flags(found: Conclusion) -> str:
    """llama.cpp's threads and how to measure the user's own, in sentences; "" for a file that has no path, or does not fit."""
    study = found.study
    if study.file.path is None or study.cut or not study.room.fits:
        return ""
    here = cores()
    return (
        f"Threads for llama.cpp: `-t {here.useful}`, because this process may run on {here.told}. `--engine` with the "
        "path of your llama-bench measures your own. If your server is slower, `kit explain http://127.0.0.1:8080` says why."
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
        who = together.short(name) if name not in OURS else f"kit {together.short(name)}"
        told.append(f"{who} {format_rate(1 / row.median)} ({bound / row.median:.0%} of its limit)")
        engines[together.short(name)] = {"seconds": row.median, "samples": row.samples}
    text += f" Reached: {', '.join(told)}." * bool(told)
    return {"tokens": together.PROMPT, "bounds": least, "engines": engines}, text
