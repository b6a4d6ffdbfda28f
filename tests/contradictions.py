"""Do a printed ratio and its own row contradict each other, and the pages of a run? Used by tests of the ledger, of pages and
of the smoke run."""

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import nbformat

QUOTIENTS = {  # column -> over / under, columns of its row; "@ x": of the row x; "~": the same multiple of it in every row
    "of the limit": "tok/s / at most",
    "times no cache": "tok/s / tok/s @ no cache",
    "times a hit, a view": "ready and read / ready and read @ hit, a view",
    "times a hit, copied": "ready and read / ready and read @ hit, copied",
    "attention's share": "attention / total",
    "step": "seconds @ the row above / seconds",
    "times the bound": "seconds / bound",  # on pages of older runs
    "times the limit": "seconds / limit",
    "times": "it takes / reported",
    "times the least": "token / least",
    "times this machine's": "~ GB/s needed / 1",
    "factor": "predicted / measured",
    "speed": "predicted @ the first row / predicted",  # on pages of older runs
    "times as fast": "predicted @ the first row / predicted",
}
OTHERWISE = {  # column that looks like a ratio -> why its row does not hold what it is of
    "gain by FLOPs, attention free": "1 / (1 - share); test_attention_page.py has it",
    "read again, times as fast": "a median of pairs, each relative to a copy in its minute, on pages of old runs",
    "as fast as none, by pairs": "a median of pairs in turn, as the verdict takes it; tests/test_cache_variants.py has it",
    "rms / std": "of all logits of two ways",
    "share of the columns": "what the row is about",
}
NAMED = re.compile(r"([\d,.]+x) \(?(predicted|measured)\)?")  # a ratio that says which column of its row it is of
LIKE_A_RATIO = re.compile(r" / |\btimes\b|\bfaster\b|\bfactor\b|\bratio\b|\bstep\b|\bshare of\b|of the limit")
NUMBER = re.compile(r"([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?) ?(%|x|[a-zA-Z]*)")
UNITS = {"": 1, "x": 1, "%": 0.01, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
UNITS |= {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass
class Table:
    """A table of an executed notebook as it is printed; ``rows``: (labels of the index, column -> text)."""

    cell: str
    columns: list[str]
    rows: list[tuple[tuple[str, ...], dict[str, str]]]


def tables(notebook: Path) -> list[Table]:
    found = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", ()):
            page = _Page()
            page.feed(re.sub(r"<style.*?</style>", "", output.get("data", {}).get("text/html", ""), flags=re.DOTALL))
            found += [_table(cell.id, rows) for rows in page.tables if len(rows) > 1]
    return found


def wrong_ratios(notebook: Path) -> list[str]:
    """Printed ratios that no values within the rounding of their own row give, and columns of ratios without a rule: a line
    each."""
    lines = []
    for table in tables(notebook):
        for column in table.columns:
            rule = QUOTIENTS.get(column, column if " / " in column else "")
            names = [part.strip("~ ").partition(" @ ")[0] for part in _ends(rule)] if rule else []
            if rule and all(name == "1" or name in table.columns for name in names):
                lines += [f"{table.cell}: {line}" for line in _wrong(table, column, rule)]
            elif _is_ratio(table, column) and column not in OTHERWISE:
                lines.append(f"{table.cell}: no column of the row gives {column!r}")
    return lines


ANSWERS = {name: name for name in ("exact", "int16", "int8")}
ENGINES = {f"kit, {name}": name for name in ANSWERS} | {"llama.cpp, mmap": "llama.cpp"}
NEAR = 0.02  # of a number of two or three digits, by its rounding on both sides
FRONT, FRONTIER, MODEL = "index", "07_memory_frontier", "09_your_model"


def of_pages(folder: Path) -> list[str]:
    """Where the rendered front page, page 07 and page 09 of a run say two values of one quantity: limit and table, shares of
    the limit, the time of a token by way, the parts of a token, the memory of a way and of the process; a line each."""
    text = {path.stem: path.read_text() for path in folder.glob("*.html")}
    tables = {name: _tables_of(page) for name, page in text.items()}
    answer = _with(tables.get(MODEL, []), "tokens/s")
    of_model = _parts(text, tables, answer)
    shares = wrong_shares([(row["tokens/s"], row.get("of the limit", "")) for row in answer])
    return [*_two_answers(tables, answer), *shares, *_other_times(tables, answer), *of_model, *_memories(text, tables)]


def wrong_shares(cells: list[tuple[str, str]]) -> list[str]:
    """The rows of an answer's table, (tokens/s, of the limit) of the limit first, whose share is not their speed over the
    limit, as far as the digits go: 41.3 of 43.6 was printed as 92%. A line each."""
    speeds, wrong = [_range_of(speed.split()[0]) for speed, _ in cells], []
    for (speed, share), (low, high) in zip(cells[1:], speeds[1:], strict=True):
        least, most = low / speeds[0][1], min(1.0, high / speeds[0][0])
        if share and not (least - 0.005 <= float(share.removesuffix("%")) / 100 <= most + 0.005):
            wrong.append(f"{speed} tokens per second of {cells[0][0]}: {share}")
    return wrong


def _tables_of(page: str) -> list[list[list[str]]]:
    parser = _Page()
    parser.feed(re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL))
    return parser.tables


def _with(tables, *columns: str) -> list[dict[str, str]]:
    """The rows of the first table with these columns, a dict each; the first column is also ``""``."""
    for head, *rows in tables:
        if {*columns} <= {*head}:
            return [dict(zip(head, row, strict=False)) | {"": row[0]} for row in rows if any(row[1:])]
    return []


def _speeds(answer) -> dict[str, float]:
    """The first word of each row of the answer's table -> its tokens per second."""
    return {row[""].removeprefix("kit, ").split()[0]: float(row["tokens/s"].split()[0].replace(",", "")) for row in answer}


def _two_answers(tables, answer):
    if answer and (front := _with(tables.get(FRONT, []), "tokens/s")) != answer:
        yield f"the front page has another table than page 09: {front}"


def _other_times(tables, answer):
    speeds = _speeds(answer)
    for page, columns, names in ((MODEL, ("per token", "memory"), ANSWERS), (FRONTIER, ("tok/s", "of llama.cpp"), ENGINES)):
        for row in _with(tables.get(page, []), *columns):
            if (name := names.get(row[""])) in speeds and (printed := _range_of(row[columns[0]])):
                middle = sum(printed) / 2
                if abs((middle if page == FRONTIER else 1 / middle) / speeds[name] - 1) > NEAR:
                    yield f"{page}: {row['']} {row[columns[0]]}, which the answer has at {speeds[name]:g} tokens per second"


def _parts(text, tables, answer):
    exact = _speeds(answer).get("exact")
    rows = [_range_of(row["from blocks"]) for row in _with(tables.get(MODEL, []), "from blocks")]
    whole = sum(sum(row) / 2 for row in rows if row)
    if exact and rows and abs(whole * exact - 1) > NEAR:
        yield f"page 09: the parts of a token sum to {whole:.3g} s, and the answer is {1 / exact:.3g} s"
    for told in re.findall(r"takes \d+% of ([\d.]+ \w+) per token", text.get(MODEL, "")) if exact else ():
        if abs(sum(_range_of(told)) / 2 * exact - 1) > NEAR:
            yield f"page 09: a token of {told}, and the answer is {1 / exact:.3g} s"


def _memories(text, tables):
    seen = {}
    for name, page in text.items():
        for number in re.findall(r"([\d.]+ \w+) for the process", re.sub(r"<[^>]*>|\s+", " ", page)):
            seen.setdefault(number, name)
    if len(seen) > 1:
        yield f"{len(seen)} sizes of the process: {seen}"
    ways = {}
    for head, *rows in tables.get(MODEL, []):
        for row in rows if {"memory", "fits"} <= {*head} else ():
            ways.setdefault(row[0], set()).add(row[head.index("memory")])
    yield from (f"page 09: {way} takes {', '.join(sorted(sizes))}" for way, sizes in ways.items() if len(sizes) > 1)


def _is_ratio(table: Table, column: str) -> bool:
    texts = [text for _, row in table.rows if (text := row[column]) not in ("", "–")]
    times = all(re.fullmatch(r"[\d.,]+x", text) for text in texts)
    return bool(texts) and (times or (bool(LIKE_A_RATIO.search(column)) and any(map(_range_of, texts))))


def _ends(rule: str) -> list[str]:
    over, _, under = rule.rpartition(" / ")
    return [over, under]


def _wrong(table: Table, column: str, rule: str):
    over, under = _ends(rule)
    multiple = None
    for number, (labels, row) in enumerate(table.rows):
        if by := NAMED.fullmatch(row[column]):
            row, over, under = row | {column: by[1]}, f"{by[2]} @ the first row", by[2]
        ends = [_value(table, number, end.removeprefix("~ ")) for end in (over, under)]
        printed = _range_of(row[column])
        if printed is None or None in ends:
            continue
        (low, high), (least, most) = ends
        low, high = (low / most, high / least) if least > 0 else (low, float("inf"))
        if rule.startswith("~"):
            if printed[0] <= 0 or low <= 0:
                continue
            share = printed[0] / high, printed[1] / low
            multiple = multiple or share
            if share[0] > multiple[1] or share[1] < multiple[0]:
                yield f"{', '.join(labels)}: {column} {row[column]} is another multiple than above"
            multiple = max(multiple[0], share[0]), min(multiple[1], share[1])
        elif printed[0] > high or printed[1] < low:
            yield f"{', '.join(labels)}: {column} {row[column]}, {rule.removeprefix('~ ')} is {low:.4g} to {high:.4g}"


def _value(table: Table, number: int, end: str) -> tuple[float, float] | None:
    """The range of an end of a ratio; None where the table prints no number."""
    name, _, which = end.partition(" @ ")
    if name == "1":
        return 1.0, 1.0
    labels, row = table.rows[number]
    if which == "the row above":
        row = table.rows[number - 1][1] if number else {}
    elif which == "the first row":
        row = table.rows[0][1]
    elif which:
        row = next((row for other, row in table.rows if (*labels[:-1], which) == other), {})
    return _range_of(row.get(name, ""))


def _range_of(text: str) -> tuple[float, float] | None:
    """What a printed number may be: half a unit of its last digit to each side, of its third where zeros were left out."""
    if not (found := NUMBER.fullmatch(text.strip())) or found[2] not in UNITS:
        return None
    digits, scale = found[1].replace(",", ""), UNITS[found[2]]
    mantissa, _, power = digits.partition("e")
    whole, _, after = mantissa.strip("+-").partition(".")
    zeros = 3 - len(whole) if not after and len(whole) < 3 and found[2] != "%" else 0  # 24.0 is printed as 24
    half = 0.5 * 10.0 ** (int(power or 0) - len(after) - zeros)
    return (float(digits) - half) * scale, (float(digits) + half) * scale


def _table(cell: str, rows: list[list[str]]) -> Table:
    names, body = rows[0], rows[1:]
    deep = next((n for n, name in enumerate(names) if name), len(names))  # columns of the index have no name above them
    body = [row for row in body if any(row[deep:]) or not any(row)]  # the row of the index's names has nothing else
    return Table(cell, names[deep:], [(tuple(row[:deep]), dict(zip(names[deep:], row[deep:], strict=False))) for row in body])


class _Page(HTMLParser):
    """The texts of all tables; a label that spans rows stands in each of them."""

    def __init__(self):
        super().__init__()
        self.tables, self._spans, self._open = [], {}, False

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.tables.append([])
            self._spans = {}
        elif tag == "tr":
            self.tables[-1].append([])
            self._fill()
        elif tag in ("td", "th"):
            row, given = self.tables[-1][-1], dict(attributes)
            row.append("")
            self._open = True
            if (rows := int(given.get("rowspan", 1))) > 1:
                self._spans[len(row) - 1] = [rows - 1, len(self.tables[-1]) - 1]

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._open = False
            self._fill()

    def handle_data(self, data):
        if self._open:
            self.tables[-1][-1][-1] += data.strip()

    def _fill(self):
        rows = self.tables[-1]
        while (span := self._spans.get(len(rows[-1]))) and span[0] and span[1] < len(rows) - 1:
            rows[-1].append(rows[span[1]][len(rows[-1])])
            span[0] -= 1
