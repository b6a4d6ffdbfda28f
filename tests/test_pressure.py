"""Memory pressure: weights that went to the disk come back as they were, and swap, group and files go whatever happens."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import kit
from kit.errors import ReportError
from kit.lab.claims import gates, records
from kit.lab.claims.session import Session
from kit.lab.findings import pressure
from kit.lab.measuring.group import Group, missing_rights
from kit.lab.synthetic.write import cached_model
from kit.system import rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return cached_model("tiny-llama", mix="Q4_K_M", folder=tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("piece", [4096, pressure.FAULT])
def test_what_was_spilled_comes_back_as_it_was(tiny, tmp_path, piece):
    """Three passes by a limit of half: the logits as without, an evicted weight out once, each miss after that back in."""
    with kit.open(tiny) as file:
        limit = pressure.used_bytes(file) // 2
        weights = pressure.Spilled(file, limit, tmp_path, piece)
        kept, right = kit.Transformer(weights), kit.Transformer(kit.Weights(file, kit.NoCache()))
        contexts = kept.new_cache(8), right.new_cache(8)
        for token in (1, 5, 2):
            assert torch.equal(kept.step([token], contexts[0]), right.step([token], contexts[1]))
            assert weights.store.stats.resident_bytes <= limit
        frame = weights.trace.frame()
        out, back = (frame[frame["what"] == what] for what in ("page out", "page in"))
        assert out["tensor"].is_unique and set(back["tensor"]) <= set(out["tensor"])
        loads = frame[frame["outcome"].isin(["miss", "bypass"])]
        assert len(back) == len(loads) - loads["tensor"].nunique() > 0
        assert (back["nbytes"] == back["tensor"].map(weights.nbytes)).all()
        weights.close()
    assert not list(tmp_path.iterdir())


def test_what_fits_never_meets_the_disk(tiny, tmp_path):
    with kit.open(tiny) as file:
        weights = pressure.Spilled(file, pressure.used_bytes(file), tmp_path)
        kept = kit.Transformer(weights)
        context = kept.new_cache(4)
        for token in (1, 5):
            kept.step([token], context)
        assert not weights.trace.frame()["what"].isin(["page in", "page out"]).any()
        weights.close()


def test_a_disk_that_gives_other_bytes_is_noticed(tiny, tmp_path, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, rooms, offset: [read(file, rooms, offset), rooms[0].__setitem__(0, 77)])
    with pytest.raises(ReportError, match="different logits"):
        pressure.spilled(tiny, tiny, [0.5], tmp_path)


def test_a_folder_that_cannot_do_it_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "HERE", rows.System())
    with pytest.raises(ReportError, match="past the page cache"):
        pressure.spilled(tiny, tiny, [0.5], tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(pressure.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 5}))
    with pytest.raises(ReportError, match="has 5 B free"):
        pressure.spilled(tiny, tiny, [0.5], tmp_path)


def test_a_run_measures_its_curve_once(tiny, tmp_path, monkeypatch):
    """The second notebook reads the first one's records: the same figures, and no inference."""
    first = pressure.of_run(Session("01_first_token", "smoke", out=tmp_path), (1.0, 0.5))
    assert set(first["way"]) == set(pressure.WAYS) and (first.groupby(["share", "way"]).size() >= 2).all()
    monkeypatch.setattr(pressure, "spilled", None)
    assert pressure.of_run(Session("02_cache_mystery", "smoke", out=tmp_path), (1.0, 0.5)).equals(first)


def test_a_curve_without_short_memory_is_refused():
    with pytest.raises(ReportError, match="below 1"):
        pressure.of_run(None, shares=(1.0,))


def test_what_the_kernel_ends_is_a_warning_and_the_page_goes_on(tiny, tmp_path, monkeypatch):
    why = "swap = true: kept, limit 9: the kernel ended it"
    monkeypatch.setattr(pressure, "swapped", lambda *_: (_ for _ in ()).throw(pressure.Killed(why)))
    lab = Session("01_first_token", "smoke", out=tmp_path)
    assert pressure.of_run(lab, (1.0, 0.5), swap=True).empty
    assert [text for _, text in gates.warnings(records.of_run(tmp_path))] == [why]


def test_without_rights_swap_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    monkeypatch.setattr(pressure.shutil, "which", lambda name: None)
    with pytest.raises(ReportError, match=r"rights of root.*mkswap"):
        Group(tmp_path, 1 << 20)


# --- real swap

limited = pytest.mark.skipif(bool(missing_rights(False)), reason=f"a group needs {', '.join(missing_rights(False))}")


