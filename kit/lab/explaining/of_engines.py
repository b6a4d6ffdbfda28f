"""What kit explain MODEL --engine X says: the user's engines in turn, their limits, their threads; as data and in words."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import kit
from kit.errors import EngineError, KitError
from kit.gguf.foreign import check_model
from kit.gguf.sources import model_name, resolve
from kit.gguf.uses import count
from kit.lab.engines import bounds_of, turns
from kit.lab.engines.base import Runner
from kit.lab.engines.processes import ENGINES, PEER
from kit.lab.engines.table import kind_of, opened
from kit.lab.explaining import answer_table
from kit.lab.explaining.lines import width
from kit.lab.labels import label_of
from kit.lab.measuring import minutes, state
from kit.lab.measuring.busy import WORTH
from kit.lab.measuring.identity import processor
from kit.lab.measuring.machine import machine_id
from kit.lab.predicting import quality
from kit.lab.predicting.remembered import held_by
from kit.system import cpu_facts, cpu_name
from kit.system.cores import cores
from kit.units import format_bytes, format_rate, format_seconds

DECODE, PROMPT = 64, 512  # tokens of a test
_SWEPT = {turns.DECODE: 32, turns.PROMPT: 128}  # of each count of threads
_LONGEST = 1 << 24  # positions of a file that does not say how many it has
_ROUNDS, _FEW = 5, 3  # of a comparison; of one engine alone, of a count of threads, of a prompt


def explain(
    name: str, texts: Sequence[str], threads: Sequence[int] = (), depth: int = 0, say: Callable[[str], None] = lambda text: None
) -> dict:  # fmt: skip
    """Plain data: ``file``, ``machine``, ``engines`` (a record each, see ``_record``), ``compared``, ``threads``, and the keys
    of the first record at the top. ``texts``: of --engine. ``threads``: counts to sweep. ``depth``: positions before a second
    decode, 0: none. EngineError, in one line, before anything is measured where an engine cannot be opened, and where two
    engines were to be compared on a busy machine."""
    path = resolve(name)
    with kit.open(path) as file, ExitStack() as stack:
        check_model(file)
        _check_depth(file, depth)
        work, label = bounds_of.work_of(file, PROMPT), label_of(file)
        kept = held_by(file, depth) if depth else None
        runners = [stack.enter_context(closing(each)) for each in _opened(texts, path)]
        for text in texts:
            for each in threads:
                opened(text, path, each).close()  # one that takes no threads, or not so many, is said now
        others = state.cores_used_by_others()
        if len(runners) > 1 and others > state.BUSY and (warning := state.settle(state.patience())):
            raise EngineError(f"not compared: {warning}; close them and ask again")
        say("measuring memory and arithmetic")
        roof = bounds_of.measured()
        tests = [(turns.DECODE, DECODE, 0), (turns.PROMPT, PROMPT, 0)] + [(turns.DECODE, DECODE, depth)] * bool(depth)
        series = []
        for kind, tokens, at in tests:
            say(f"{turns.Series(kind, tokens, at).name}: {', '.join(each.label for each in runners)}")
            rounds = _FEW if len(runners) == 1 or kind == turns.PROMPT else _ROUNDS
            read = minutes.reader(file) if not series else None
            series.append(turns.in_turn(runners, kind, tokens, at, rounds, len(runners) > 1, read))
        swept = {each.label: _sweep(text, path, threads, say) for each, text in zip(runners, texts, strict=True) if threads}
        same = minutes.in_rounds(work.token_bytes, series[0])
        if same:  # what follows is the limit of the very rounds
            roof.bandwidth = same.read_gbps * 1e9
        else:
            bounds_of.again(roof)
            fastest = min((each.seconds for each in series[0].values() if each.seconds), default=None)
            if fastest:  # no limit is below what an engine reached
                roof.bandwidth = max(roof.bandwidth, work.token_bytes / fastest)
        records = [_record(each, series, work, roof, kept, swept.get(each.label), same) for each in runners]
        losses = _losses(file)
    first, *later = runners
    compared = [turns.ratio(first.label, each.label, rows) for each in later for rows in series]
    data = records[0] | {
        "file": {"name": model_name(name), "path": str(path), "bytes": sum(file.sizes), "label": label and label.to_json()},
        "machine": this_machine() | vars(roof),
        "work": vars(work), "engines": records, "threads": [{"label": label} | each for label, each in swept.items()],
        "compared": [each.to_json() for each in compared if each],
    }  # fmt: skip
    return data | {"answer": {"table": [row._asdict() for row in answer_table.yours(data, losses)]}}


def _check_depth(file, depth: int) -> None:
    """EngineError where the model has too few positions for a decode at this depth."""
    most = count(file, "context_length", _LONGEST)
    if depth > most - DECODE:
        raise EngineError(f"--depth {depth}: give at most {most - DECODE:,}, because the model has {most:,} positions")


def _losses(file) -> dict[str, dict[str, float]]:
    """What rounding does to the answers of an open file, as far as kit explain measured it before."""
    try:
        return quality.kept(file)
    except KitError:  # no tokenizer or pass of the kit
        return {}


def this_machine() -> dict:
    """Its name, CPU and cores."""
    return {
        "id": machine_id(),
        "cpu": processor(cpu_name(), cpu_facts()),
        "cores": cores()._asdict(),
        "cores_told": cores().told,
    }


def usual() -> list[str]:
    """The engines where none is named: llama.cpp of the wheel, if it is installed, and kit's exact and fastest way."""
    return [*(["llama.cpp"] if not ENGINES[PEER].missing() else []), "kit", "kit --linear fused-int8"]


