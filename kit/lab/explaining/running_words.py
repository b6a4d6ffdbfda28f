"""What kit explain says of a running server: sentences in the order in which they are known, and the same as plain data."""

from collections.abc import Iterator

import numpy as np

from kit.lab.explaining import answer_table, causes, remedies
from kit.lab.explaining.causes import Cause
from kit.lab.explaining.lines import paragraph, width
from kit.lab.explaining.running import NEAR, Running
from kit.lab.measuring.busy import NO_ADVICE, Busy
from kit.lab.measuring.measure import interval_of
from kit.system.paths import shown
from kit.units import format_bytes, format_rate, format_seconds, printable


def sections(running: Running) -> Iterator[tuple[str, object, str]]:
    """(key, plain data, text) of each part, as soon as it is measured: the answer on decode comes first."""
    yield from decode_sections(running)
    yield "prompt", prompt(running), _prompt_told(running)
    if running.load:
        yield "", None, _account(running.load, "The first request")
    yield "second_turn", running.turns, _turn_told(running)
    yield "at_depth", _deep(running), _deep_told(running)
    found, busy = all_causes(running), busy_of(running)
    told = [plain(cause) for cause in found if cause.name != causes.PROMPT]
    yield "causes", [each | {"remedy": ""} if busy and each["name"] != "busy" else each for each in told], ""
    worst = None if busy else causes.largest(found)
    change = worst and {"cause": worst.name, "of": worst.of, "remedy": worst.remedy, "flags": worst.flags}
    yield "change", change, _change(worst, found, busy)
    yield "faults", running.faults, _faults(running)


def decode_sections(running: Running) -> Iterator[tuple[str, object, str]]:
    """The part on decode, as ``sections``."""
    yield "", None, _who(running)
    windows = running.windows
    yield "engine", engine(running), ""
    seconds = [window.seconds for window in windows]
    token, (low, high) = float(np.mean(seconds)), interval_of(seconds)
    least, got = running.least(NEAR), running.decodes
    received, asked = sum(each.answered for each in got), sum(each.asked for each in got)
    said = [each.report.predicted for each in got]
    reported = sum(said) if None not in said else None
    decode = {
        "tokens_per_second": 1 / token, "seconds": token, "interval": [low, high], "tokens_received": received,
        "tokens_asked": asked, "tokens_reported": reported, "positions": NEAR,
        "others": _others(running),
    }  # fmt: skip
    busy = busy_of(running)
    yield from ((key, value, "") for key, value in busy.facts.items())
    yield "decode", decode, busy.line
    share = least / token if least and not busy else None
    bound = {"seconds": least, "bytes": running.bytes_at(NEAR), "bandwidth": running.gbps * 1e9} if least else None
    yield "bound", bound, ""
    found = {"engine": engine(running), "decode": decode, "bound": bound, "mbu": share}
    rows = answer_table.yours(found)
    yield "answer", {"table": [row._asdict() for row in rows]}, answer_table.text(rows, width())
    yield "mbu", share, _speed(running, token, (low, high), share, received, asked, reported)
    yield "holding", _holding(running), _held(running)
    yield "", None, _account(running.decode, "A token")


def _holding(running: Running) -> dict:
    held = running.holding
    return {
        "resident": held.resident if running.file else None, "large_pages": held.large, "own_bytes": held.own,
        "swapped_bytes": held.swapped, "limit_bytes": held.limit or None, "free_bytes": held.free if held.limit else None,
        "pages_by_node": [*held.nodes],
    }  # fmt: skip


def _held(running: Running) -> str:
    held = running.holding
    if not running.file or not running.owner.process:
        return ""
    text = f"{held.resident:.0%} of the file is in memory"
    if held.large is not None:
        text += f", {held.large:.0%} of what the server maps of it is in 2 MiB pages"
    text += f"; {format_bytes(held.own)} are the server's own data"
    if held.swapped:
        text += f", and {format_bytes(held.swapped)} are in swap"
    if held.limit:
        text += f"; its control group allows {format_bytes(held.limit)}"
    if len(held.nodes) > 1:
        shares = ", ".join(f"{count / sum(held.nodes):.0%}" for count in held.nodes)
        text += f"; by NUMA node its pages are {shares}"
    return paragraph(f"{text}.")


def engine(running: Running) -> dict:
    """The server as it was found."""
    owner, seen = running.owner, running.windows[-1].seen if "windows" in running.__dict__ else None
    return {
        "name": running.server.name, "version": running.server.version,
        "threads": owner.threads or (seen.workers if seen and seen.workers else None), "flags": [*owner.command[1:]],
        "url": running.server.url, "model": running.server.model, "process": owner.process,
        "file": str(owner.file) if owner.file else None, "context": running.context or None, "kv": running.kv,
        "not_found": [*owner.missing],
    }  # fmt: skip


def _who(running: Running) -> str:
    owner, server = running.owner, running.server
    parts = [f"{server.name} {server.version}".strip() + f" at {server.url}"]
    parts += [f"process {owner.process}"] * bool(owner.process)
    parts += [f"{owner.threads} threads"] * bool(owner.threads)
    parts += [f"a context of {running.context:,} positions"] * bool(running.context)
    parts += [f"KV cache {running.kv}"] * bool(running.file)
    text = f"{', '.join(parts)}. "
    if owner.file:
        text += f"Its file is {printable(shown(owner.file))}, {format_bytes(owner.file.stat().st_size)}. "
    if owner.missing:
        text += f"Not found: {'; '.join(owner.missing)}. "
    return paragraph(text)