@limited
def test_a_group_of_600_mb_is_what_may_be_used(tmp_path):
    asks = "from kit import system; print(system.memory_limit(), system.memory_available())"
    with Group(tmp_path, 0) as group:
        ran = group.run([sys.executable, "-c", asks], 600 << 20, capture_output=True, text=True)
    limit, free = map(int, ran.stdout.split())
    assert limit == 600 << 20 and 100 << 20 < free < 590 << 20


@limited
@pytest.mark.parametrize("mib, code", [(470, 2), (600, 0)])
def test_no_limit_kills_what_keeps_as_much_as_fits(tmp_path, mib, code):
    """The largest matrix takes 250 MiB in float32: it does not fit beside a process of 300, or alone."""
    model = cached_model("tinyllama-1.1b", mix="Q4_K_M", layers=1, folder=tmp_path)
    run = "from kit.lab.commands.cli import main; main()"
    command = [sys.executable, "-c", run, "generate", str(model), "--tokens", "1,2", "-n", "2", "--cache", "auto"]
    with Group(tmp_path, 0) as group:
        ran = group.run(command, mib << 20, capture_output=True, text=True)
    assert ran.returncode == code, ran.stderr
    assert code == 0 or re.fullmatch(r"kit: error: .* takes 250.0 MiB once it is dequantized, .* are free: .*\n", ran.stderr)


@limited
@pytest.mark.parametrize(
    "name, mib, least", [("01", 900, "01_first_token takes 900.0 MiB"), ("0", 1600, "00_start_here takes 1.56 GiB")]
)
def test_a_run_in_a_small_group_does_not_start(tmp_path, name, mib, least):
    """A kernel would be killed in the middle of that notebook."""
    run = "from kit.lab.commands.cli import main; main()"
    command = [sys.executable, "-c", run, "reproduce", "--profile", "smoke", "--only", name, "--out", str(tmp_path / "run")]
    with Group(tmp_path, 0) as group:
        ran = group.run(command, mib << 20, capture_output=True, text=True)
    assert ran.returncode == 2 and not (tmp_path / "run").exists(), ran.stderr
    assert re.fullmatch(rf"kit: error: \S+ [MG]iB of memory are free, and {least} at least: .*\n", ran.stderr)


swap = pytest.mark.skipif(bool(missing_rights()), reason=f"swap needs {', '.join(missing_rights())}")
_MIDDLE = """
import sys
from kit.lab.measuring.group import Group
with Group(sys.argv[1], 8 << 20) as group:
    print("inside", flush=True)
    group.run(["sleep", "60"])
"""


def swapping(folder: Path) -> bool:
    return str(folder) in Path("/proc/swaps").read_text()


def group_folders(pid: int) -> list[str]:
    return [root for root in rows.HERE.groups if Path(root, f"kit-pressure-{pid}").exists()]


@swap
def test_swap_is_there_inside_and_gone_after(tmp_path):
    with Group(tmp_path, 8 << 20) as group:
        assert swapping(tmp_path) and group_folders(os.getpid())
        assert group.run(["cat", "/proc/self/cgroup"], capture_output=True, text=True).stdout.count(
            f"kit-pressure-{os.getpid()}"
        )
        assert group.run([sys.executable, "-c", "bytearray(2 << 30)"], limit=64 << 20).returncode  # the limit holds
    assert not swapping(tmp_path) and not group_folders(os.getpid()) and not list(tmp_path.iterdir())


@swap
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_killed_in_the_middle_leaves_nothing(tmp_path, how):
    child = subprocess.Popen([sys.executable, "-c", _MIDDLE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "inside\n" and swapping(tmp_path)
    child.send_signal(how)
    child.wait(30)
    end = time.monotonic() + 30
    while (swapping(tmp_path) or group_folders(child.pid) or list(tmp_path.iterdir())) and time.monotonic() < end:
        time.sleep(0.1)
    assert not swapping(tmp_path) and not group_folders(child.pid) and not list(tmp_path.iterdir())


@swap
def test_a_folder_that_takes_no_swap_is_an_error_that_leaves_nothing(tmp_path):
    with pytest.raises(ReportError, match="swap = true"), Group(tmp_path / "missing", 8 << 20):
        pass
    assert not group_folders(os.getpid())


@pytest.mark.slow
@swap
def test_the_three_ways_run_under_a_limit(tiny, tmp_path):
    told = pressure.swapped(tiny, tiny, (0.5,), tmp_path, inferences=2)
    assert all(len(seconds) == 2 for ways in told.values() for seconds in ways.values())
    assert not swapping(tmp_path) and not list(tmp_path.iterdir())
