"""The conditions of a measurement: whatever a speed depends on is part of its key."""

import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest
from invented import MACHINE

from kit.cpu import simd
from kit.errors import KitError, KitWarning
from kit.lab.measuring import conditions, kept, machine, sound
from kit.lab.measuring.doctor import VARIABLES
from kit.lab.report import html
from kit.lab.report import run as runs
from kit.system.paths import ROOT

NO_SPEED = {  # variables of docs/environment.md from which no speed follows -> why
    "KIT_RESULTS": "a place", "KIT_MODELS": "a place", "KIT_MEASURED": "a place", "KIT_PATIENCE": "how long to wait",
    "NUMBA_CACHE_DIR": "a place", "TRITON_CACHE_DIR": "a place", "HF_HOME": "a place", "HF_HUB_OFFLINE": "what is fetched",
    "HF_TOKEN": "who fetches", "KIT_SERVER_KEY": "who asks", "HF_HUB_CACHE": "a place", "JAN_DATA_FOLDER": "a place",
    "OLLAMA_MODELS": "a place", "XDG_CACHE_HOME": "a place", "LLAMA_CACHE": "a place",
}  # fmt: skip
OTHERS = (
    "OMP_PROC_BIND", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "MALLOC_ARENA_MAX",
    "LD_PRELOAD", "GLIBC_TUNABLES", "GGML_CPU_DISABLE_FUSION", "THP_MEM_ALLOC_ENABLE", "OMP_WAIT_POLICY",
)  # fmt: skip


def documented():
    """The variables of the first table of docs/environment.md."""
    table = (ROOT / "docs/environment.md").read_text(encoding="utf-8").split("\n\n")[2]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])]


@pytest.mark.parametrize("name", [*documented(), *OTHERS])
def test_a_variable_is_of_the_key_or_changes_no_speed(monkeypatch, tmp_path, name):
    """KIT_THREADS=1 and 8 had one key."""
    monkeypatch.delenv(name, raising=False)
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"one")
    seen = [conditions.settings()]
    for value in ("3", "5"):
        monkeypatch.setenv(name, str(library) if name in conditions.BUILDS else value)
        library.write_bytes(library.read_bytes() + b"rebuilt")
        seen.append(conditions.settings())
    assert len(set(seen)) == (1 if name in NO_SPEED else 3), NO_SPEED.get(name, name)
    assert " " not in seen[1].partition(f"{name}=")[2].split(" ")[0] and dict(part.split("=", 1) for part in seen[1].split(" "))


def test_doctor_shows_the_variables_that_the_page_lists():
    """KIT_MEASURED, IK_LLAMA_CPP and NUMBA_CPU_NAME were set, and not shown."""
    assert set(documented()) == set(VARIABLES) and len(documented()) > 15


def test_conditions_are_those_of_the_process_s_whole_life():
    """Libraries set variables of their own as they load: no value depends on which are loaded."""
    source = (
        "from kit.lab.measuring.conditions import settings; before = settings(); import numpy as np, torch, numba, kit;"
        "kit.dequantize(np.zeros((1, 18), np.uint8), 'Q4_0'); torch.ones(4) @ torch.ones(4); assert settings() == before"
    )
    subprocess.run([sys.executable, "-c", source], check=True, env=os.environ | {"NUMBA_OPT": "3"})


def test_the_code_that_computes_is_of_the_key(monkeypatch):
    assert all((conditions.PACKAGE / part).is_dir() for part in conditions.CODE)
    before = conditions.settings()
    monkeypatch.setattr(conditions, "CODE", ("gguf",))
    conditions.code.cache_clear()
    assert conditions.settings() != before and "cores=" in before
    conditions.code.cache_clear()


@pytest.mark.parametrize("told, choice", [
    ("always [madvise] never\n", "madvise"), ("performance\n", "performance"), ("", None),
])  # fmt: skip
def test_a_choice_of_the_system_is_the_one_in_brackets_and_changes_no_computed_value(monkeypatch, told, choice):
    monkeypatch.setattr(conditions, "text_of", lambda path: told)
    assert {conditions.conditions().get(name) for name in conditions._SYSTEM} == {choice}
    assert conditions.computing() == {
        name: value for name, value in conditions.conditions().items() if name not in ("large_pages", "governor")
    }


