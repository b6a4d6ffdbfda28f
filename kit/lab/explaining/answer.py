"""The answer of kit explain and page 09 as data, and its words: a table, then what follows with llama.cpp and with kit."""

import shlex
from dataclasses import dataclass
from functools import cached_property

from kit.gguf.uses import bytes_used
from kit.lab.engines.processes import ENGINES
from kit.lab.engines.table import PEER, PROGRAM
from kit.lab.explaining import answer_table, peers
from kit.lab.explaining import to_measure as measuring
from kit.lab.explaining.lines import width
from kit.lab.explaining.study import Study
from kit.lab.measuring import pages
from kit.lab.measuring.busy import NO_ADVICE, WORTH, apart
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.minutes import Share
from kit.lab.measuring.state import BUSY
from kit.lab.predicting import losses, quality
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS, Prediction, Way
from kit.lab.prompts import PROMPT
from kit.system.cores import cores
from kit.system.paths import shown
from kit.units import format_bytes, format_rate

_MUCH = 2 / 3  # of the limit: what is below it has a cause to look for
Time = Reading | Prediction  # of a way: measured, else predicted


def name_of(study: Study) -> str:
    """The file as a command takes it."""
    return shlex.quote(study.name or shown(study.file.path))


def command(study: Study, way: Way) -> str:
    """The command that runs a way, as it can be pasted; "" where no command does."""
    if study.file.path is None or _reason(study):
        return ""
    base = f"kit generate {name_of(study)} -p {shlex.quote(PROMPT)}"
    memory = f" --memory {size(study.whole)}" if study.whole else ""
    given = memory or f" --memory {size(study.room.free + study.room.beside)}"
    kept = {"HashMap": " --cache all", "NoCache": " --cache none"}.get(way.policy) if way.dtype == "float32" else None
    options = (given if way.holds else memory) + way.product.option if way.product else kept
    return "" if options is None else base + options


def size(nbytes: int) -> str:
    """Bytes as an option takes them, exactly: "750MiB"."""
    units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
    unit = next(unit for unit, each in units.items() if nbytes % each == 0)
    return f"{nbytes // units[unit]}{unit}"


def _reason(study: Study) -> str:
    """Why no command runs the file; "" where one does."""
    return (study.part or study).order.reason


def reached(study: Study) -> dict[Way, Time]:
    """The ways that stay within the memory of the whole process and that a command runs, the fastest first; of a file that none
    runs all that stay, as walks over its tensors."""
    ways = {
        each.way: study.measured.get(each.way, each)
        for each in study.predictions
        if study.room.stays(each) and (command(study, each.way) or _reason(study))
    }
    return dict(sorted(ways.items(), key=lambda pair: pair[1].seconds))


def peer(study: Study) -> Reading | None:
    """llama.cpp, where it ran the file in turn with the kit's ways."""
    return study.engines.get(PEER)


@dataclass(frozen=True, eq=False)
class Conclusion:
    """What a study comes to, computed once; its words and its data are of these. ``ways``: that a command runs, the fastest
    first. ``default``: what kit generate does by itself, None where it does not stay in memory. ``losses``: of each precision
    and engine, as far as they are known."""

    study: Study
    ways: dict[Way, Time]
    default: Way | None
    peer: Reading | None
    losses: dict[str, dict[str, float]]

    @property
    def best(self) -> Way | None:
        """The fastest way; None where there is none."""
        return next(iter(self.ways), None)

    @property
    def gains(self) -> bool:
        """Whether the fastest way is worth a change."""
        return bool(self.ways) and (self.default is None or gains(self.ways[self.best], self.ways[self.default]))

    @property
    def times(self) -> float:
        """How many times as fast as the default the fastest way is."""
        return self.ways[self.default].seconds / self.ways[self.best].seconds

    def same(self, name: str) -> float | None:
        """How often a precision, or an engine of any version, has float32's most probable next token; None: not known."""
        return losses.of(self.losses, name).get("same")

    @cached_property
    def data(self) -> dict:
        """The answer as plain data: ``limit``, ``reached``, ``peer``, ``change``; seconds are per token."""
        study, other, best = self.study, self.peer, self.best
        change = None
        if self.default and self.gains and not study.busy:
            change = {"way": best.label, "times": self.times, "rounds": quality.PRECISIONS[best.precision].told}
        exact = next((way for way in self.ways if way.precision == "float32"), None)
        plain = [
            {"name": way.label, "way": way.linear, "holds": way.holds, "precision": way.precision}
            | _plain(self.ways[way])
            | {"command": command(study, way), "same": 1.0 if way.precision == "float32" else self.same(way.precision)}
            | _mbu(study, way, self.ways[way])
            for way in dict.fromkeys((exact, *BLOCK_WAYS[1:], best))
            if way in self.ways
        ]
        of_peer = other and {"name": PEER, "way": None} | _plain(other) | {"same": self.same(PROGRAM)}
        return {
            "limit": _limit(study),
            "reached": plain,
            "peer": of_peer and of_peer | _mbu(study, None, other),
            "change": change,
            "command": command(study, best) if best and not study.busy else "",
            "fits": study.room.fits,
        }


