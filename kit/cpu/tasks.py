"""Tasks: functions of a number and named integers, as machine code that the thread pool calls, cached on disk.

Numba compiles a task once per machine. Later processes load the object code with LLVM alone, which takes a few milliseconds;
importing Numba takes half a second. So nothing here imports Numba before something must be compiled.
"""

import contextlib
import ctypes
import functools
import hashlib
import inspect
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import platformdirs

from kit.errors import KitError
from kit.system import lock
from kit.system.files import replacing

# Words of a step of kit.cpu.threads: the function's address, its number of tasks, the clock at their end, the arguments.
FUNCTION, TASKS, DONE_AT, ARGUMENTS = 0, 1, 2, 3
WORDS = 17  # arguments of a task

# Bytes of its work queue: a line that all threads read, a line for the tasks done, a line for each thread's run of tasks.
LINE, RUNS, STEP, GIVEN, AWAKE, DONE = 64, 0, 8, 24, 32, 64
NEXT, LIMIT, BASE = 0, 8, 16  # in a run's line

_DIGEST = hashlib.sha256().digest_size
_PATIENCE = 30.0  # seconds to wait for a kernel that another process compiles, which may have been stopped
_loaded: dict[str, "Task"] = {}  # by symbol
_lock = threading.Lock()  # of the engine


@dataclass(frozen=True)
class Static:
    """A constant for which a kernel is compiled, a string or a Format: its Numba type holds it, so ``generated`` can choose by
    it."""

    value: Any


class Task(int):
    """The address of a task's machine code. ``parameters``: the names of its arguments after its number."""

    def __new__(cls, address: int, parameters: tuple[str, ...]):
        self = super().__new__(cls, address)
        self.parameters, self._names = parameters, frozenset(parameters)
        return self

    def in_order(self, arguments: dict[str, Any]) -> list:
        """Arguments by name, in the order of the parameters; TypeError unless each is given."""
        if arguments.keys() != self._names:
            raise TypeError(f"a task of {', '.join(self.parameters)} was given {', '.join(arguments)}")
        return [arguments[name] for name in self.parameters]


# An argument of a task: an integer; or memory, whose address the task gets, and None for address 0. Memory is named itself,
# and ``address_of`` is the only place that takes its address: whoever keeps a step keeps what its addresses point to.
Argument = Any  # int | np.ndarray | torch.Tensor | None


class Each(NamedTuple):
    """An argument of several steps that are alike but for it: the number of each."""

    numbers: np.ndarray


Arguments = dict[str, Argument] | Sequence[Argument]  # by name, or up to WORDS in order
Step = tuple[Task, Arguments, int]  # what kit.cpu.threads runs: a task, its arguments and the number of tasks


def address_of(argument: Argument) -> int:
    """What a task gets for an argument."""
    if isinstance(argument, int):
        return argument
    if hasattr(argument, "data_ptr"):
        return argument.data_ptr()
    return 0 if argument is None else argument.ctypes.data if isinstance(argument, np.ndarray) else int(argument)


def task(build: Callable) -> Callable[..., Task]:
    """Decorates ``build(*constants)``, which returns a Python function ``f(task, *parameters)``: all int64, at most WORDS
    parameters. f returns nothing or an int64, and must not raise.

    A call of the result with the constants (strings, Formats, or Static) gives f as a Task for kit.cpu.threads. The code comes
    from the cache on disk if it has it; ``build`` gets each constant as a Static.
    """
    folder = Path(build.__code__.co_filename).parent

    @functools.cache
    def compiled(*constants) -> Task:
        values = [getattr(constant, "value", constant) for constant in constants]
        names = ".".join([build.__module__, build.__qualname__, *(getattr(value, "name", value) for value in values)])
        symbol = f"{names}-{_digest(repr(values), *_setting())[:16]}"
        if symbol not in _loaded:
            path, stamp = _place(folder) / f"{symbol}.o", source_stamp(folder).encode()
            kept = _read(path, stamp)
            if kept is None:
                with _one_process(path):
                    kept = _read(path, stamp)
                    if kept is None:
                        function = build(*map(Static, values))
                        kept = " ".join(_parameters(function)[1:]).encode() + b"\0" + _compile(function, symbol)
                        _keep(path, stamp, kept)
            names, _, code = kept.partition(b"\0")
            _load(symbol, code, tuple(names.decode().split()))
        return _loaded[symbol]

    return functools.wraps(build)(compiled)


