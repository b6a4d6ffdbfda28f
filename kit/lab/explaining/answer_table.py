"""The answer as one table: the limit of these minutes, the engines and kit's ways, each with its share of it and its quality.

A row is plain data (``Row``); what is printed, pasted and drawn comes from the same rows: ``text``, ``markdown``, ``picture``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kit.lab import figures
from kit.lab.engines.table import EXACT, OURS, PROGRAM
from kit.lab.measuring.state import BUSY
from kit.lab.predicting.losses import of as losses_of
from kit.products import by_linear
from kit.units import places_of, with_error

LIMIT = "limit of memory"
MOST = 7  # rows: more is no answer
NEAR = 0.85  # of the limit: what is above it gains little by other software


class Row(NamedTuple):
    """One way to run the file. ``kind``: "limit", "kit", "peer" (llama.cpp, where nobody named an engine) or "yours".

    ``speed``, ``low``, ``high``: tokens per second and its 95 % interval, None where it is not known; ``of_limit``: share of
    the limit of the same minutes; ``same``: how often its most probable next token is exact arithmetic's; ``option``: chooses
    it in a command.
    """

    name: str
    kind: str
    speed: float
    low: float | None = None
    high: float | None = None
    of_limit: float | None = None
    same: float | None = None
    option: str = ""

    @property
    def label(self) -> str:
        """Its name for readers: of kit's ways, which may stand beside llama.cpp, with the program's."""
        return f"kit, {self.name}" if self.kind == "kit" else self.name

    @property
    def error(self) -> float | None:
        """Half of the interval."""
        return None if self.low is None or self.high is None else max(0.0, self.high - self.low) / 2

    @property
    def is_certain(self) -> bool:
        """Whether its interval is known and says something: half of it is less than the speed."""
        return self.error is not None and self.error < self.speed

    @property
    def ends(self) -> tuple[float, float]:
        """What is drawn of its interval: the speed less and plus the error that is printed; the speed where none is."""
        error = self.error if self.is_certain else 0.0
        return self.speed - error, self.speed + error

    @property
    def told(self) -> str:
        """The speed with its error, both to one place: "43.0 ± 0.8", "1,204 ± 31"; without one to three digits."""
        alone = ".3g" if self.speed < 999.5 else ",.0f"  # which three digits round to 1e+03
        return with_error(self.speed, self.error, f",.{places_of(self.error)}f" if self.is_certain else alone)


SHORT = {row.precision: row.short for row in OURS.values()}  # precision of blocks -> its one word


def rows(answer: dict) -> list[Row]:
    """The rows of the ``data`` of a kit.lab.explaining.answer.Conclusion. What was only predicted has no row."""
    limit = answer["limit"]
    table = [_limit(limit["seconds"], limit.get("interval"))]
    for each in filter(None, [*answer["reached"], answer["peer"]]):
        if each["low"] is None:
            continue
        own = each is not answer["peer"]
        product = by_linear(each["way"]) if own and each["command"] else None
        name = each["name"] if own else PROGRAM
        table.append(Row(
            name if not own or each["holds"] else SHORT.get(each["precision"], name), "kit" if own else "peer",
            1 / each["seconds"], 1 / each["high"], 1 / each["low"], each.get("mbu"), each.get("same"),
            product.option.strip() if product else "",
        ))  # fmt: skip
    return table


def yours(data: dict, losses: dict[str, dict[str, float]] | None = None) -> list[Row]:
    """The rows of kit explain with engines or of a server, from its plain data: the limit of their minutes, and one of each
    engine. Without limit and shares where other processes used the cores. ``losses``: of precisions and engines, as far as they
    were measured of this file before."""
    records = [record for record in data.get("engines") or [data] if record["decode"].get("seconds")]
    busy = any((test.get("others_cores") or test.get("others") or 0.0) > BUSY for test in (each["decode"] for each in records))
    bound = None if busy or not records else records[0].get("bound")
    table = [_limit(bound["seconds"], bound.get("interval"))] if bound else []
    for record in records:
        decode, engine = record["decode"], record["engine"]
        name, kind, option = _named(engine)
        low, high = (1 / end for end in reversed(decode.get("interval") or (decode["seconds"],) * 2))
        share = record.get("mbu") if bound else None
        same = None if kind == "yours" else _same(name, losses or {})
        table.append(Row(name, kind, 1 / decode["seconds"], low, high, share, same, option))
    return table


def _limit(seconds: float, interval: Sequence[float] | None) -> Row:
    """The row of the limit, by the least seconds of a token and their 95 % interval; None: memory was read once."""
    low, high = (1 / end for end in reversed(interval)) if interval else (None, None)
    return Row(LIMIT, "limit", 1 / seconds, low, high, 1.0)


def _same(name: str, losses: dict[str, dict[str, float]]) -> float | None:
    """How often the most probable next token of kit's way or of llama.cpp is that of float32; None: not measured."""
    if name == EXACT.short:
        return 1.0
    key = next((row.precision for row in OURS.values() if row.short == name), name)
    return losses_of(losses, key).get("same")


def _named(engine: dict) -> tuple[str, str, str]:
    """Name, kind and option of an engine's row: kit's own ways have the name that they have in every table."""
    label = engine.get("label") or " ".join(filter(None, (engine["name"], engine.get("version"))))
    if engine["name"] != "kit":
        return label, "peer" if label == PROGRAM else "yours", ""
    option = label.removeprefix("kit").strip()
    row = next((row for row in OURS.values() if row.product.option.strip() == option), None)
    return (row.short if row else option, "kit", option if row else "")