def of(study: Study) -> Conclusion:
    """The answer of what a study has measured so far."""
    ways = reached(study)
    default = study.predictions[0].way if study.predictions[0].way in ways else None
    return Conclusion(study, ways, default, peer(study), {} if isinstance(study.losses, str) else study.losses)


def _limit(study: Study) -> dict:
    limits, speed, found, now, least = study.limits, study.map_speed, study.map_found, study.least_now, study.least
    flops = 2 * sum(use.elements * use.share() for use in study.read if not use.is_rows)
    interval = study.minutes.interval if study.minutes and study.room.fits else None
    return {
        "tokens_per_second": 1 / now, "seconds": now, "interval": interval, "bytes": bytes_used(study.read),
        "read_gbps": study.now_gbps,
        "in_turn": study.minutes is not None, "best_tokens_per_second": 1 / least, "best_gbps": study.read_gbps,
        "arithmetic_seconds": limits.machine.seconds_to_compute(flops) if limits.machine.f32_gflops else None,
        "now_gbps": limits.now, "known_of": limits.at, "others_cores": limits.others,
        "map_gbps": speed and speed.gbps, "map_of_memory": speed and speed.ratio, "large_pages": speed and speed.large,
        "found_map_gbps": found and found.gbps, "found_large_pages": found and found.large,
    }  # fmt: skip


def gains(best: Time, default: Time) -> bool:
    """Whether a way is worth a change: faster by more than noise, and by more than the intervals of both where both were
    measured."""
    if default.seconds / best.seconds < WORTH:
        return False
    return apart(best.spread, default.spread) if measured(best) and measured(default) else True


def measured(time: Time) -> bool:
    """Whether a time was measured, not predicted."""
    return isinstance(time, Reading)


def _plain(time: Time) -> dict[str, float | None]:
    """A time as data: ``low`` to ``high`` is its 95 % interval, None where it is predicted."""
    low, high = time.spread if measured(time) else (None, None)
    others = time.others if measured(time) else 0.0
    return {"seconds": time.seconds, "low": low, "high": high, "others": others, "tokens_per_second": 1 / time.seconds}


def table(found: Conclusion) -> list[answer_table.Row]:
    """The answer's table: the limit, llama.cpp, kit's ways; on a busy machine without a limit, as nothing is a share of it."""
    return [row for row in answer_table.rows(found.data) if not (found.study.busy and row.kind == "limit")]


def told(found: Conclusion) -> list[str]:
    """The answer in lines of text, of which the table has several; the last is a command. On a busy machine it has no share of
    the limit and no advice."""
    study, limit = found.study, found.data["limit"]
    lines = [f"A token reads {format_bytes(limit['bytes'])}; {_bandwidth(limit)}."]
    if not study.busy and study.map_found and study.map_found.ratio < pages.SMALL:
        lines.append(pages.told(study.map_found, study.map_speed, limit["bytes"], command(study, BLOCKS)))
    if not study.room.fits:
        lines.append(_short(study))
    rows = table(found)
    if any(row.kind != "limit" for row in rows):
        lines += ["", answer_table.text(rows, width()), note(found), ""]
    after = concluded(found)
    return [after[0], *lines, *after[1:]] if study.busy else [*lines, *after]


def note(found: Conclusion) -> str:
    """What a first reader asks of the table: rounds and tokens of its speeds, what its ways round, which llama.cpp it is."""
    ran = next(time for time in (found.peer, *found.ways.values()) if time and measured(time))
    tokens, losses = ran.row.get(peers.TOKENS), found.losses.values()
    rounds = [answer_table.SHORT[precision] for precision in dict.fromkeys(way.precision for way in found.ways if way.rounds)]
    names, bits = (" and ".join(each) for each in (rounds, [name.removeprefix("int") for name in rounds]))
    said = [f"Speeds: the median of {len(ran.samples)} rounds{f' of {tokens:.0f} tokens' if tokens else ''}, ± a 95% interval."]
    said += [f"{names} round activations (what weights are multiplied with) to {bits} bits, and no weight."] * bool(rounds)
    said += [f"Same next token: counted at {row['tokens']:,.0f} positions of a text." for row in losses if "tokens" in row][:1]
    return " ".join([*said, *([f"llama.cpp: {peers.build_told()}."] if found.peer else [])])


def concluded(found: Conclusion) -> list[str]:
    """What follows for who uses llama.cpp or Ollama, and for who uses kit: a sentence and a command each."""
    if busy := found.study.busy:
        return [busy.line, f"{NO_ADVICE} with `--again`."]
    return [line for line in (*_of_peer(found), *_change(found)) if line]