@pytest.mark.parametrize("name, value, wrong", [
    ("KIT_THREADS", "many", True), ("KIT_PATIENCE", "soon", True), ("KIT_SIMD", "mmx", True), ("KIT_SIMD", "plain", False),
    ("KIT_SIMD", "", False),
])  # fmt: skip
def test_a_variable_that_nothing_follows_is_said_and_no_tier_is_compiled_for_it(monkeypatch, name, value, wrong):
    for each in ("KIT_THREADS", "KIT_PATIENCE", "KIT_SIMD"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    entered, using = [], simd.using
    monkeypatch.setattr(simd, "using", lambda tier: entered.append(tier) or using(tier))
    if not wrong:
        conditions.check_variables()
        assert not entered, "each tier that this CPU has tests itself, which compiles for seconds"
        return
    with pytest.raises(KitError, match=value):
        conditions.check_variables()


def test_without_a_variable_nothing_is_asked(monkeypatch):
    for each in ("KIT_THREADS", "KIT_PATIENCE", "KIT_SIMD"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr("kit.system.cores.threads_asked", lambda: pytest.fail("which asks the system for its cores"))
    conditions.check_variables()


def test_a_build_is_its_libraries_sizes_and_times_and_not_when_they_were_read(tmp_path):
    library, beside = tmp_path / "libllama.so", tmp_path / "libggml.so.0"
    missing = conditions.build(library)
    library.write_bytes(b"one")
    os.utime(library, ns=(5, 7))
    seen = [missing, conditions.build(library)]
    os.utime(library, ns=(6, 7))
    assert conditions.build(library) == seen[-1]
    later, longer = lambda: os.utime(library, ns=(5, 8)), lambda: library.write_bytes(b"longer")
    for change in (later, longer, lambda: beside.write_bytes(b"")):
        change()
        seen.append(conditions.build(library))
    assert len({*seen}) == 5


def _run(folder):
    return runs.Run(folder, runs.Request(), machine.machine_id(), "0", "c", "now")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"id": 3}'])
def test_a_damaged_machine_is_measured_again(tmp_path, monkeypatch, text):
    """An empty environment.json broke `kit reproduce --resume`."""
    path, again = tmp_path / machine.ENVIRONMENT, replace(MACHINE, id=machine.machine_id())
    path.write_text(text)
    with pytest.warns(KitWarning, match="environment.json does not describe a machine"):
        assert _run(tmp_path).limits == {} and html.environment(tmp_path) is None
    monkeypatch.setattr(machine, "probe", lambda: again)
    with pytest.warns(KitWarning, match="measured again"):
        assert machine.of_run(tmp_path) == again
    assert machine.kept(tmp_path) == again and _run(tmp_path).limits["read_gbps"] == again.read_gbps
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "written whole"


@pytest.mark.parametrize("field", ["read_gbps", "cores", "id", "samples", "gpu"])
@pytest.mark.parametrize("value", ["x", [1], 1e999, {"read_gbps": "x"}, True])
def test_a_machine_is_checked_field_by_field(field, value):
    row = asdict(MACHINE) | {field: value}
    if (field, value) in (("id", "x"), ("gpu", {"read_gbps": "x"})):
        return
    with pytest.raises(ValueError, match=field):
        sound.row_of(machine.Machine, row)


@dataclass
class Part:
    size: int


@dataclass
class Row:
    """Of every kind of annotation that a row has."""

    needed: int
    also: float
    default: str = "a"
    made: list[int] = field(default_factory=list)
    many: tuple[float, ...] = ()
    named: dict[str, int] = field(default_factory=dict)
    maybe: Path | None = None
    flag: bool = False
    part: Part | None = None


WHOLE = {"needed": 3, "also": 2}


@pytest.mark.parametrize("more, name, value", [
    ({}, "made", []), ({"also": 2}, "also", 2.0), ({"needed": 3.0}, "needed", 3), ({"made": [1, 2]}, "made", [1, 2]),
    ({"many": [1, 2.5]}, "many", (1.0, 2.5)), ({"named": {"a": 1}}, "named", {"a": 1}),
    ({"maybe": "a/b"}, "maybe", Path("a/b")),
    ({"maybe": None}, "maybe", None), ({"flag": True}, "flag", True), ({"part": Part(1)}, "part", Part(1)),
    ({"also": sys.float_info.max}, "also", sys.float_info.max),
])  # fmt: skip
def test_a_row_has_each_field_by_its_kind(more, name, value):
    found = getattr(sound.row_of(Row, WHOLE | more), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("row, says", [
    ([], "list in place of an object"), (WHOLE | {"strange": 1}, "no field is named 'strange'"),
    ({"also": 2}, "needed is missing"),
    ({"needed": 3}, "also is missing"), (WHOLE | {"needed": 3.5}, "needed is 3.5"),
    (WHOLE | {"needed": True}, "needed is True"),
    (WHOLE | {"also": math.nan}, "also is nan"), (WHOLE | {"also": -math.inf}, "also is -inf"),
    (WHOLE | {"default": 1}, "default"),
    (WHOLE | {"made": [1, "x"]}, "made is 'x'"), (WHOLE | {"many": {}}, "many"),
    (WHOLE | {"named": {"a": "x"}}, "named is 'x'"),
    (WHOLE | {"flag": 1}, "flag is 1"), (WHOLE | {"maybe": 1}, "maybe is 1"), (WHOLE | {"part": {"size": 1}}, "part"),
])  # fmt: skip
def test_a_field_that_is_wrong_is_named(row, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        sound.row_of(Row, row)


def test_a_run_s_state_is_checked_field_by_field(tmp_path):
    run = _run(tmp_path)
    run.save()
    assert runs.load(tmp_path) == run
    whole = (tmp_path / "run.json").read_text()
    for before, after in (('"planned": []', '"planned": 3'), ('"notebooks": {}', '"notebooks": {"08": {"status": 1}}'),
                          ('"texts": []', '"texts": [1]'), ('"started": "now"', '"started": null')):  # fmt: skip
        assert before in whole
        (tmp_path / "run.json").write_text(whole.replace(before, after))
        with pytest.raises(runs.ReportError, match="is not the state of a run"):
            runs.load(tmp_path)


def test_what_a_killed_process_kept_by_half_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    assert kept.take("torn", 1, lambda: "first") == "first"
    (path,) = tmp_path.iterdir()
    for data in (b"", path.read_bytes()[:-2]):
        path.write_bytes(data)
        kept._calls.clear()
        assert kept.take("torn", 1, lambda: "again") == "again"
    kept._calls.clear()
    assert kept.take("torn", 1, lambda: "third") == "again"
