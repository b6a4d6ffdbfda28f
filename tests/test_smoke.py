"""All notebooks in the smoke profile, as `kit reproduce` runs them: nothing fails, figures agree, no verdict flips."""

import html
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import nbformat
import pytest
from contradictions import of_pages, wrong_ratios

from kit.lab.claims import gates, records
from kit.lab.measuring import machine
from kit.system.paths import ROOT
from kit.units import format_quantity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
NAMES = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
KIT = [sys.executable, "-c", "from kit.lab.commands.cli import main; main()"]


def kit(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([*KIT, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run; with KIT_TWICE another of the same notebooks, after it: five minutes more."""
    names = ("first", "second") if os.environ.get("KIT_TWICE") else ("first",)
    folders = [tmp_path_factory.mktemp("smoke") / name for name in names]
    limits = machine.probe()
    # At four times its speed no page runs again, or warns, because memory was faster for a while: a probe on a quarter of a
    # machine (a container's quota) may see a quarter of it.
    limits = replace(limits, **{name: 4 * getattr(limits, name) for name in machine.LIMITS})
    for folder in folders:
        folder.mkdir()
        (folder / "environment.json").write_text(json.dumps(asdict(limits)))
        done = kit("reproduce", "--profile", "smoke", "--out", folder, "--no-progress")
        assert done.returncode == 0, done.stderr[-3000:]
        assert untimed(records.of_run(folder)) == [], done.stderr[-3000:]
    return folders


def untimed(rows) -> list[str]:
    """What is wrong with a run and no other process can have done: of times, those of other tests may be beyond any bound."""
    return [f"{rows[number].notebook}: {text}" for number, text in gates.warnings(rows) if rows[number].how != "measured"]


def test_only_what_is_timed_may_be_beyond_its_bound():
    told = {"quantity": "q", "unit": "x", "samples": [6.0], "upper": 2.0}
    warned = {"quantity": "gate", "unit": "", "status": records.WARNED, "reason": "wrong"}
    rows = [records.Record(**kind, how=how) for kind in (told, warned) for how in ("measured", "counted")]
    assert len(gates.warnings(rows)) == 4
    assert untimed(rows) == [": q: 6x is above its limit of 2x ()", ": wrong"]


def test_every_notebook_runs_and_has_its_page(runs):
    for folder in runs:
        assert {path.stem for path in folder.glob("*.html")} == {"index", *NAMES}
        for name in NAMES:
            notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
            outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
            assert not [output for output in outputs if output.output_type == "error"], name
            told = "".join(output.text for output in outputs if output.get("name") == "stderr")
            assert not re.search(r"Warning:", told), f"{name}: {told[:400]}"


@pytest.mark.skipif(not os.environ.get("KIT_TWICE"), reason="one run has nothing to be compared with: KIT_TWICE runs two")
def test_no_verdict_flips(runs):
    done = kit("verify", *runs)
    assert done.returncode == 0, done.stdout


def test_figures_of_one_run_agree_with_each_other(runs):
    """What tables and sentences print of a record, beside the record; page 08 warns of two values of one quantity."""
    for folder in runs:
        told = {name: words_of(folder / f"{name}.ipynb") for name in NAMES}
        for name in NAMES:
            rows = records.read([folder / f"{name}.jsonl"])
            for quantity in {row.quantity for row in rows}:
                assert not printed_otherwise(told[name], quantity, rows), f"{folder / name}: {quantity}"


def test_the_rendered_pages_have_one_value_of_each_quantity(runs):
    for folder in runs:
        assert of_pages(folder) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_ratio_of_a_table_is_the_quotient_of_its_row(runs, name):
    for folder in runs:
        assert wrong_ratios(folder / f"{name}.ipynb") == []


def words_of(path) -> str:
    """All that an executed notebook prints, tables cell by cell, without markup."""
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", ())]
    texts = [output.get("text") or output.get("data", {}).get("text/html", "") for output in outputs]
    plain = (re.sub(r"<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL) for text in texts)
    return " ".join(html.unescape(" ".join(plain)).split())


def printed_otherwise(words: str, quantity: str, rows) -> list[str]:
    """The numbers right after a quantity, wherever a notebook prints it, that no record of it has: as median or sample."""
    own = [row for row in rows if row.quantity == quantity and row.samples]
    right = [number_of(text) for row in own for text in (str(row.median), format_quantity(row.median, row.unit))]
    spans = [(min(row.samples), max(row.samples)) for row in own]
    after = re.findall(rf"(?<!\S){re.escape(quantity)}:? (-?\d.{{0,30}})", words) if own else []
    fits = lambda value: any(0.98 * low <= value <= 1.02 * high for low, high in spans) or value in map(approximately, right)  # noqa: E731
    return [text for text in after if not fits(number_of(text))]


def approximately(value: float):
    return pytest.approx(value, rel=0.02, abs=0.0006)  # as a table rounds it


def number_of(text: str) -> float:
    return float(re.match(r"-?[\d,]+\.?\d*(?:e[+-]?\d+)?", text.removeprefix("below "))[0].replace(",", ""))