def _of_peer(found: Conclusion) -> list[str]:
    """What there is to change for who uses llama.cpp, by its share of the limit, and the command."""
    if reason := ENGINES[PEER].missing():
        return [f"llama.cpp is {reason}."]
    if found.peer is None:
        return []
    study = found.study
    reached, *interval = share(study, None, found.peer)
    if reached >= answer_table.NEAR:
        text, next_ = "What they cost in quality:", f"kit quants {name_of(study)} --to Q4_0,Q3_K"
    elif reached >= _MUCH:
        text = "Nothing to change, if it has a thread for each core:"
        next_ = f"llama-server -m {shlex.quote(shown(study.file.path))} -t {cores().useful}"
    else:
        text, next_ = "Ask your running server what takes the rest:", "kit explain http://127.0.0.1:8080"
    return [f"With llama.cpp or Ollama: it is at {answer_table.left(reached, interval)}. {text}", f"    {next_}"]


def _bandwidth(limit: dict) -> str:
    """What memory gives in these minutes."""
    if limit["in_turn"]:
        return f"its pages were read at {limit['read_gbps']:.1f} GB/s, in the same minutes as the programs below ran"
    busy = f"; other processes use {limit['others_cores']:.1f} cores, so this probe is a busy one"
    return f"memory reads at {limit['read_gbps']:.1f} GB/s" + busy * (limit["others_cores"] > BUSY)


def best_minutes(study: Study) -> str:
    """What memory gave in the best minutes that are known of the machine, in a sentence, where these are slower; "" else."""
    best = 1 / study.least
    if best * study.least_now < WORTH:
        return ""
    at = f", on {study.limits.at}," * bool(study.limits.at and study.read_gbps <= study.limits.machine.read_gbps)
    return (
        f"In the best minutes that are known of this machine{at or ','} memory read at {study.read_gbps:.1f} GB/s, and allowed "
        f"{format_rate(best)} tokens per second."
    )


def share(study: Study, way: Way | None, time: Time) -> Share:
    """What a way, None: llama.cpp, reached of the limit of its minutes: the quotient of the table, with the interval by rounds
    where it ran in turn."""
    name = PEER if way is None else next((name for name, each in measuring.ENGINE_WAYS.items() if each == way), "")
    quotient = min(1.0, study.least_now / time.seconds)
    if study.minutes and name in study.minutes.seconds and measured(time):
        return study.minutes.share(name).around(quotient)
    return Share(*[quotient] * 3)


def _mbu(study: Study, way: Way | None, time: Time) -> dict[str, float | None]:
    """The share as data: ``mbu``, memory bandwidth utilization, with its 95 % interval; None on a busy machine, and of a
    way that passed the limit in other minutes: that is no share of it."""
    passed = time.seconds < study.least_now * (1 - 1e-9)
    shares = [None] * 3 if study.busy or passed else share(study, way, time)
    return dict(zip(("mbu", "mbu_low", "mbu_high"), shares, strict=True))


def _short(study: Study) -> str:
    """What a file that does not fit waits for."""
    blocks = sum(use.nbytes for use in study.uses)
    disk = f"; the disk gives {study.room.disk.gbps:.1f} GB/s past the page cache" if study.room.disk else ""
    room = (
        f"{format_bytes(study.whole)} for the whole process"
        if study.whole
        else f"{format_bytes(study.room.free)} that are free"
    )
    own = f"its blocks are {format_bytes(blocks)}, the process {format_bytes(study.room.beside)}"
    return f"The file does not fit: {own}, of {room}{disk}."


def _change(found: Conclusion) -> list[str]:
    """The one thing to change, and the command that does it."""
    study, default = found.study, found.default
    if reason := _reason(study):
        return [f"No command runs this file ({reason}): its tensors alone were used, in order."]
    if not found.ways:
        return ["Nothing that a command runs stays within this memory."]
    best = found.best if found.gains else default
    if best.rounds and found.gains:
        none = "not measured" if isinstance(study.losses, str) else "measured below"
        lost = answer_table.quality(found.same(best.precision)) or none
        times = f" {found.times:.2f} times as fast," if default else ""
        text = f"With kit: take {best.told},{times} if you accept their loss of quality ({lost})."
    elif best == default and best in BLOCK_WAYS:
        others = [answer_table.SHORT[way.precision] for way in BLOCK_WAYS[1:] if way in found.ways]
        no_faster = f": {' and '.join(others)} {'are' if len(others) > 1 else 'is'} not measurably faster here"
        text = f"With kit: keep the default (exact){no_faster * bool(others)}."
    elif best == default:
        needs = format_bytes(study.room.beside + sum(use.nbytes for use in study.uses))
        text = f"With kit: nothing to change within this memory; {needs} hold the whole file."
    else:
        text = f"With kit: take {best.told}."
    return [text, f"    {command(study, best)}"]
