"""The kit's commands, and notebooks 00, 01 and 07, from start to end on an aarch64 that QEMU emulates: slow, but what a Mac's
or an Arm server's Python would run.

``tests/aarch64.sh build/aarch64 .venv/bin/python notebooks``, then ``python tests/emulated_commands.py [WORD ...]`` runs those
that hold one of the words, by default all, and adds a line for each to results/reference/emulated-aarch64/commands.jsonl.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime

from kit.lab.measuring.machine import describe
from kit.lab.synthetic.write import cached_model
from kit.system.paths import ROOT

PYTHON = ROOT / "build" / "aarch64" / "python"
RECORD = ROOT / "results" / "reference" / "emulated-aarch64" / "commands.jsonl"
COMMANDS = {  # command -> what it says, besides its exit code
    "kit doctor": "neon runs",
    "kit explain MODEL": "hit rate",
    "kit generate MODEL --tokens 1,2,3 -n 8": "tok/s",
    **{f"kit reproduce --profile smoke --no-progress --only {name} --out OUT": "" for name in ("00", "01", "07")},
}


def run(command: str) -> dict:
    """What came of a command: its seconds, exit code, the line that says what it must, and under which emulator."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(cached_model("tiny-llama", "Q4_K_M"))
        words = command.replace("MODEL", model).replace("OUT", f"{folder}/run").split()[1:]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": folder}  # nothing is compiled
        environment.pop("KIT_SIMD", None)
        code = "import platform, sys; assert platform.machine() == 'aarch64'; from kit.lab.commands.cli import main; main()"
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([PYTHON, "-c", code, *words], env=environment, capture_output=True, text=True)
        seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(after[:2]) - sum(before[:2])  # of user and system
    told = done.stdout + done.stderr
    line = next((line for line in told.splitlines() if COMMANDS[command] in line), "")
    if done.returncode or COMMANDS[command] not in line:
        print(told, file=sys.stderr)
    took = {"seconds": round(seconds, 1), "CPU seconds": round(processor, 1), "load": round(os.getloadavg()[1], 1)}
    return took | {"exit code": done.returncode, "says": line.strip().replace(folder, "OUT")}


def sentence() -> str:
    """What README says of the newest line of each command that the record has."""
    newest = {row["command"]: row for row in map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())}
    assert all(row["exit code"] == 0 and COMMANDS[command] in row["says"] for command, row in newest.items())
    names = (" ".join(command.split()[:2] + command.split()[5:7]) for command in newest)
    return ", ".join(f"`{name}` ({row['CPU seconds']:.0f} s)" for name, row in zip(names, newest.values(), strict=True))


def main() -> None:
    qemu = PYTHON.parent / "emulator" / "usr" / "bin" / "qemu-aarch64-static"
    version = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout.split("(")[0].strip()
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    for command in COMMANDS:
        if not sys.argv[1:] or any(word in command for word in sys.argv[1:]):
            head = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": describe()["commit"]}
            row = head | {"emulator": version, "command": command} | run(command)
            print(row)
            with RECORD.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