def _opened(texts: Sequence[str], path: Path) -> list[Runner]:
    """The engines; one that is named twice has two labels."""
    runners, seen = [], {}
    for text in texts:
        kind_of(text)
    try:
        for text in texts:
            seen[text] = seen.get(text, 0) + 1
            runners.append(opened(text, path, label=text if seen[text] == 1 else f"{text} ({seen[text]})"))
    except EngineError:
        for each in runners:
            each.close()
        raise
    return runners


def _sweep(text: str, path: Path, counts: Sequence[int], say) -> dict:
    """Of each count of threads the speed of a decode and of a prompt, in turn, and the best of each.

    ``best``: the fewest threads whose interval reaches that of the fastest, as more would only take time from others."""
    rows = {}
    with ExitStack() as stack:
        runners = [stack.enter_context(closing(opened(text, path, count, label=str(count)))) for count in counts]
        for kind, tokens in _SWEPT.items():
            say(f"{text}: {', '.join(map(str, counts))} threads, {kind}")
            series = turns.in_turn(runners, kind, tokens, rounds=_FEW)
            known = {int(label): each for label, each in series.items() if each.seconds}
            fastest = min(known.values(), key=lambda each: each.seconds, default=None)
            best = [count for count, each in known.items() if each is fastest or each.seconds <= fastest.interval[1]]
            told = [{"threads": count} | each.to_json() for count, each in known.items()]
            rows[kind] = {"best": min(best, default=None), "rows": told}
    return rows


def _record(runner: Runner, series, work, roof, kept, swept, same) -> dict:
    """One engine: ``engine``, ``decode``, ``prompt``, ``at_depth`` (None: not asked for), ``bound``, ``mbu`` (the share of the
    memory's bandwidth that a decode uses), ``prompt_bounds``, ``causes``."""
    decode, prompt, *deep = (rows[runner.label] for rows in series)
    bound = roof.decode(work) | {"interval": same and same.interval}
    record = {
        "engine": runner.facts.to_json() | {"label": runner.label}, "decode": decode.to_json(), "prompt": prompt.to_json(),
        "at_depth": None, "bound": bound, "mbu": decode.seconds and bound["seconds"] / decode.seconds,
        "prompt_bounds": roof.prompt(work),
    }  # fmt: skip
    if deep:
        least = roof.decode(work, kept or 0.0)
        seconds = deep[0].seconds
        record["at_depth"] = deep[0].to_json() | {"bound": least, "mbu": seconds and least["seconds"] / seconds}
    return record | {"causes": _causes(decode, bound, swept, runner)}


def _causes(decode, bound: dict, swept: dict | None, runner: Runner) -> list[dict]:
    """What a token's time is made of, as far as this command knows it; the rest is "unexplained"."""
    if not decode.seconds:
        return []
    causes = [{"name": "memory", "seconds": bound["seconds"], "remedy": "a smaller quantization: kit quants compares them",
               "evidence": f"a token reads {format_bytes(bound['bytes'])} at {bound['bandwidth'] / 1e9:.1f} GB/s"}]  # fmt: skip
    rest = decode.seconds - bound["seconds"]
    if decode.busy:
        told = f"other processes used {decode.others:.1f} cores meanwhile"
        causes.append({"name": "busy", "seconds": max(0.0, rest), "evidence": told, "remedy": "close them, and ask again"})
        return causes
    best = swept and swept[turns.DECODE]["best"]
    used = runner.facts.threads
    rows = {row["threads"]: row for row in swept[turns.DECODE]["rows"]} if swept else {}
    if best and used and used != best and used in rows:
        lost = min(rest, decode.seconds * (1 - rows[best]["seconds"] / rows[used]["seconds"]))
        if lost > decode.seconds * (1 - 1 / WORTH):
            causes.append({"name": "threads", "seconds": lost, "remedy": f"-t {best}",
                           "evidence": f"{used} threads; {best} are faster, measured alternately"})  # fmt: skip
            rest -= lost
    causes.append({"name": "unexplained", "seconds": max(0.0, rest), "evidence": "the rest", "remedy": ""})
    return causes


