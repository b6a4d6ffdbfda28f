"""The committed records that pages rest on."""

import json
import re
from pathlib import Path

from kit.lab.measuring.identity import processor
from kit.system.paths import ROOT

REFERENCE = ROOT / "results" / "reference"
FULL = REFERENCE / "amd-epyc-avx512-2c-24g-8da4" / "full"  # the run of a mixture of 19 GB


def cpu_name(run) -> str:
    """The CPU of a run, as kit names it: AMD Zen 5; of a CPU that is not known so its maker alone."""
    maker = run["machine_id"].split("-")[0].capitalize().replace("Amd", "AMD")
    return processor(maker, run["system"].get("cpu_facts", {}))


def cores_of(machine_id: str) -> str:
    """The cores in the name of a machine: "2 cores" of amd-epyc-avx512-2c-24g-8da4."""
    count = re.search(r"-(\d+)c-", machine_id)[1]
    return f"{count} core{'s' * (count != '1')}"


def started(folder: Path) -> str:
    """When a run began, by which ISO dates sort."""
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))["started"]


def rendered() -> list[Path]:
    """The committed runs that have pages, the newest first."""
    return sorted((path.parent for path in REFERENCE.glob("*/*/index.html")), key=started, reverse=True)


def newest() -> Path:
    """The run that README and docs link to, and that docs/findings.md tells of."""
    return rendered()[0]


def rows(notebook: str, run: Path | None = None) -> list[dict]:
    """The records of a notebook of a committed run."""
    return [json.loads(line) for line in ((run or newest()) / f"{notebook}.jsonl").read_text(encoding="utf-8").splitlines()]


def row(notebook: str, quantity: str, run: Path | None = None) -> dict:
    """The one record whose quantity is this, or else begins with it; ValueError where there is none, or several."""
    found = rows(notebook, run)
    exact = [row for row in found if row["quantity"] == quantity]
    (only,) = {row["quantity"]: row for row in exact or found if row["quantity"].startswith(quantity)}.values()
    return only


def quality(key: str) -> dict | None:
    """The row with most positions of the records of benchmarks whose "kl key" (benchmarks.quality.key_of) is this; None where
    none has it."""
    texts = (path.read_text(encoding="utf-8") for path in REFERENCE.glob("*/benchmarks/*.jsonl"))
    lines = (line for text in texts for line in text.splitlines() if key in line)
    found = [row for line in lines for row in json.loads(line)["rows"] if row.get("kl key") == key]
    return max(found, key=lambda row: row["tokens"], default=None)


def explanation() -> tuple[dict, str]:
    """The newest `kit explain` on record, and the machine that it ran on."""
    runs = [
        (json.loads(path.read_text(encoding="utf-8")), path.parent.parent.name) for path in REFERENCE.glob("*/explain/*.json")
    ]
    return max(runs, key=lambda run: run[0]["started"])


def explained() -> tuple[str, str, str]:
    """(version and CPU, command, output) of the newest `kit explain` on record."""
    run, machine = explanation()
    return f"kit {run['kit_version']} on {cpu_name(run | {'machine_id': machine})}", run["command"], run["output"]


def ways_of(told: dict) -> dict[str, list]:
    """Way -> [seconds per token, its least, "measured" or "predicted"] of the JSON of `kit explain`: what was measured and the
    fastest others, five together; llama.cpp has the least of the same blocks."""
    rows = sorted(told["advice"], key=lambda row: row["by"] != "measured")[:5]
    ways = {row["way"]: [row[row["by"]], row["least"], row["by"]] for row in rows}
    if peer := told["answer"]["peer"]:
        ways[peer["name"]] = [peer["seconds"], min(least for _, least, _ in ways.values()), "measured"]
    return ways
