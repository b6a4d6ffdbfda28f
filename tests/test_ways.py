"""The table of ways: a row reaches every part of the kit, and names of committed runs stay as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from kit.lab.engines.table import COMPARED, EXACT, OURS, PEER, ROUNDED
from kit.lab.explaining.tables import formatted
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS, HOLDS, Way
from kit.lab.synthetic.write import synthesize
from kit.lab.tables import in_tables, shown

HERE = Path(__file__).parent


def test_names_of_committed_runs_stay():
    """What peers.json, stores and records of results/reference call the ways: written down here, not computed."""
    assert [*COMPARED] == ["kit", "kit, int16 activations", "kit, int8 activations", "llama.cpp, mmap"]
    assert [way.label for way in BLOCK_WAYS] == [
        "blocks, exact products", "blocks, int16 activations", "blocks, int8 activations",
    ]  # fmt: skip
    assert [way.label for way in BLOCK_WAYS] == [row.label for row in OURS.values()]
    assert [way.quantity for way in BLOCK_WAYS] == [
        "a token, blocks as they lie", "a token, blocks, int16 activations", "a token, blocks, int8 activations",
    ]  # fmt: skip
    assert [way.quantity for way in BLOCK_WAYS] == [row.quantity for row in OURS.values()]
    assert [way.precision for way in BLOCK_WAYS] == ["float32", "int16 activations", "int8 activations"]
    assert [in_tables(row.label) for row in OURS.values()] == ["exact", "int16", "int8"]
    assert [in_tables(row.name) for row in ROUNDED] == ["kit, int16", "kit, int8"]
    assert in_tables("1.00 GiB of slots, int8 activations") == "1.00 GiB of slots, int8" and in_tables(7) == 7


@pytest.mark.parametrize("names", [[way.label for way in BLOCK_WAYS], [EXACT.title, *[*OURS][1:]]])
def test_every_table_names_a_way_by_its_one_word(names):
    """Pages 07 and 09 said "blocks, int8 activations" where the answer above said int8."""
    table = pd.DataFrame({"measured": [0.1] * 3}, index=pd.Index(names, name="way"))
    for text in (shown(table).to_html(), formatted(table).to_html()):
        assert all(word in text for word in ("exact", "int16", "int8")) and "activations" not in text and "products" not in text
    assert [*table.index] == names, "records and JSON keep theirs"
    assert [row.title for row in (EXACT, *ROUNDED, COMPARED[PEER])] == [
        "kit, exact", "kit, int16", "kit, int8", "llama.cpp, the file mapped",
    ]  # fmt: skip
    held = [
        Way("Pinned", 1 << 30, linear="fused", holds="pinned"), Way("LRU", 1 << 30, linear="fused", holds="slots"),
        Way("LRU", 1 << 30, linear="fused-int8", holds="slots"), Way("NoCache", linear="fused", holds="pressed"),
    ]  # fmt: skip
    assert [way.label for way in held] == [
        "blocks, 1.00 GiB pinned", "blocks, 1.00 GiB of slots", "1.00 GiB of slots, int8 activations",
        "blocks, page cache too small",
    ]  # fmt: skip


def test_no_two_ways_share_a_name():
    """A label is a key of the store."""
    ways = [Way("LRU", 1 << 30, linear=way.linear, holds=holds) for way in BLOCK_WAYS for holds in HOLDS]
    assert len({way.label for way in ways}) == len(ways) and BLOCKS.label not in {way.label for way in ways[1:]}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What tests/made_up_way.py says of a way that only its row adds."""
    folder = tmp_path_factory.mktemp("way")
    path = synthesize(folder / "tiny.gguf", "tiny-mistral", "Q8_0")
    given = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    given |= {"KIT_MEASURED": str(folder)}
    command = [sys.executable, str(HERE / "made_up_way.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_row_reaches_the_products_and_the_commands(told):
    """generate prints what int16 prints, whose digits it has; its help names the row."""
    assert told["same"] and "fused-int12  round activations to twelve bits" in told["help"]
    ours, theirs = told["generated"]
    assert ours["tokens"] == theirs["tokens"] and ours["linear"] == "fused-int12"


@pytest.mark.slow
def test_a_row_reaches_transformers_quants_and_quality(told):
    assert told["hf"] and told["quants"] == " --linear fused-int12" and told["quality"] == "fused-int12"
    assert told["engine"] == ["kit, int12 activations"] and told["short"] == "int12"


@pytest.mark.slow
def test_a_row_is_predicted_and_measured_however_blocks_are_held(told):
    """explain and notebook 07, which take their ways from the same lists."""
    assert told["labels"] == [
        "blocks, int12 activations", "blocks, 1.00 MiB pinned, int12 activations", "1.00 MiB of slots, int12 activations",
    ]  # fmt: skip
    assert told["candidates"] == [True] * 3
    assert all(seconds > 0 for seconds in told["predicted"] + told["measured"])
    assert [" --linear fused-int12" in command for command in told["commands"]] == [True] * 3