def told(data: dict) -> list[str]:
    """The data in paragraphs."""
    nbytes, machine = data["bound"]["bytes"], data["machine"]
    rows = [answer_table.Row(**row) for row in data["answer"]["table"]]
    lines = [f"A token reads {format_bytes(nbytes)}; memory reads at {machine['bandwidth'] / 1e9:.1f} GB/s now."]
    lines += [answer_table.text(rows, width())] if rows else []
    lines += [line for record in data["engines"] for line in _of_engine(record)]
    lines += [each["says"] for each in data["compared"]]
    for swept in data["threads"]:
        each = "; ".join(_of_threads(kind, swept[kind]) for kind in _SWEPT)
        lines.append(f"Threads of `{swept['label']}`: {each}.")
    if data["threads"]:
        lines.append(f"This process may run on {machine['cores_told']}.")
    return lines + _advice(data)


def speed(test: dict) -> str:
    """A test in words: its speed, its seconds per token, its interval."""
    if not test["seconds"]:
        return f"no speed: {'; '.join(test['problems']) or 'nothing was measured'}"
    low, high = test["interval"] or (test["seconds"], test["seconds"])
    busy = ", while other processes used the cores" * (test["others_cores"] > state.BUSY)
    seconds = f"{format_seconds(test['seconds'])} per token, {format_seconds(low)} to {format_seconds(high)}{busy}"
    return f"{format_rate(1 / test['seconds'])} tokens per second ({seconds})"


def _of_engine(record: dict) -> list[str]:
    engine, decode = record["engine"], record["decode"]
    version, threads = engine["version"], engine["threads"]
    what = ", ".join(filter(None, [version, f"{threads} thread{'s' * (threads != 1)}" if threads else ""]))
    share = f", {record['mbu']:.0%} of the limit (MBU)" if record["mbu"] else ""
    lines = [f"`{engine['label']}`{f' ({what})' * bool(what)} decodes {speed(decode)}{share}."]
    if deep := record["at_depth"]:
        lines.append(f"After {deep['depth']:,} positions: {speed(deep)}.")
    limits = "; ".join(
        f"{kind} arithmetic allows {format_rate(row['tokens_per_second'])} ({row['operations_per_second'] / 1e9:.0f} GOP/s)"
        for kind, row in record["prompt_bounds"].items()
    )
    return [*lines, f"A prompt of {record['prompt']['name'].removeprefix('pp')}: {speed(record['prompt'])}; {limits}."]


def _of_threads(kind: str, swept: dict) -> str:
    each = ", ".join(f"{row['threads']}: {format_rate(row['tokens_per_second'])}" for row in swept["rows"])
    return f"{kind}, {swept['best']} is best (tokens per second by threads: {each})"


def _advice(data: dict) -> list[str]:
    """The one thing to change, for the engine that was named first."""
    causes = [cause for cause in data["causes"] if cause["remedy"] and cause["name"] != "memory"]
    label, decode = data["engine"]["label"], data["decode"]
    if not decode["seconds"]:
        return []
    faster = [
        each for each in data["compared"] if each["test"] == decode["name"] and each["low"] > 1 and each["times"] >= WORTH
    ]
    if any(cause["name"] == "busy" for cause in causes):
        used = max(record["decode"]["others_cores"] for record in data["engines"])
        return [
            f"To change: first close what uses {used:.1f} cores, then ask again. Speeds of a busy machine are no comparison."
        ]
    if causes:
        most = max(causes, key=lambda cause: cause["seconds"])
        times = decode["seconds"] / (decode["seconds"] - most["seconds"])
        return [f"To change: give `{label}` the option `{most['remedy']}`, {times:.2f} times as fast ({most['evidence']})."]
    if faster:
        best = max(faster, key=lambda each: each["times"])
        return [f"To change: take `{best['after']}`, {best['times']:.2f} times as fast."]
    if data["mbu"] > 0.8:
        return [
            "To change: nothing in the engine. It is near the limit, so only fewer bytes help: `kit quants` compares files."
        ]
    more = "" if data["threads"] else "; `--threads all` tries its threads"
    return [f"To change: nothing that was measured here explains {1 - data['mbu']:.0%} of a token{more}."]