def function(address: int, parameters: int) -> Callable[..., int]:
    """The task at an address as a Python function of ``parameters`` integers, including its number; it runs without the GIL."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * parameters)(address)


# ---- object code on disk: a digest of the sources and what follows, the names of the parameters, the code


@functools.cache
def source_stamp(folder: Path) -> str:
    """A digest of the sources from which a kernel in ``folder`` is compiled."""
    here = Path(__file__).parent
    sources = {path for place in (here, here / "simd", folder) for path in place.glob("*.py")}
    sources |= {here.parent / "gguf" / name for name in ("formats.py", "tile_coding.py")}
    return _digest(*(source.read_text("utf-8") for source in sorted(sources)))


@functools.cache
def _setting() -> tuple[str, ...]:
    """What object code depends on in addition to its source: Python, Numba, the CPU and its features."""
    return platform.python_version(), version("numba"), version("llvmlite"), llvm.get_host_cpu_name(), *sorted(features())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def features() -> frozenset[str]:
    """The CPU features for which Numba compiles: this CPU's, or those of NUMBA_CPU_FEATURES."""
    asked = os.environ.get("NUMBA_CPU_FEATURES")
    if asked is not None:
        return frozenset(name[1:] for name in asked.split(",") if name.startswith("+"))
    listed = frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    return listed | _of_arm() if platform.machine().lower() in ("aarch64", "arm64") else listed


_DOT = """declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @dot(<16 x i8> %a, <16 x i8> %b) {{
  %wide = {} <16 x i8> %a to <16 x i32>
  %other = sext <16 x i8> %b to <16 x i32>
  %product = mul <16 x i32> %wide, %other
  %sum = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %product)
  ret i32 %sum
}}"""


def _of_arm() -> set[str]:
    """Features that LLVM does not list but uses for an Arm CPU with this name, found from how it compiles dot products of
    bytes."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=name)
    code = {feature: machine.emit_assembly(llvm.parse_assembly(_DOT.format(widen))) for feature, widen in _DOTS.items()}
    return {"neon"} | {feature for feature, assembly in code.items() if "dot\t" in assembly}


_DOTS = {"dotprod": "sext", "i8mm": "zext"}  # of int8 and int8, of uint8 and int8


def _place(folder: Path) -> Path:
    """The folder for the object code of a folder's tasks: as in Numba's own cache, next to the source if it can be written."""
    own = os.environ.get("NUMBA_CACHE_DIR")
    beside = folder / "__pycache__"
    user = platformdirs.user_cache_path("gguf-kit") / "kernels"
    return Path(own) if own else beside if os.access(beside if beside.exists() else folder, os.W_OK) else user


def beside(name: str, *folders: Path) -> Path:
    """A file about the kernels of kit/cpu and of these folders, next to their code; its name changes when they must be
    recompiled."""
    here = Path(__file__).parent
    return _place(here) / f"{name}-{_digest(*map(source_stamp, folders or [here]), *_setting())[:16]}"


def _read(path: Path, stamp: bytes) -> bytes | None:
    """The cached code; None if there is none, or it is stale or damaged."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    code = kept[_DIGEST:]
    return code if kept[:_DIGEST] == hashlib.sha256(stamp + code).digest() else None


def _keep(path: Path, stamp: bytes, code: bytes) -> None:
    with contextlib.suppress(KitError, OSError):  # nowhere to write to: compile in each process
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(hashlib.sha256(stamp + code).digest() + code)


@contextlib.contextmanager
def _one_process(path: Path) -> Iterator[None]:
    """Wait until no other process makes ``path``, then hold its lock, which ends with the process. If the folder cannot be
    written or locked, do not wait."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, until = held.enter_context(path.with_suffix(".lock").open("ab")), time.monotonic() + _PATIENCE
            held.callback(_removed, handle)
            while os.fstat(handle.fileno()).st_nlink and lock(handle, wait=False) is False and time.monotonic() < until:
                time.sleep(0.005)
        yield


def _removed(handle) -> None:
    """Delete a lock file. A process that waits for the lock notices this, and finds the code instead."""
    with contextlib.suppress(OSError):
        os.unlink(handle.name)


# ---- object code in memory


@functools.cache
def _engine():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _load(symbol: str, code: bytes, parameters: tuple[str, ...]) -> None:
    with _lock:
        if symbol not in _loaded:  # another thread may have been first
            _engine().add_object_file(llvm.ObjectFileRef.from_data(code))
            _engine().finalize_object()
            _loaded[symbol] = Task(_engine().get_function_address(symbol), parameters)


def _compile(function: Callable, symbol: str) -> bytes:
    """Object code in which ``symbol`` is the function, called as in C."""
    from kit.cpu.numba_private import object_code

    return object_code(function, len(_parameters(function)), symbol)


def _parameters(function: Callable) -> list[str]:
    """The names of a task's number and of its other parameters."""
    names = list(inspect.signature(function).parameters)
    if (count := len(names) - 1) > WORDS:
        raise TypeError(f"{function.__qualname__}: a task takes its number and up to {WORDS} more parameters, not {count}")
    return names
