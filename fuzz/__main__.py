"""Run the targets one after another, each in a process of its own, and print what came of it.

A finding stops its target; the input lies in data/fuzz/<target>/. ``--record`` counts into
results/reference/<machine>/fuzz.jsonl, a line for each target and commit.
"""

import argparse
import importlib.util
import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

from fuzz.targets import TARGETS
from kit.lab.measuring import machine
from kit.system.paths import ROOT

CORPUS = ROOT / "data" / "fuzz"
LIMITS = ("-rss_limit_mb=1024", "-timeout=2", "-max_len=65536", "-print_final_stats=1", "-verbosity=1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"some of: {', '.join(TARGETS)}  [default: all]")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target  [default: 1]")
    parser.add_argument("--record", action="store_true", help="keep the counts under results/reference")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: pip install --editable '.[fuzz]'")
    rows = [_run(name, options.minutes) for name in options.targets]
    if options.record:
        _record(rows)
    return 1 if any(row["finding"] for row in rows) else 0


def _run(name: str, minutes: float) -> dict:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    command = [sys.executable, "-m", "fuzz.child", name, str(folder), f"-artifact_prefix={folder}/finding-"]
    command += [f"-max_total_time={60 * minutes:.0f}", *LIMITS]
    for _ in range(3):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != -signal.SIGALRM:  # libFuzzer's clock, at times set before its handler: no input's fault
            break
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
    covered = re.findall(r"cov: (\d+)", done.stderr)
    finding = done.returncode != 0
    row = {
        "target": name, "time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": machine.git_commit(),
        "inputs": int(stats.get("number_of_executed_units", 0)),
        "inputs_per_second": int(stats.get("average_exec_per_sec", 0)),
        "edges_covered": int(covered[-1]) if covered else 0, "finding": finding,
    }  # fmt: skip
    print(
        f"{name:12} {row['inputs']:>12,} inputs {row['inputs_per_second']:>8,} a second {row['edges_covered']:>6} edges",
        flush=True,
    )
    if finding:
        print(f"ended with {done.returncode}\n{done.stderr[-4000:]}", file=sys.stderr)
    return row


def _record(rows: list[dict]) -> None:
    path = ROOT / "results" / "reference" / machine.machine_id() / "fuzz.jsonl"
    kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    for row in rows:
        before = next((r for r in kept if (r["target"], r["commit"]) == (row["target"], row["commit"])), None)
        if before:
            row |= {"inputs": row["inputs"] + before["inputs"], "finding": row["finding"] or before["finding"]}
            kept.remove(before)
    path.write_text("".join(json.dumps(row) + "\n" for row in kept + rows), encoding="utf-8")


sys.exit(main())