HEADS = ("tokens/s", "of the limit", "same next token as exact")
_NARROW = ("tokens/s", "of limit", "token as exact")


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The limit first, then the user's engine, then the fastest first; at most MOST."""
    place = {"limit": 0, "yours": 1}
    return sorted(rows, key=lambda row: (place.get(row.kind, 2), -row.speed))[:MOST]


def percent(share: float) -> str:
    """With a decimal; 99.96 % is not all."""
    return "100%" if share == 1 else f"{min(share, 0.999):.1%}"


def quality(same: float | None) -> str:
    """How often the next token is exact arithmetic's, in words; "" where it is not known."""
    return "" if same is None else f"the same next token as exact in {percent(same)} of positions"


def _lines(rows: Sequence[Row], heads: Sequence[str] = HEADS, first: str = "") -> list[tuple[str, ...]]:
    """The cells of the table under their heads, ``first`` over the names; a column that nothing is known of is none."""
    lines = [(first, *heads)]
    for row in rows:
        share = "" if row.of_limit is None else f"{row.of_limit:.0%}"
        lines.append((row.label, row.told, share, "" if row.same is None else percent(row.same)))
    known = [True, True, *(any(line[n] for line in lines[1:]) for n in (2, 3))]
    return [tuple(cell for cell, is_known in zip(line, known, strict=True) if is_known) for line in lines]


def text(rows: Sequence[Row], width: int = 80) -> str:
    """The table in lines of at most ``width`` columns: where it is narrow with short heads, then without quality."""
    for heads, less in ((HEADS, {}), (_NARROW, {}), (_NARROW, {"same": None})):
        lines = _lines([row._replace(**less) for row in ordered(rows)], heads)
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        right = [[cell.rjust(n) for cell, n in zip(line, wide, strict=True)][1:] for line in lines]
        told = ["  ".join([line[0].ljust(wide[0]), *cells]).rstrip() for line, cells in zip(lines, right, strict=True)]
        if max(map(len, told)) <= width:
            break
    return "\n".join(told)


def markdown(rows: Sequence[Row]) -> str:
    """The table for an issue or a README."""
    head, *lines = _lines(ordered(rows), first="program")
    rule = ("---", *["---:"] * (len(head) - 1))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def left(of_limit: float, interval: tuple[float, float] = (0.0, 0.0)) -> str:
    """What a share of the limit leaves to gain, by its 95 % ``interval`` where that is known."""
    if of_limit >= NEAR:
        return f"{of_limit:.0%} of the limit: only a file of fewer bits is faster"
    low, high = interval
    between = f" ({1 / high:.2g} to {1 / low:.2g})" if 0 < low < high else ""
    return f"{of_limit:.0%} of the limit: at most {1 / of_limit:.2g} times as fast{between} is possible"


def verdict(rows: Sequence[Row]) -> str:
    """What the table says, in one line: its title."""
    engines = [row for row in ordered(rows) if row.kind in ("yours", "peer")]
    own = [row for row in rows if row.kind == "kit"]
    shown = engines[0] if engines else max(own, key=lambda row: row.speed, default=None)
    return "" if shown is None or shown.of_limit is None else f"{shown.label} is at {left(shown.of_limit)}"


def picture(rows: Sequence[Row], about: str):
    """A bar a row on a linear axis with its number inside, the limit as a line, the result as the title.

    ``about``: the model and the machine, for the axis.
    """
    limit = next((row for row in rows if row.kind == "limit"), None)
    bars = [row for row in ordered(rows) if row.kind != "limit"]
    figure, axes = figures.new(height=0.5 * len(bars) + 1.3)
    for place, row in enumerate(bars):
        color = figures.SKY if row.kind == "kit" else "#6b7580"
        axes.barh(place, row.speed, height=0.66, color=color)
        if row.is_certain:
            axes.plot(row.ends, [place + 0.25] * 2, color="#222222", linewidth=1.5)  # under the text
        share = "" if row.of_limit is None else f" ({row.of_limit:.0%} of the limit)"
        inside = row.speed > 0.45 * max(each.speed for each in rows)
        ink = ("black" if color == figures.SKY else "white") if inside else "black"
        axes.text(0 if inside else row.ends[1], place - 0.04, f" {row.told.partition(' ')[0]} tokens/s{share}",
                  va="center", color=ink, fontsize=9.5)  # fmt: skip
    axes.set_yticks(range(len(bars)), [row.label for row in bars])
    if limit:
        axes.axvspan(*limit.ends, color=figures.VERMILION, alpha=0.15, linewidth=0)
        axes.axvline(limit.speed, color=figures.VERMILION, linewidth=1.8)
        axes.text(limit.speed, len(bars) - 0.45, f"{LIMIT}: {limit.told} ", color=figures.VERMILION, ha="right",
                  va="top", fontsize=9)  # fmt: skip
        axes.set_ylim(-0.6, len(bars) - 0.1)
    figures.rows(axes)
    axes.grid(visible=False)
    axes.set_xlim(0, 1.12 * max([row.ends[1] for row in rows], default=1))
    shade = " and the shade" * bool(limit and limit.is_certain)
    axes.set(xlabel=f"tokens per second, {about}\n(thin lines{shade}: ±, a 95% interval)", title=verdict(rows))
    return figure
