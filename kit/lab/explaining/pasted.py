"""What people paste into an issue: a table with llama-bench's names, the causes, and the machine. One function writes it."""

from pathlib import Path

from kit import __version__
from kit.lab import tables
from kit.lab.explaining import answer_table
from kit.lab.explaining.causes import DECODE
from kit.lab.measuring.state import BUSY
from kit.units import format_bytes, format_rate, format_seconds

CAUSES = {  # name of a cause in JSON -> in words
    "memory": "reading the weights from memory", "disk": "reading from disk", "threads": "threads that wait for each other",
    "quota": "a CPU quota", "busy": "other processes", "depth": "a long context", "load": "loading the model",
    "pages": "small pages", "swap": "swap", "reprocess": "computing the prompt again", "overhead": "the way from the server",
    "unexplained": "not explained",
}  # fmt: skip


def markdown(data: dict) -> str:
    """The data of kit explain with an engine (docs/json.md) as Markdown. A key that is missing leaves out its part."""
    records = data.get("engines") or [data] * ("engine" in data)
    rows = [answer_table.Row(**row) for row in (data.get("answer") or {}).get("table", ())]
    parts = [_head(data), *([answer_table.markdown(rows)] if rows else []), *([_table(records)] if records else [])]
    parts += [each["says"] for each in data.get("compared") or ()]
    parts += [_causes(record) for record in records if record.get("causes")]
    parts += [_threads(swept) for swept in data.get("threads") or ()]
    return "\n\n".join([*parts, _machine(data)])


def _cell(value) -> str:
    """Text that stays in its cell of a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def _head(data: dict) -> str:
    file, engine = data.get("file") or {}, data.get("engine") or {}
    name = file.get("name") or Path(engine.get("file") or engine.get("model") or "model").name
    text = f"**{_cell(name)}**"
    if file.get("bytes"):
        text += f", {format_bytes(file['bytes'])}"
    if label := file.get("label"):
        text += f"; {_cell(label['says'])}"
    return text


def _table(records: list[dict]) -> str:
    lines = []
    for record in records:
        engine = record["engine"]
        who = [engine.get("label") or engine["name"], engine.get("version") or "", engine.get("threads") or ""]
        decode, prompt, deep = record.get("decode"), record.get("prompt"), record.get("at_depth")
        for kind, test, share in (
            ("pp", prompt, None),
            ("tg", decode, record.get("mbu")),
            ("tg", deep, deep and deep.get("mbu")),
        ):
            if test:
                share = None if (test.get("others_cores") or test.get("others") or 0.0) > BUSY else share
                lines.append([f"`{_cell(who[0])}`", *map(_cell, who[1:]), *_numbers(kind, test, share)])
    numbers = "t/s", "interval", "MBU"
    return tables.markdown(("engine", "build", "threads", "test", *numbers), lines, ("threads", *numbers))


def _name(kind: str, test: dict) -> str:
    """A test as llama-bench names it; of a server by the positions that it was measured at."""
    if "name" in test:
        return test["name"]
    if points := test.get("points"):
        return f"{kind}{points[-1]['positions']}"
    return f"{kind} @ d{test.get('positions', 0)}"


def _numbers(kind: str, test: dict, share: float | None) -> list[str]:
    """Name, tokens per second, their interval and the share of the memory's bandwidth of one test."""
    name = _name(kind, test)
    if not test.get("tokens_per_second"):
        return [name, _cell("; ".join(test.get("problems") or ["none"])), "", ""]
    low, high = (format_rate(1 / end) for end in reversed(test["interval"])) if test.get("interval") else ("", "")
    return [name, format_rate(test["tokens_per_second"]), f"{low} to {high}" * bool(low), f"{share:.0%}" if share else ""]


def _causes(record: dict) -> str:
    engine, decode = record["engine"], record["decode"]
    lines = []
    for cause in (each for each in record["causes"] if each.get("of") in (None, DECODE)):
        name, remedy = CAUSES.get(cause["name"], cause["name"]), cause.get("remedy") or ""
        lines.append((name, format_seconds(cause["seconds"]), _cell(cause["evidence"]), _cell(remedy)))
    told = f"A token of `{_cell(engine.get('label') or engine['name'])}` takes {format_seconds(decode['seconds'])}:"
    return f"{told}\n\n{tables.markdown(('part', 'time', 'evidence', 'remedy'), lines, ('time',))}"


def _threads(swept: dict) -> str:
    tests = {kind: each for kind, each in swept.items() if kind != "label"}
    counts = sorted({row["threads"] for each in tests.values() for row in each["rows"]})
    lines = []
    for kind, each in tests.items():
        speeds = {row["threads"]: format_rate(row["tokens_per_second"]) for row in each["rows"]}
        lines.append([f"{kind}, t/s", *(speeds.get(count, "") for count in counts), str(each["best"])])
    return tables.markdown([f"threads of `{_cell(swept['label'])}`", *map(str, counts), "best"], lines)


def _machine(data: dict) -> str:
    machine = data.get("machine") or {}
    bandwidth = machine.get("bandwidth") or (data.get("bound") or {}).get("bandwidth")
    rates = "".join(f", {kind} {rate / 1e9:.0f} GOP/s" for kind, rate in (machine.get("rates") or {}).items())
    who = ", ".join(filter(None, [machine.get("cpu"), machine.get("cores_told")])) or "this machine"
    known = f", machine `{machine['id']}`" if machine.get("id") else ""
    reads = f"; memory reads at {bandwidth / 1e9:.1f} GB/s{rates}" if bandwidth else ""
    return f"{_cell(who)}{reads}. Measured by kit {__version__}{known}."
