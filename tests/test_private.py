"""Private parts of other packages: each is used by one module of the kit, and exists in the version that is installed."""

import ast
from collections import defaultdict
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import kit

PACKAGE = Path(kit.__file__).parent
PUBLIC = {"_asdict", "_field_defaults", "_fields", "_replace", "_exit", "_getframe"}  # documented, in spite of the underscore
# module of the kit, package, the version with which its parts were last checked -> module of the parts -> parts. Those that
# only an instance has are of no module and are covered by the tests of that module of the kit.
PARTS = {
    ("cpu/numba_private", "numba", "0.68.1"): {
        "numba.core.codegen": "CPUCodeLibrary._get_compiled_object CPUCodeLibrary._get_module_for_linking "
        "CPUCodeLibrary._optimize_functions CPUCodegen._function_pass_manager JITCPUCodegen._library_class",
        "numba.core.compiler": "DefaultPassBuilder.define_nopython_pipeline",
        "numba.core.compiler_machinery": "PassManager._ENFORCING",
        "": "CPUCodegen._data_layout CPUCodeLibrary._codegen CPUCodeLibrary._final_module CPUCodeLibrary._linking_libraries "
        "Dispatcher._cache FunctionCache._cache_file IndexDataCacheFile._source_stamp",
    },
    ("hf/private", "transformers", "5.23.0"): {
        "transformers": "PreTrainedModel._move_missing_keys_from_meta_to_device PreTrainedModel._initialize_missing_keys",
        "": "Parameter._is_hf_initialized",
    },
    ("hf/tokenizer", "transformers", "5.23.0"): {"": "PreTrainedTokenizer._added_tokens_encoder"},
    ("hf/stored", "torch", "2.13.0"): {
        "torch": "_C.DisableTorchFunctionSubclass Tensor._make_wrapper_subclass ops.aten._to_copy ops.aten.add.Tensor._schema",
        "torch.utils": "_pytree.tree_map_only",
    },
    ("lab/figures", "matplotlib", "3.11.2"): {"": "Axes._left_title"},
    ("lab/measuring/arithmetic", "torch", "2.13.0"): {"torch": "_int_mm"},
}
ROWS = [(*of, module, part) for of, modules in PARTS.items() for module, parts in modules.items() for part in parts.split()]


def private_names(text: str) -> set[str]:
    """Names with one underscore that a source asks of an object, or imports from another package."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "kit":
            names |= {name for alias in node.names for name in (*(node.module or "").split("."), alias.name)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def own_names(text: str) -> set[str]:
    """Names that a source defines: of functions, classes, variables, and attributes of self and its like."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if getattr(node.value, "id", "") in ("self", "cls", "policy"):  # policy: what Policy.__new__ makes
                names.add(node.attr)
    return names


def test_private_parts_of_others_stand_behind_one_module_each():
    texts = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    own = PUBLIC.union(*map(own_names, texts.values()))
    used = defaultdict(set)
    for module, text in texts.items():
        for name in private_names(text) - own:
            used[name].add(module)
    allowed = {part: module for module, *_, parts in ROWS for part in parts.split(".") if part.startswith("_")}
    assert {name: modules for name, modules in used.items() if modules != {allowed.get(name)}} == {}


@pytest.mark.parametrize("row", [row for row in ROWS if row[3]], ids=lambda row: row[4])
def test_a_private_part_is_still_there(row):
    _, package, checked, module, part = row
    pytest.importorskip(package)
    try:
        reduce(getattr, part.split("."), import_module(module))
    except AttributeError:
        pytest.fail(f"{module}.{part} was there in {package} {checked} and is not in {version(package)}")
