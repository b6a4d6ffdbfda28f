"""The house: data flows one way. No room imports from a room above it, no file from a file that imports it."""

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import mutants
import pytest

import kit

PACKAGE = Path(kit.__file__).parent
LIBRARY = tuple("errors units products shown system trace gguf cpu cuda quants cache model codec hf".split())
LABORATORY = tuple(  # rooms of kit.lab from the ground up; "": its loose modules
    ["synthetic", "on_device", "", *"measuring engines predicting explaining drafts claims findings report commands".split()]
)
ROOMS = (*LIBRARY, *(f"lab.{room}".rstrip(".") for room in LABORATORY), "__init__", "__main__")


def modules() -> dict[str, Path]:
    """Dotted name below ``kit`` -> file; a package is its own name, the top ``__init__``."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree: five tests read each."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(name: str, path: Path, known) -> set[str]:
    """The modules of the kit that a file imports, at its top or lazily in a function."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] or "__init__" for alias in node.names if alias.name.split(".")[0] == "kit"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kit":
            base = node.module.partition(".")[2]
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in known else base or "__init__")
    return found - {name}


def level(name: str) -> int:
    """The place of a module's room from the ground up; the laboratory stands on the whole library."""
    room = ".".join(name.split(".")[:2]) if name.startswith("lab.") else name.split(".")[0]
    return ROOMS.index(room if room in ROOMS else "lab")


def test_no_room_imports_from_above():
    known = modules()
    upward = {
        (name, target)
        for name, path in known.items()
        for target in imports(name, path, known)
        if target != "__init__" and level(target) > level(name)
    }
    assert not upward


def test_the_library_never_mentions_the_laboratory():
    """Neither by an import nor by a name in a text, but for the public names of kit/__init__."""
    library = [path for name, path in modules().items() if name.split(".")[0] in LIBRARY]
    assert len(library) > 100
    assert not [path for path in library if re.search(r"\bkit[./]lab\b", path.read_text(encoding="utf-8"))]


def test_no_file_imports_itself_by_a_detour():
    known = modules()
    graph = {name: imports(name, path, known) - {"__init__"} for name, path in known.items() if name != "__init__"}
    list(TopologicalSorter(graph).static_order())  # CycleError names the circle


@pytest.mark.parametrize(
    "room, door", [("lab.report.sweep", "lab.commands.sweep"), ("lab.report.merge", "lab.commands.report")]
)
def test_what_runs_in_batches_has_one_door(room, door):
    """Sweeps, and what merges and packs runs, can go into a package of their own: their command alone knows them."""
    known = modules()
    others = [name for name in known if not f"{name}.".startswith(f"{room}.")]
    assert {name for name in others for each in imports(name, known[name], known) if f"{each}.".startswith(f"{room}.")} == {
        door
    }


def test_the_package_has_few_rooms():
    rooms = {path.stem for path in PACKAGE.iterdir()} - {"__pycache__", "py", "__init__", "__main__"}
    assert rooms == {*LIBRARY, "lab"}


def test_a_module_has_a_name_of_its_own():
    """Names of the crowd: each once was four modules."""
    homes = [name for name in modules() if name.split(".")[-1] in ("experts", "device")]
    assert sorted(homes) == ["cuda.device", "lab.commands.experts"]


@pytest.mark.parametrize("module", mutants.TESTS)
def test_a_module_that_is_mutated_has_tests_that_import_it(module):
    """The mutants of quants ran against the tests of another page, so every one would have survived."""
    assert find_spec(module)
    paths = {test.partition("::")[0] for test in mutants.TESTS[module]}
    texts = [(PACKAGE.parent / path).read_text(encoding="utf-8") for path in paths]
    leaf = module.rpartition(".")[2]
    assert any(re.search(rf"(?m)^(from|import) .*\b{leaf}\b|kit\.{leaf}\(", text) for text in texts)


def test_a_mutant_that_is_explained_is_of_a_line_that_is_there():
    for (module, start), why in mutants.ALIKE.items():
        lines = Path(find_spec(module).origin).read_text(encoding="utf-8").splitlines()
        assert len({line for line in map(str.strip, lines) if line.startswith(start)}) == 1 and why, start


def test_a_class_has_a_name_of_its_own():
    """Over all rooms: who reads a name knows which class it is."""
    homes = defaultdict(set)
    for name, path in modules().items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


# What the rest of the kit may call of the compiled code, by module. A name goes in only when another goes out.
DOORS = {
    "cpu": """
        attention: attend fits
        buffers: ARENA
        choice: attend_chosen choose
        history: History
        linear: Activations FEWEST Product in_pieces linear rounds_alike
        norm: rms_norm
        operations: Recording run
        peak: ways
        shapes: Choice LARGEST state_shape
        simd: available describe using
        strategies: strategies
        simd.vectors: jit
        tasks: beside
        threads: torch_alone
        tiles: count encode finish normalize
    """,
    "cuda": """
        device: DEVICE pinned require
        linear: apply pack_activations pack_norm
        tile_decoder: index launch
    """,
}
MOST = {"cpu": 30, "cuda": 8}


def calls_of(room: str) -> set[str]:
    """The names of a room that the rest of the kit imports, or takes from an imported module of it."""
    known, found = modules(), set()
    for name, path in known.items():
        if name.split(".")[0] in ("cpu", "cuda"):
            continue
        aliases = {}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and re.match(rf"kit\.{room}\b", node.module or ""):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}".removeprefix("kit.")
                    if full in known:
                        aliases[alias.asname or alias.name] = full
                    else:
                        found.add(full)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
                found.add(f"{aliases[node.value.id]}.{node.attr}")
    return {name.removeprefix(f"{room}.") for name in found}


@pytest.mark.parametrize("room", DOORS)
def test_compiled_code_has_a_narrow_door(room):
    lines = (line.split(":") for line in DOORS[room].strip().splitlines())
    door = {f"{module.strip()}.{name}" for module, names in lines for name in names.split()}
    called = calls_of(room)
    assert called - door == set(), "names of compiled code that the rest of the kit did not call before"
    assert len(door) <= MOST[room] and len(door & called) > 5
    vectors = {name for name in called if name.startswith("simd.")} - {"simd.vectors.jit"}
    assert {name.split(".")[-1] for name in vectors} <= {"available", "describe", "tier", "using"}, "primitives stay inside"
