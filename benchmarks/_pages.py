"""What README and the pages of docs show of committed records: sentences with numbers, tables, output and figures.

``make readme`` writes them again. ``make readme MODEL=qwen2.5-coder-1.5b`` first records what `kit explain` prints now.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import _speeds, waits
from benchmarks._pictures import by_memory, pictures
from benchmarks._records import FULL, REFERENCE, explained, explanation, newest, row, rows, ways_of
from kit import __version__
from kit.lab.claims import table as claims
from kit.lab.engines.table import PEER, ROUNDED
from kit.lab.explaining import answer_table
from kit.lab.explaining.answer_table import Row
from kit.lab.explaining.quick import GUESS
from kit.lab.findings import reported
from kit.lab.measuring import machine
from kit.lab.measuring.measure import interval_of
from kit.system.paths import ROOT
from kit.units import format_seconds

IMAGES = ROOT / "docs" / "images"
SHORT = 20  # lines of output on the front page
ANSWER = 4  # sections: the file, the bytes of a token, the table, what to change
MIXTURE = {"mapped": "a token, mapped", "slots": "a token, slots past it, 2", "best": "a token, slots past it, S3FIFO"}


def sentences() -> dict[str, tuple[str, ...]]:
    """Page -> pieces of its text, each with numbers computed from records and from the reports' figures (data/claims.yaml)."""
    said = claims.load()
    kept, each, blocks = by_memory().values()
    floor = row("01_first_token", "a token of granite-3.3-8b in float32")["median"]
    terabytes = said["variance-45-1100"].after * row("01_first_token", "cache that holds all")["median"] / 1e12
    hits = row("06_compressed_inference", "hits of an LRU of 20")
    cold, later = reported.least_tokens()
    ladder = "reported, compiled", "a table of 4096 slots", "vector"
    slow, table, fast = (row("05_tile_decode", f"a tile, {name}")["median"] for name in ladder)
    attention = row("04_attention", "a token at context 512")
    threads = [claim.report for claim in said.values() if not claim.report.isdigit()]
    story = (
        f"needs at least {floor:.2g} s",
        f"would read {terabytes:.0f} TB/s",
        f"t most {hits['upper']:.1f}%",
        f"LRU hits {hits['median']:.0f}%",
    )
    mixture = {name: row("10_experts", quantity, FULL)["median"] for name, quantity in MIXTURE.items()}
    known = {record["quantity"]: record["median"] for record in rows("08_claims")}
    counts = {verdict: known.get(f"claims: {verdict}", 0) for verdict in claims.VERDICTS}
    *most, last = (claims.counted(count, verdict) for verdict, count in counts.items())
    told = f"{', '.join(most)}, and {last}"
    pairs = [
        f"keeping the copies takes {format_seconds(kept[n])}, dequantizing each time {format_seconds(each[n])}" for n in (0, 1)
    ]
    findings = (
        f"With memory for all of it, {pairs[0]}",
        f"With memory for 75%, {pairs[1]}",
        f"From the blocks an inference takes {format_seconds(blocks[1])}",
        f"At 512 positions of that model it is {reported.attention_share(512):.1%} of the arithmetic",
        f"We judged {len(threads)} claims of {len(set(threads))} public sources",
        f"a token becomes {attention['median']:.2f} times as fast",
        f"The same algorithm takes {format_seconds(slow)} on one CPU core",
        f"With a lookup table it takes {format_seconds(table)}, {slow / table:.1f} times as fast",
        f"vector instructions takes {format_seconds(fast)}, {slow / fast:.0f} times as fast",
        f"five tokens take at least {cold + 4 * later:.0f} s, not 35",
        f"by kit {json.loads((FULL / 'run.json').read_text(encoding='utf-8'))['kit_version']}, a 19 GB mixture",
        f"takes {mixture['mapped']:.1f} s per token with mmap",
        f"It takes {mixture['slots']:.2f} s when",
        f"and {mixture['best']:.2f} s with the best policy",
        f"there are {sum(counts.values()):.0f} claims: {told}",
    )
    medians = waits.medians([*_speeds.runs("waits")])
    waited = {what: f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s" for what, seconds in medians.items()}
    low, high = _speeds.extremes("decode")
    explained_run, machine_id = explanation()
    peer, int8 = (explained_run["ways"][name] for name in (PEER, ROUNDED[-1].label))
    engines = json.loads((newest() / "peers.json").read_text(encoding="utf-8"))["engines"]
    slower, faster = interval_of(np.divide(*(engines[name]["samples"] for name in (ROUNDED[-1].name, PEER))))
    few, many = _speeds.of_cpu(explained_run | {"machine_id": machine_id}, "decode", "int8")
    return {
        "README.md": (
            *story,
            f"it becomes {slow / table:.1f} times as fast on one CPU core",
            f"another stream decodes {slow / fast:.0f} times as fast",
            f"figures they take at least {cold + 4 * later:.0f} s",
            f"installation took {waited['installing']}",
            f"model took {waited['kit explain, the first time']} the first time",
            f"and {waited['kit explain, again']} after that",
            f"model above took {waited[f'kit explain {waits.LARGER}, the first time']} the first time",
            f"decodes {low:.2g} to {high:.2g} times as fast as llama.cpp",
        ),
        "docs/findings.md": (*story, *findings),
        "docs/speeds.md": (
            f"decodes {low:.2g} to {high:.2g} times as fast",
            "prompts {:.2g} to {:.2g} times as fast".format(*_speeds.extremes("prefill of 512")),
            f"has int8 {peer[0] / int8[0]:.2f} times as fast as llama.cpp ({slower:.2f} to {faster:.2f} by its rounds)",
            f"the table has {few:.2f} to {many:.2f} for its CPU",
        ),
    }


def shortened(output: str, most: int) -> str:
    """Whole sections without the first guess, as many as fit in ``most`` lines; the answer to its end, what to change, in any
    case: ANSWER sections."""
    sections = re.split(r"\n\n+", re.sub(rf"^{GUESS}\b.*?\n\n", "\n", output.strip(), count=1, flags=re.DOTALL | re.MULTILINE))
    shown = max((n for n in range(1, len(sections) + 1) if len("\n\n".join(sections[:n]).splitlines()) <= most), default=0)
    shown = max(shown, ANSWER)
    return "\n\n".join(sections[:shown]) + "\n\n..." * (shown < len(sections))


def block(most: int = 10**6) -> str:
    """The output as an indented block, with its machine below it."""
    where, command, output = explained()
    lines = (f"$ {command}\n{shortened(output, most)}").rstrip().splitlines()
    text = "\n".join(f"    {line}".rstrip() for line in lines)
    return f"{text}\n\n({where}, two idle cores; the committed record is under `results/reference`.)"


def table() -> str:
    """The answer of the same record as a table, with its model and machine."""
    where, command, _ = explained()
    rows = [Row(**row) for row in explanation()[0]["table"]]
    return f"{answer_table.markdown(rows)}\n\n(`{command}`, {where}, two idle cores.)"


def record(model: str) -> Path:
    """Run `kit explain MODEL` and keep, under results/reference, what it prints, its ways as data, and the machine. What a run
    of the notebooks by the same code measured on this machine is taken from the shared store, so that README and the run's
    pages show one value. ValueError: other processes used the machine."""
    command = f"kit explain {model}"
    words = [Path(sys.executable).parent / "kit", *command.split()[1:]]
    turns = ["--json"], [], ["--json"]  # the first measures; what it measured is in the store, so all have it
    before, done, after = (subprocess.run([*words, *more], capture_output=True, text=True, check=True) for more in turns)
    told = json.loads(after.stdout)
    if told["busy"] or json.loads(before.stdout)["busy"]:
        raise ValueError(f"nothing was recorded: other processes used the machine during `{command}`:\n{done.stdout}")
    path = REFERENCE / machine.machine_id() / "explain" / f"{model}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    system = machine.describe()
    run = {"command": command, "output": done.stdout, "started": time.time(), "kit_version": __version__, "system": system}
    run |= {"ways": ways_of(told), "table": told["answer"]["table"]}
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    return path


def fill(page: Path, name: str, content: str) -> None:
    """Replace what is between the marks <!-- name --> and <!-- /name --> of a page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not mark or not end:
        raise ValueError(f"{page} has no marks <!-- {name} --> and <!-- /{name} -->")
    content = content.strip("\n")
    page.write_text(f"{before}{mark}{content}\n{end}{after}", encoding="utf-8")


AMOUNT = r"\d+(?:[.,]\d+)*(?: (?:ns|us|ms|s|min|h)\b)?"  # a number as `sentences` write it, with its unit of time
FRONT = r"results/reference/[^`\s]+/index\.html"  # the page of the newest run


def told_again(text: str, pieces: tuple[str, ...]) -> str:
    """The text of a page with the numbers of ``pieces``. ValueError: the words of a piece are not on the page, or twice."""
    for piece in pieces:
        words, numbers = re.split(AMOUNT, piece), iter(re.findall(AMOUNT, piece))
        found = re.compile(AMOUNT.join(r"\s+".join(map(re.escape, part.split(" "))) for part in words))
        if len(found.findall(text)) != 1:
            raise ValueError(f"{len(found.findall(text))} places say {piece!r} with some number; one should")
        text = found.sub(lambda place, numbers=numbers: re.sub(AMOUNT, lambda _: next(numbers), place[0]), text)
    return re.sub(FRONT, str((newest() / "index.html").relative_to(ROOT)), text)


def parts() -> dict[tuple[str, str], str]:
    """(page, name of its marks) -> what is generated between them."""
    return {
        ("README.md", "explain"): block(SHORT),
        ("docs/explain.md", "explain"): block(),
        ("docs/index.md", "table"): table(),
        ("docs/speeds.md", "summary"): _speeds.summary(),
        ("docs/in_your_code.md", "peers"): _speeds.peers(),
        ("docs/speeds_records.md", "records"): _speeds.tables(),
        ("benchmarks/README.md", "waits"): waits.summary([*_speeds.runs("waits")]),
    }


def write() -> list[str]:
    """All parts and pictures; the paths that were written."""
    for (page, name), content in parts().items():
        fill(ROOT / page, name, content)
    for page, pieces in ({"docs/index.md": ()} | sentences()).items():
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(told_again(text, pieces), encoding="utf-8")
    for name, (data, draw) in pictures().items():
        draw(data).savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Description": json.dumps(data)})
    return sorted({page for page, _ in parts()} | {*sentences()} | {f"docs/images/{name}.png" for name in pictures()})
