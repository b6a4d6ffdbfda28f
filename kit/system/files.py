"""Writing files that appear whole or not at all, and reading YAML."""

import errno
import glob
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import yaml

from kit.errors import GGUFError, KitError, ReportError
from kit.system import lock
from kit.units import format_bytes

MOST_READ = 256 << 20  # bytes of a text or table that is read whole
PATIENCE = 10  # seconds until somebody writes to a named pipe
_PIECE = 8 << 20  # bytes of a write: by such the page cache gets pages of 2 MiB, where the file system has them


@contextmanager
def replacing(
    path: Path, size: int = 0, error: type[KitError] = GGUFError, remedy: str = "", room: str = "write elsewhere"
) -> Iterator[BinaryIO]:
    """A new binary file that replaces ``path`` when the ``with`` body succeeds, and is deleted when it fails.

    ``size``: expected bytes, 0 if unknown. Raises ``error``, whose message ends with ``remedy``: what to do where ``path`` may
    not be written; or where the disk has too few bytes with ``room``. What a killed writer of ``path`` left is deleted.
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # what a link names, which stays a link
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"  # /dev/null would be a file for everybody then
        raise error(f"{path}: cannot be written: it is {what}, expected the name of a file")
    if path.is_symlink():
        raise error(f"{path}: cannot be written: it is a link that leads back to itself")
    if not path.parent.is_dir():
        raise error(f"{path}: cannot be written: there is no folder {path.parent}")
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        _delete_abandoned(path)
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise error(f"{path}: needs {format_bytes(size)}, but {path.parent} has {format_bytes(free)} free; {room}")
        with _made(partial):  # and locked until the new file is in place
            with partial.open("wb", buffering=_PIECE) as handle:
                yield handle
            os.replace(partial, path)
    except OSError as problem:
        raise error(f"{path}: cannot be written: {problem.strerror or problem}{helps(problem, remedy)}") from None
    finally:
        with suppress(OSError):  # a file system that is read-only says so of a file that was never made, in place of the reason
            partial.unlink()


def helps(problem: OSError, remedy: str) -> str:
    """The end of a message: ``remedy`` after a semicolon, and more space only where a disk is full."""
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"; {'free some space, or ' * full}{remedy}" if remedy else ""


def made(folder: Path, error: type[KitError], remedy: str) -> Path:
    """A folder that exists and may be written; ``error``, which ends with ``remedy``, where it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        raise error(f"{folder}: cannot be written: {problem.strerror}{helps(problem, remedy)}") from None
    return folder


def write_whole(path: Path, text: str) -> None:
    """Replace a text file in one step, or leave it as it was; ReportError says why (no rights, full disk) and what to do."""
    with replacing(path, error=ReportError, remedy="name another folder") as out:
        out.write(text.encode())


def _made(partial: Path) -> BinaryIO:
    """A new file, locked until it is closed or its process dies."""
    handle = partial.open("xb")
    lock(handle)
    if os.fstat(handle.fileno()).st_nlink:
        return handle
    handle.close()  # between its making and its lock it was taken for an abandoned one
    return _made(partial)


def _delete_abandoned(path: Path) -> None:
    """Delete the partial files of writers of ``path`` that were killed: nobody holds their locks."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(OSError), partial.open("r+b") as handle:
            if lock(handle, wait=False):
                partial.unlink()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """The ``with`` body has the folder of a run or sweep for itself; ReportError when another process has it.

    The lock is on the folder, not on a file in it: nothing is left in there, and a killed process leaves no lock.
    """
    handle = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # Windows opens no folder
            handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ReportError(f"cannot create the output folder {folder}: {error.strerror}; name another with --out") from None
    try:
        if handle is not None and lock(handle, wait=False) is False:
            raise ReportError(
                f"{folder}: another kit process is writing to this folder: wait for it, or name another with --out"
            )
        yield
    finally:
        if handle is not None:
            os.close(handle)


def check_writable(option: str, path: str | Path, error: type[KitError], endings: tuple[str, ...] = ()) -> None:
    """``error`` that names the ``option`` where no file ``path`` can be written, or where it ends with none of ``endings``
    ("png"), before anything is measured for it."""
    path = Path(path)
    if endings and path.suffix.lower().lstrip(".") not in endings:
        raise error(f"{option} {path}: end the name with {', '.join('.' + each for each in endings)}")
    if path.is_dir():
        raise error(f"{option} {path}: it is a folder, expected the name of a file")
    if not path.absolute().parent.is_dir():
        raise error(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise error(f"{option} {path}: may not be written")


def check_output(path: Path, inputs: Iterable[Path], error: type[KitError]) -> None:
    """``error`` when ``path`` is one of the ``inputs``, or is a link to it, or lies in it (an input may be a folder)."""
    path = Path(path)
    for source in map(Path, inputs):
        same = path.exists() and path.samefile(source)
        if same or (source.is_dir() and source.resolve() in path.resolve().parents):
            what = "is the input itself" if same else "is inside the input"
            raise error(f"{path}: {what}, {source}, and would overwrite it: write to another file")


def read_bytes(path: str | Path, error: type[KitError]) -> bytes:
    """All bytes of a file that a user names, or of standard input for "-". ``error`` for none, and for what has more than
    MOST_READ, such as a device without an end."""
    if str(path) == "-" and sys.stdin is None:
        raise error("standard input is closed: name a file, or pipe the text in")
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == "-" else _opened(path, error) as file:
            data = file.read(MOST_READ + 1)
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}") from None
    if len(data) > MOST_READ:
        raise error(f"{path}: has more than {format_bytes(MOST_READ)}, or no end: name a smaller file")
    return data


def _opened(path: str | Path, error: type[KitError]) -> BinaryIO:
    """The file, to be read. Opening a named pipe waits until somebody writes to it: ``error`` after PATIENCE."""
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb")
    with ThreadPoolExecutor(1) as beside:
        opening = beside.submit(open, path, "rb")
        try:
            return opening.result(PATIENCE)
        except TimeoutError:
            told = f"is a pipe that nobody writes to (waited {PATIENCE} s): name a file, or start what writes to it"
            raise error(f"{path}: {told}") from None
        finally:
            if not opening.done():
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # ends the waiting, or this process would not end
                opening.result().close()


def read_text(path: str | Path, error: type[KitError]) -> str:
    """A file's text, or standard input's for "-"; ``error`` names the place of what is not UTF-8."""
    try:
        return read_bytes(path, error).decode()
    except UnicodeDecodeError as problem:
        where = "standard input" if str(path) == "-" else path
        raise error(f"{where}: not UTF-8 at byte {problem.start}: convert the text first, for example with iconv") from None


def read_yaml(path: Path):
    """The content of a YAML file as plain data. ReportError names the file."""
    try:
        return yaml.safe_load(read_bytes(path, ReportError).decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or an impossible date
        raise ReportError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
