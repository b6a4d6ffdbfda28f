"""What the kit needs of Numba that Numba does not promise: the object code of one function, and what makes a cache stale.

tests/test_private.py names the version with which each of these parts was last checked.
"""

from collections.abc import Callable

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import codegen, compiler, event, registry
from numba.core.compiler_lock import global_compiler_lock

from kit.lab.system import libc


def object_code(function: Callable, count: int, symbol: str) -> bytes:
    """Object code in which ``symbol`` is the function of ``count`` int64, called as in C. TypeError where the code needs an
    address or a symbol of this process."""
    llvm.initialize_native_asmparser()  # for instructions that LLVM is given as text
    with global_compiler_lock, event.trigger_event("numba:compile"):
        library = _library(function, count, symbol)
        library.enable_object_caching()
        optimize = library._optimize_final_module

        def optimize_and_hide():  # Numba's names of closures are unique in this process only; the object is loaded by others
            optimize()
            for other in library._final_module.functions:
                if not other.is_declaration and other.name != symbol:
                    other.linkage = "internal"

        library._optimize_final_module = optimize_and_hide
        library.finalize()
        foreign = [f.name for f in library._final_module.functions if f.is_declaration and not f.name.startswith("llvm.")]
        foreign = [name for name in foreign if not hasattr(libc(), name)]
        if foreign or library.has_dynamic_globals:
            raise TypeError(f"{symbol}: its code needs {', '.join(foreign) or 'an address'} of this process")
        return library._get_compiled_object()


def intermediate(function: Callable, count: int, symbol: str) -> str:
    """The same as LLVM's text, not optimized, for any CPU of 64 bits. Numba compiles nothing for this process from then on."""
    codegen.JITCodeLibrary._finalize_specific = lambda *_: None  # else LLVM selects instructions of this CPU
    codegen.JITCodeLibrary.get_pointer_to_function = lambda *_: 1
    codegen.JITCPUCodegen.set_env = lambda *_: None
    with global_compiler_lock:
        library = _library(function, count, symbol)
        for linked in library._linking_libraries:
            library._final_module.link_in(linked._get_module_for_linking(), preserve=True)
        return str(library._final_module)


def _library(function, count, symbol):
    """The library in which ``symbol`` calls the function as C does, not yet linked."""
    word, target, flags = ir.IntType(64), registry.cpu_target, compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    target.target_context.refresh()
    compiled = compiler.compile_extra(
        target.typing_context, target.target_context, function, (types.int64,) * count, None, flags, {}
    )
    library, context = compiled.library, compiled.target_context
    module = library.create_ir_module(symbol)
    entry = ir.Function(module, ir.FunctionType(word, [word] * count), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    native = context.declare_function(module, compiled.fndesc)
    arguments = compiled.fndesc.restype, compiled.fndesc.argtypes, entry.args
    _, result = context.call_conv.call_function(builder, native, *arguments)
    builder.ret(result if result.type == word else word(0))
    library.add_ir_module(module)
    return library


def set_source_stamp(dispatcher, stamp: str) -> None:
    """Code that Numba cached of the function with another stamp counts as stale."""
    dispatcher._cache._cache_file._source_stamp = stamp


def source_stamp_of(dispatcher) -> str:
    """The stamp that ``set_source_stamp`` gave."""
    return dispatcher._cache._cache_file._source_stamp
