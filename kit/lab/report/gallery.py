"""The gallery: one page of what people measured with kit explain --engine, from their JSON files under a folder.

    python -m kit.lab.report.gallery results/reference              writes results/reference/gallery.md
    python -m kit.lab.report.gallery results/reference mine.json    adds a file to it first, without the folders in its paths

A file is <folder>/<machine>/engines/<name>.json, the output of `kit explain MODEL --engine X --json`, or of a server's URL.
"""

import json
import re
import shlex
import sys
from pathlib import Path

from kit.errors import ReportError
from kit.lab.engines.table import EXACT
from kit.lab.explaining.answer_table import percent
from kit.lab.explaining.causes import DECODE
from kit.lab.measuring.state import BUSY
from kit.lab.tables import markdown
from kit.system.files import replacing
from kit.units import format_rate, from_json, printable

NAME = "gallery.md"
_HEAD = """# Machines

What people measured with `kit explain MODEL --engine X`. `pp512` is a prompt of 512 tokens, `tg64` a decode of 64, both in
tokens per second, as `llama-bench` names them. MBU is the share of the memory's bandwidth that a decode uses. The bandwidth was
measured in the same minutes. *Same token* is how often the most probable next token is that of float32.
To add your machine, open an issue with the template *My machine*.
"""
_FOLDERS = re.compile(
    r"""(?<![\w:/.~])(?:~|\.\.?)?/(?:[^/\s'"`]+/)*(?=[^/\s])"""
)  # of a path in a text; GB/s and a URL have none
_COLUMNS = ("CPU", "memory, GB/s", "file", "engine", "build", "threads", "pp512", "tg64", "same token", "MBU",
            "largest other part")  # fmt: skip


def rows(folder: Path) -> list[dict]:
    """A row for each engine of each file, sorted by CPU, file and engine; ReportError names a file that is none, or was
    measured on a busy machine."""
    return sorted(
        (row for path in sorted(folder.glob("*/engines/*.json")) for row in _rows(path)),
        key=lambda row: [str(row[name]) for name in ("CPU", "file", "engine")],
    )


def _rows(path: Path) -> list[dict]:
    try:
        data = from_json(path.read_text(encoding="utf-8"))
        machine, made = data["machine"], []
        table = iter([row for row in data.get("answer", {}).get("table", []) if row["kind"] != "limit"])  # one of each engine
        for record in data.get("engines") or [data]:
            decode, prompt, engine = record["decode"], record["prompt"], record["engine"]
            if max(_others(decode), _others(prompt)) > BUSY:
                raise ReportError(f"{path}: was measured while other processes used the cores: measure it again")
            others = [each for each in record["causes"] if each["name"] != "memory" and each.get("of", DECODE) == DECODE]
            most = max(others, key=lambda each: each["seconds"], default=None)
            share = f"{most['name']} {most['seconds'] / decode['seconds']:.0%}" if most else ""
            made.append(dict(zip(_COLUMNS, (
                machine["cpu"], f"{record['bound']['bandwidth'] / 1e9:.1f}", _file(data), _named(engine), engine["version"],
                engine["threads"] or "", _speed(prompt), _speed(decode), _same(next(table, {})),
                f"{record['mbu']:.0%}", share,
            ), strict=True)))  # fmt: skip
        return made
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ReportError(f"{path}: is no output of `kit explain MODEL --engine X --json`, or has no limit") from None


def _same(row: dict) -> str:
    """What goes with a speed, of a row of the answer's table."""
    exact = (row.get("kind"), row.get("name")) == ("kit", EXACT.short)
    return "100%" if exact else "not measured" if row.get("same") is None else percent(row["same"])


def _named(engine: dict) -> str:
    """Its name with the options that were asked for: two settings of one engine are two rows."""
    return " ".join([engine["name"], *shlex.split(engine.get("label") or "")[1:]])


def _others(test: dict) -> float:
    """Cores that other processes used during a test, of an engine or of a server."""
    return test.get("others_cores") or test.get("others") or 0.0


def _file(data: dict) -> str:
    """The name of the file."""
    return (data.get("file") or {}).get("name") or Path(data["engine"]["file"]).name


def add(folder: Path, path: Path) -> Path:
    """Copy a file into the folder of its machine; of every path in it the last name stays. ReportError as of ``rows``."""
    _rows(path)
    data = _short(from_json(path.read_text(encoding="utf-8")))
    engines = [record["engine"]["name"] for record in data.get("engines") or [data]]
    name = re.sub(r"[^\w.-]+", "-", "-".join([_file(data).removesuffix(".gguf"), *dict.fromkeys(engines)]))
    into = folder / data["machine"]["id"] / "engines" / f"{name}.json"
    into.parent.mkdir(parents=True, exist_ok=True)
    with replacing(into) as out:
        out.write((json.dumps(data, indent=1) + "\n").encode())
    return into


def _short(value):
    """Plain data whose texts have no folders."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def _speed(test: dict) -> str:
    return format_rate(test["tokens_per_second"]) if test["tokens_per_second"] else ""


def page(folder: Path) -> str:
    """The page as Markdown."""
    made = rows(folder)
    if not made:
        return f"{_HEAD}\nNo machine yet.\n"
    lines = ([printable(row[name]).replace("|", "\\|") for name in _COLUMNS] for row in made)
    return f"{_HEAD}\n{markdown(_COLUMNS, lines)}\n"


def write(folder: Path) -> Path:
    """Write the page into the folder."""
    with replacing(folder / NAME) as out:
        out.write(page(folder).encode())
    return folder / NAME


if __name__ == "__main__":
    try:
        into, *sent = map(Path, sys.argv[1:] or ["results/reference"])
        for each in sent:
            print(add(into, each))
        print(write(into))
    except ReportError as error:
        sys.exit(f"error: {error}")
