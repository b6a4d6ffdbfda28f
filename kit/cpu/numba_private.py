"""Private parts of Numba that kit uses: the object code of one function, and what makes a cache stale.

tests/test_private.py names the version with which each part was last checked.
"""

from collections.abc import Callable
from contextlib import contextmanager
from functools import cached_property

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import compiler, event, registry, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import CPUDispatcher

from kit import no_collection
from kit.system.rows import libc


class _Part(JITCodeLibrary):
    """The code of a function that only kernels call: it is linked into each of them, and is not optimized or compiled
    separately.

    Its loops are unrolled and simplified. Without that a kernel takes up to 1.6 times as long (16-bit numbers of Q6_K).
    """

    def add_ir_module(self, ir_module):
        """As Numba's. What the module holds goes at once: a collection would take longer to find it."""
        super().add_ir_module(ir_module)
        for each in ir_module.globals.values():
            for block in getattr(each, "blocks", ()):
                block.instructions.clear()

    def _optimize_functions(self, ll_module):
        """As Numba's, but for declarations, which have no code."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def finalize(self):
        for function in self._final_module.functions:
            if not function.is_declaration:
                function.linkage = "linkonce_odr"  # other code may hold it, too
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0

    def _get_module_for_linking(self):
        """The module to link for code that Numba compiles otherwise, including everything that it calls."""
        while self._linking_libraries:
            self._final_module.link_in(self._linking_libraries.pop()._get_module_for_linking(), preserve=True)
        return self._final_module


class Inner(CPUDispatcher):
    """A function for kernels, without a wrapper for Python; a call from Python compiles a function that calls it."""

    def __call__(self, *args):
        return self._caller(*args)

    @cached_property
    def _caller(self):
        return njit(lambda *args: self(*args))


# Of Numba's 27 passes those without which a kernel's code would be another one. The others look at each function for
# closures, contexts, array expressions and what they may inline, of which kernels have none: a sixth of the time.
_PASSES = (
    untyped_passes.TranslateByteCode, untyped_passes.FixupArgs, untyped_passes.IRProcessing,
    untyped_passes.RewriteSemanticConstants, untyped_passes.DeadBranchPrune, untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA, untyped_passes.LiteralPropagationSubPipelinePass, typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis, typed_passes.IRLegalization, typed_passes.AnnotateTypes, typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)  # fmt: skip


class _Passes(PassManager):
    _ENFORCING = False  # lifetimes of variables after each pass, of which the last ones are asked for


def _pipeline(state, name="kernel"):
    manager = _Passes(name)
    for each in _PASSES:
        manager.add_pass(each, each.__name__)
    manager.finalize()
    return manager


@contextmanager
def _in_parts(context):
    """Within the ``with``, everything that Numba compiles becomes parts with the passes _PASSES, without wrappers for C."""
    codegen, builder, nothing = context.codegen(), compiler.DefaultPassBuilder, lambda *_: None
    codegen._library_class, codegen.set_env, context.create_cfunc_wrapper = _Part, nothing, nothing
    every, builder.define_nopython_pipeline = builder.define_nopython_pipeline, staticmethod(_pipeline)
    try:
        yield
    finally:
        del codegen._library_class, codegen.set_env, context.create_cfunc_wrapper
        builder.define_nopython_pipeline = staticmethod(every)


def object_code(function: Callable, count: int, symbol: str) -> bytes:
    """Object code in which ``symbol`` is the function of ``count`` int64 arguments, called as in C. TypeError if the code needs
    an address or a symbol of this process."""
    llvm.initialize_native_asmparser()  # for instructions that LLVM is given as text
    with global_compiler_lock, event.trigger_event("numba:compile"), no_collection():
        library = _library(function, count, symbol)
        library.finalize()
        foreign = [f.name for f in library._final_module.functions if f.is_declaration and not f.name.startswith("llvm.")]
        foreign = [name for name in foreign if not hasattr(libc(), name)]
        if foreign or library.has_dynamic_globals:
            raise TypeError(f"{symbol}: its code needs {', '.join(foreign) or 'an address'} of this process")
        return library._get_compiled_object()


def _library(function, count, symbol):
    """The library in which ``symbol`` calls the function as C does, including everything that it calls."""
    word, target, flags = ir.IntType(64), registry.cpu_target, compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    context = target.target_context
    context.refresh()
    library = context.codegen().create_library(symbol)
    library.enable_object_caching()
    with _in_parts(context):
        compiled = compiler.compile_extra(
            target.typing_context, context, function, (types.int64,) * count, None, flags, {}, library
        )
    module = library.create_ir_module(symbol)
    entry = ir.Function(module, ir.FunctionType(word, [word] * count), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    native = context.declare_function(module, compiled.fndesc)
    arguments = compiled.fndesc.restype, compiled.fndesc.argtypes, entry.args
    _, result = context.call_conv.call_function(builder, native, *arguments)
    builder.ret(result if result.type == word else word(0))
    library.add_ir_module(module)
    for other in _callers_first(library._linking_libraries):
        linked = other._final_module if isinstance(other, _Part) else other._get_module_for_linking()
        library._final_module.link_in(linked, preserve=True)
    library._linking_libraries.clear()
    for other in library._final_module.functions:  # Numba's names of closures are unique in this process only
        if not other.is_declaration and other.name != symbol:
            other.linkage = "internal"
    return library


def _callers_first(libraries) -> list:
    """These libraries and what they need, each after all that need it: what nobody calls yet is not linked."""
    found: dict = {}

    def find(library):
        for other in library._linking_libraries if isinstance(library, _Part) else ():
            if other not in found:
                find(other)
        found[library] = None

    for library in libraries:
        if library not in found:
            find(library)
    return [*reversed(found)]


def set_source_stamp(dispatcher, stamp: str) -> None:
    """Mark code of the function that Numba cached with another stamp as stale."""
    dispatcher._cache._cache_file._source_stamp = stamp