def _speed(running: Running, token, spread, share, received, asked, reported) -> str:
    low, high = spread
    text = f"It makes {format_rate(1 / token)} tokens per second ({format_seconds(token)} per token, {format_seconds(low)} to "
    text += f"{format_seconds(high)}) near {NEAR + 16} positions"
    if share:
        text += (
            f", {share:.0%} of the limit (MBU {share:.0%}): a token reads {format_bytes(running.bytes_at(NEAR))}, and memory "
        )
        text += f"reads at {running.gbps:.1f} GB/s"
    counted = "the file's own tokenizer" if running.server.tokenizer else "the server's own account: no tokenizer is known here"
    text += f". kit received {received} tokens of {asked} that it asked for, by {counted}."
    if reported is not None and abs(reported - received) > 0.02 * max(reported, received):
        text += f" The server reports {reported} tokens, and {received} came."
    if any(each.stopped for each in running.decodes):
        text += " The server stopped before the number that was asked for: only what came counts."
    return paragraph(text)


def _account(found: list[Cause], what: str) -> str:
    return "\n".join([f"{what} takes {remedies.sum_told(found)}.", *remedies.table(found)])


def prompt(running: Running) -> dict:
    """Prompts as JSON has them."""
    points = [{"positions": length, "seconds": seconds, "server_seconds": said} for length, seconds, said in running.prompts]
    rate = 1 / running.per_position if running.per_position else None
    return {"tokens_per_second": rate, "overhead_seconds": running.overhead, "points": points}


def _prompt_told(running: Running) -> str:
    if not running.prompts:
        return ""
    length, seconds, _ = running.prompts[-1]
    text = f"A prompt takes {format_seconds(running.per_position)} per position "
    text += f"({format_rate(1 / running.per_position)} per second) and "
    text += f"{format_seconds(running.overhead)} of overhead: the first token after {length} positions came in "
    return paragraph(f"{text}{format_seconds(seconds)}.")


def _turn_told(running: Running) -> str:
    turn = running.turns
    if turn is None:
        return ""
    text = f"A second turn that appends {turn['new']} positions waits {format_seconds(turn['seconds'])} for its first token; "
    text += f"the server computed {turn['computed']} of {turn['positions']} positions"
    if turn["seconds_without_cache"]:
        text += f", and without its prefix cache it takes {format_seconds(turn['seconds_without_cache'])}"
    text += "."
    if turn["again"] > turn["new"]:
        remedy = "" if busy_of(running) else f": {remedies.remedy('reprocess', running.facts, _seen(running))[0]}"
        text += f" It computed {turn['again']} positions again{remedy}."
    return paragraph(text)


def _deep(running: Running) -> dict | None:
    if running.deep is None:
        return None
    seconds = [window.seconds for window in running.deep["windows"]]
    token, (low, high) = float(np.mean(seconds)), interval_of(seconds)
    return {"positions": running.deep["positions"], "tokens_per_second": 1 / token, "seconds": token, "interval": [low, high]}


def _deep_told(running: Running) -> str:
    if (deep := _deep(running)) is None:
        if not running.prompts:
            return ""
        return paragraph("Decode at depth was not measured: the context has no room for it, or its prompt takes longer than "
                         "kit waits (`--thorough` waits).")  # fmt: skip
    text = _account(running.deep["causes"], f"After {deep['positions']:,} positions a token")
    return text


def _others(running: Running) -> float:
    """Cores that other processes used meanwhile."""
    return float(np.median([window.seen.others for window in running.windows]))


def _seen(running: Running):
    return max((window.seen for window in running.windows), key=lambda seen: seen.seconds)


def all_causes(running: Running) -> list[Cause]:
    """Of decode first; then of the first request, the second turn and decode at depth, as far as they were measured."""
    deep = running.deep["causes"] if running.deep else []
    return [*running.decode, *running.load, *running.second_turn, *deep]


def plain(cause: Cause) -> dict:
    """A cause as JSON has it."""
    return {
        "name": cause.name, "of": cause.of, "seconds": cause.seconds, "interval": [cause.low, cause.high],
        "evidence": cause.evidence, "remedy": cause.remedy,
    }  # fmt: skip


def busy_of(running: Running) -> Busy:
    """Whether other processes used the cores while it answered."""
    return Busy(_others(running))


def _change(worst: Cause | None, found: list[Cause], busy: Busy) -> str:
    if busy:
        return f"{NO_ADVICE}."
    if worst is None:
        return paragraph("To change: nothing that kit can see. No cause but memory and the server's own arithmetic takes a "
                         "tenth of the time; a smaller quantization reads fewer bytes.")  # fmt: skip
    total = sum(cause.seconds for cause in found if cause.of == worst.of)
    text = f"To change: {worst.remedy or 'see above'}. The cause {worst.name} takes {worst.seconds / total:.0%} of the time "
    return paragraph(f"{text}of {'a token' if worst.of.startswith('decode') else 'a ' + worst.of}: {worst.evidence}.")


def _faults(running: Running) -> str:
    if not running.faults:
        return ""
    told = "; ".join(dict.fromkeys(running.faults))
    return paragraph(f"{len(running.faults)} answers were no measurement and count for nothing: {told}.")
