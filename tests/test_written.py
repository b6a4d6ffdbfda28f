"""How a file was written: what is measured is what the words say, on any machine."""

import pandas as pd
import pytest

import kit
from kit.gguf import large_pages
from kit.lab.findings import written
from kit.lab.measuring import pages
from kit.lab.synthetic.write import synthesize
from kit.system import page_sizes

MIB = 1 << 20


def table(gain, spread=0.01, cost=0.8, large=0.0, outcome="done"):
    """Rows as ``measure`` makes them, of these gains."""
    rows = {
        name: {written.WRITTEN: 8.0, written.AGAIN: 10.0, written.COPY: 10.0, written.LARGE: large, written.LARGE_AGAIN: 1.0,
               written.COST: cost, written.GAIN: each, "low": each - spread, "high": each + spread, "outcome": outcome}
        for name, each in gain.items()
    }  # fmt: skip
    return pd.DataFrame.from_dict(rows, "index")


@pytest.mark.parametrize(
    "rows, starts, holds",
    [
        (
            table({"4 KiB": 1.26, "1 MiB": 1.0}),
            "Yes: ",
            "written in pieces of 4 KiB, is read 1.26 times as fast (1.25 to 1.27)",
        ),
        (table({"4 KiB": 1.26, "1 MiB": 1.0}), "Yes: ", "For pieces of 1 MiB the difference is within its spread"),
        (table({"4 KiB": 1.01, "1 MiB": 1.0}, cost=0.99), "No: ", "1.00 to 1.01 times as fast"),
        (table({"4 KiB": 1.2, "1 MiB": 1.0}, spread=0.3), "Undecided here: ", "0.70 to 1.50 times as fast"),
        (table({"4 KiB": 1.2}, large=None), "Not known: ", "does not tell"),
        (table({"4 KiB": 1.2}, outcome="this system cannot"), "Not decided here: ", "this system cannot"),
    ],
)
def test_the_words_follow_the_rows(rows, starts, holds):
    said = written.told(rows, 128 * MIB, cache=32 * MIB)
    assert said.startswith(starts) and holds in said and "caches" not in said
    assert "hold a part of it" in written.told(rows, 128 * MIB, cache=64 * MIB)
    assert "hold it" in written.told(rows, 128 * MIB, cache=512 * MIB)


def test_pieces_are_pieces_and_a_file_of_small_pages_becomes_one_of_large(tmp_path):
    with written.write(tmp_path, 5 * MIB + 100, 4096) as file:
        data = open(file.name, "rb").read()
    assert len(data) == 5 * MIB + 100 and data[:100] == data[5 * MIB :]
    found = written.measure(tmp_path, 8 * MIB, (4096, MIB), count=3)
    assert [*found.index] == ["4.00 KiB", "1.00 MiB"] and not [*tmp_path.iterdir()]
    assert (found[written.GAIN] > 0).all() and (found["low"] <= found["high"]).all()
    assert (found["samples"].map(len) == 3).all()
    small = found.loc["4.00 KiB"]
    if small["outcome"] == "done":
        assert small[written.LARGE] < large_pages.FEW < small[written.LARGE_AGAIN]


def test_what_a_slow_map_costs_and_the_one_command():
    slow, fast = pages.MapSpeed(20.0, 40.0, 0.05), pages.MapSpeed(39.5, 40.0, 1.0)
    said = pages.told(slow, fast, 2e9, "kit generate a.gguf -p x")
    assert "costs 50.0 ms per token" in said and "5% of it by pages of 2 MiB" in said
    assert "`kit generate a.gguf -p x` reads the file again, once" in said and "--pages" not in said
    assert "`kit generate FILE --pages copied` takes 1.86 GiB" in pages.told(slow, slow, 2e9)
    assert "without a gain" in pages.told(slow, slow._replace(large=1.0), 2e9)
    assert pages.told(fast, fast, 2e9).startswith("The file's pages are as fast as memory: its map reads at 39.5 GB/s, 100%")


def test_a_copied_file_keeps_its_bytes(tmp_path):
    """A map's pages may leave the page tables, those of a copy must not: they would be zeros."""
    path = synthesize(tmp_path / "m.gguf", "tiny-llama")
    for way in ("large", "small", "copied"):
        with kit.open(path, pages=way) as file:
            data = file.raw("token_embd.weight")
            before, held = bytes(data), page_sizes(data)[0]
            file.unmap_pages()
            assert way == "copied" or held == 0 or page_sizes(data)[0] == 0
            assert bytes(data) == before
        assert way != "copied" or pages.speed(kit.open(path, pages=way)) is None
