"""What a page measures under and writes down, by hand: a clock, a machine and other processes that nobody has."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from invented import MACHINE

from kit.lab.claims import records
from kit.lab.claims import session as sessions
from kit.lab.claims.session import Session
from kit.lab.measuring.state import Disturbed, State


@pytest.fixture
def world(monkeypatch):
    """``busy``: what others do; ``now``: the clock; ``looks`` at the machine; seconds of each of the ``waits``; ``quiet`` of
    each probe that counts as a limit."""
    world = SimpleNamespace(busy="", now=100.0, looks=0, waits=[], quiet=[], patience=30.0)

    def probe_state():
        world.looks += 1
        return State(float(world.looks), 1.0)

    monkeypatch.setattr(sessions.state, "settle", lambda most: world.waits.append(most) or world.busy)
    monkeypatch.setattr(sessions.state, "patience", lambda most: world.patience)
    monkeypatch.setattr(sessions.state, "probe_state", probe_state)
    monkeypatch.setattr(sessions.limits, "seen", lambda out, found, quiet: world.quiet.append(quiet))
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: world.now))
    return world


def begun(folder, notebook="01_a", **given) -> Session:
    lab = Session(notebook, profile="smoke", out=str(folder), **given)
    lab.machine = MACHINE
    return lab


def measured(lab, samples=(1.0,), **more):
    return lab.record(**{"quantity": "q", "unit": "s"} | more, samples=list(samples))


def test_the_machine_is_looked_at_again_when_a_look_is_older_than_three_seconds(tmp_path, world):
    lab = begun(tmp_path)
    states = []
    for later in (0.0, 3.0, 0.5, 2.0):
        world.now += later
        states.append(measured(lab).state["read_gbps"])
    assert states == [1.0, 1.0, 2.0, 2.0] and world.quiet == [True, True] and lab.others == 0
    world.busy = Disturbed("others use 2 cores")
    world.busy.others = 2.0
    world.now += 4
    assert (measured(lab).state, lab.others) == ({"read_gbps": 3.0, "fill_gbps": 1.0, "busy": world.busy}, 2.0)
    world.busy, world.now = "", world.now + 4
    assert not any(world.waits[1:]), "a look waits for nobody"
    assert "others" in measured(lab).state["busy"] and world.quiet[2:] == [False, False], "a page that was disturbed stays so"


def test_pages_after_one_that_waited_in_vain_wait_two_seconds(tmp_path, world):
    """Each notebook of a run on a machine that is never idle had waited for all of its patience."""
    world.busy = "others"
    assert measured(begun(tmp_path / "a")).state["waited"] and world.waits[:1] == [30.0]
    begun(tmp_path / "a", "02_b")
    begun(tmp_path / "b")
    world.patience = 1.0
    begun(tmp_path / "a", "03_c")
    assert [most for most in world.waits if most] == [30.0, 2.0, 30.0, 1.0]
    world.patience, kept = 30.0, records.read([tmp_path / "a" / "01_a.jsonl"])[0]
    (tmp_path / "c").mkdir()
    records.append(tmp_path / "c" / "01_a.jsonl", kept)
    begun(tmp_path / "c", "02_b")
    assert world.waits[-1] == 30.0, "a page that was kept from another run waited in that one"
    world.busy = ""
    assert "waited" not in measured(begun(tmp_path / "d")).state
    begun(tmp_path / "d", "02_b")
    assert world.waits[-1] == 30.0


def test_the_first_record_of_a_quantity_in_a_run_of_one_model_is_what_later_pages_show(tmp_path, world):
    lab = begun(tmp_path)
    lab.record(quantity="q", unit="s", samples=[], status="skipped", reason="no GPU")
    assert lab.earlier("q", "s") is None, "it has no samples"
    for samples in ([1.0], [2.0]):
        measured(lab, samples)
    later, other = begun(tmp_path, "02_b"), begun(tmp_path, "03_c", model="m.gguf")
    assert later.earlier("q", "s").samples == [1.0] and later.once("q", "s", lambda: [9.0]) == [1.0]
    assert later.earlier("q", "ms") is later.earlier("p", "s") is other.earlier("q", "s") is None


def test_what_a_gpu_measured_names_it(tmp_path, world, capsys):
    lab = begun(tmp_path)
    lab.gpu = SimpleNamespace(name="G")
    assert [measured(lab, device=device).parameters.get("gpu") for device in ("cpu", "cuda")] == [None, "G"]
    assert not lab.on_device("tiles") and "adds tiles" in capsys.readouterr().out
    lab.device = "cuda"
    assert lab.on_device("tiles") and capsys.readouterr().out == ""


def test_the_picture_of_a_page_has_its_name(tmp_path, world, monkeypatch):
    drawn = []
    monkeypatch.setattr(sessions.figures, "thumbnail", lambda figure, path: drawn.append((figure, path)))
    begun(tmp_path).picture("figure")
    assert drawn == [("figure", tmp_path / "01_a.png")]


def test_a_gate_that_fails_is_a_warning_of_the_page(tmp_path, world, capsys):
    lab = begun(tmp_path)
    assert lab.gate(1 < 2, "fine") is True and lab.gate(1 > 2, "equal <b>", "measured") is False
    (row,) = records.read([tmp_path / "01_a.jsonl"])
    assert (row.status, row.reason, row.how) == (records.WARNED, "equal <b>", "measured")


def test_a_command_of_an_answer_is_a_line_of_its_own(tmp_path, world):
    said = begun(tmp_path).answer("It is\n   so:\n`kit generate m.gguf`\nnow with `-t 2`\n", "Two cores.").data
    lines = [line.strip() for line in said.splitlines()]
    assert lines == ["**Two cores.** It is so:", "`kit generate m.gguf`", "now with `-t 2`"]
    assert all(line.endswith("  ") for line in said.splitlines()[:-1]), "a break of Markdown"


def test_only_records_of_a_run_without_a_folder_are_set_aside(tmp_path, world, monkeypatch, capsys):
    monkeypatch.setenv("KIT_RESULTS", str(tmp_path / "results"))
    for given in ({"out": str(tmp_path / "run")}, {}):
        for text in ("", "x"):
            lab = Session("01_a", profile="smoke", **given)
            set_aside = {path.name for path in lab.out.iterdir()} - {"01_a.jsonl"}
            assert not set_aside and "run before" not in capsys.readouterr().out
            (lab.out / "01_a.jsonl").write_text(text)
    assert (Session("01_a", profile="smoke").out / "01_a.jsonl.before").read_text() == "x"
    assert "run before" in capsys.readouterr().out
    assert Session("01_a", profile="smoke", out=str(tmp_path / "run")).out.joinpath("01_a.jsonl").read_text() == ""


def test_the_model_of_a_page_is_the_one_that_was_named_or_one_of_the_profile(tmp_path, world, monkeypatch):
    monkeypatch.setattr(sessions, "resolve", lambda model: f"resolved {model}")
    monkeypatch.setattr(sessions, "_generated", lambda profile, name, seed=0: (profile.name, name, seed))
    assert begun(tmp_path, model="m.gguf").path() == "resolved m.gguf"
    assert begun(tmp_path, seed=3).path("phi-4") == ("smoke", "phi-4", 3) and begun(tmp_path).tiny("phi-4")[0] == "smoke"


def test_a_judgment_next_to_other_processes_is_none(tmp_path, world):
    lab = begun(tmp_path)
    given = ("token-time", "q", "s", [1.0] * 6)
    quiet = lab.judge(*given, accept=(0.5, 2.0), text="t")
    assert replace(quiet, state={}) in [replace(row, state={}) for row in records.read([tmp_path / "01_a.jsonl"])]
    world.busy, world.now = "others", world.now + 9
    assert (quiet.verdict, lab.judge(*given, accept=(0.5, 2.0), text="t").verdict) == ("reproduced", "undecided here")
