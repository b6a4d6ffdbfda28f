"""Pages of a mapped file that are lost in the middle of a read: a command says it in one line, instead of a silent SIGBUS.

The fault comes in any thread, in the middle of compiled code, where no Python can run. So its handler is three compiled
instructions that replace the process by this file as a script, which compares the files with what they were.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys

ends = False  # whether a lost page ends this process with a line: so in the kit's commands, not in another's program
_files: dict[str, tuple[int, int]] = {}  # path -> its size and time of change when it was opened
_kept = []  # what the handler points to


def watch(path, seen: tuple[int, int]) -> None:
    """Let a page of ``path`` that is lost end this process with one line and exit code 2, if ``ends``."""
    if not ends or _files.get(str(path)) == seen or not hasattr(signal, "SIGBUS") or faulthandler.is_enabled():
        return
    _files[str(path)] = seen
    if not _kept:
        _install()
    _kept.append(json.dumps(list(_files.items())).encode())
    _kept[0][4] = _kept[-1]


def _install() -> None:
    from llvmlite import binding, ir

    from kit.system.rows import libc

    words = [sys.executable.encode(), b"-S", b"-E", __file__.encode(), b"", None]
    variables = [b"=".join(pair) for pair in os.environb.items()]
    arguments = (ctypes.c_char_p * len(words))(*words)
    variables = (ctypes.c_char_p * (len(variables) + 1))(*variables, None)
    i32, i64 = ir.IntType(32), ir.IntType(64)
    module = ir.Module()
    module.triple = binding.get_default_triple()
    handler = ir.Function(module, ir.FunctionType(ir.VoidType(), [i32]), "lost")
    build = ir.IRBuilder(handler.append_basic_block())
    program = ctypes.create_string_buffer(words[0])
    for function, given in ((libc().execve, (program, arguments, variables)), (libc()._exit, (2,))):
        kind = ir.FunctionType(i32, [i64] * len(given))
        address = i64(ctypes.cast(function, ctypes.c_void_p).value)
        given = [i64(one if isinstance(one, int) else ctypes.addressof(one)) for one in given]
        build.call(build.inttoptr(address, kind.as_pointer()), given)
    build.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    _kept.extend([arguments, variables, program, engine])
    libc().signal(int(signal.SIGBUS), ctypes.c_void_p(engine.get_function_address("lost")))


def told(files: list) -> str:
    """The line about the first of [path, [size, time of change]] that is no longer so."""
    for path, (before, time) in files:
        try:
            now = os.stat(path)
        except OSError as error:
            return f"{path}: cannot be read any more: {error.strerror}"
        if now.st_size != before:
            return f"{path}: was changed from {before:,} to {now.st_size:,} bytes while it was open: open it again"
        if now.st_mtime_ns != time:
            return f"{path}: was changed in place while it was open: open it again"
    names = ", ".join(path for path, _ in files)
    return f"{names}: a page cannot be read: the disk or the network file system under it failed"


if __name__ == "__main__":
    os.write(2, f"kit: error: {told(json.loads(sys.argv[1]))}\n".encode(errors="replace"))
    sys.exit(2)
