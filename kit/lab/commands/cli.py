"""The `kit` command: gathers the commands of kit/lab/commands and turns every expected error into one line."""

import errno
import functools
import gc
import importlib
import pkgutil
import re
import sys
import warnings
from functools import partial

import click
from click.core import ParameterSource

from kit import __version__, tune_torch
from kit.errors import KitError, KitWarning, extra_for
from kit.lab import commands, interrupts
from kit.lab.completion import complete
from kit.units import printable

_LONGEST, _WORD = 2000, 300  # characters of a message, and from which on a word is shortened


class _Kit(click.Group):
    """A group whose commands raise KitError for what the user can fix; everything else is a bug and keeps its traceback."""

    def make_context(self, *args, **kwargs):
        tune_torch()
        for stream in (sys.stdout, sys.stderr):
            _show_all(stream)
        interrupts.install()
        return self._told(super().make_context, *args, **kwargs)

    def invoke(self, ctx):
        with warnings.catch_warnings():
            warnings.showwarning = partial(_shown, set(), warnings.showwarning)
            try:
                return self._told(super().invoke, ctx)
            finally:
                interrupts.over()

    def _told(self, function, *args, **kwargs):
        try:
            return interrupts.recognized(function, *args, **kwargs)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            path = " ".join(["kit", *error.ctx.command_path.split()[1:]]) if error.ctx else "kit"
            message = f"{error.format_message().rstrip('.')}: see {path} --help"
        except KeyboardInterrupt:
            interrupts.over()
            click.echo("kit: interrupted", err=True)
            sys.exit(interrupts.EXIT)
        except KitError as error:
            message = str(error)
        except ModuleNotFoundError as error:
            if (told := extra_for(error)) is error:
                raise
            message = str(told)
        except (OSError, MemoryError, ImportError, RuntimeError) as error:
            if getattr(error, "errno", None) == errno.EPIPE:  # `kit ... | head`
                sys.exit(141)
            if isinstance(error, MemoryError) or _MEMORY.search(str(error)):
                message = _memory_ran_out(error)
            elif isinstance(error, OSError):
                message = f"{error.filename or 'input or output'}: {error.strerror or error}"
            else:
                raise
        finally:
            gc.freeze()  # or Python looks for garbage among all of torch before it ends: half a second
        click.echo(f"kit: error: {_line(message)}", err=True)
        sys.exit(2)


def _show_all(stream) -> None:
    """Let a terminal that lacks a letter show its number (backslash, u, digits): no text is lost, and nothing fails."""
    if getattr(stream, "errors", "") in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def _line(message: str) -> str:
    """One line that is harmless on a terminal, whatever a file's names and values put into it."""
    line = printable(re.sub(r"\s*\n\s*", " ", message))
    line = re.sub(rf"\S{{{_WORD},}}", lambda word: f"{word[0][:120]}...{word[0][-60:]}", line)  # what is said after it is seen
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _shown(already, otherwise, message, category, *where, **more):
    if not issubclass(category, KitWarning):
        otherwise(message, category, *where, **more)
    elif str(message) not in already:  # Python's own memory of them ends whenever a library changes the filters
        already.add(str(message))
        click.echo(f"kit: warning: {_line(str(message))}", err=True)


# what the system, torch and Python say when there is no memory, or no address of it (ulimit -v)
_MEMORY = re.compile(r"(can't|cannot) allocate memory|failed to map segment|can't start new thread", re.IGNORECASE)


def _memory_ran_out(error: Exception) -> str:
    said = (str(error).splitlines() or [type(error).__name__])[0][:200]
    try:
        from kit.system import memory_available
        from kit.units import format_bytes

        free = f"; {format_bytes(memory_available())} are free"
    except (ImportError, OSError, MemoryError):  # so little that not even that can be loaded
        free = ""
    return f"out of memory: {said}{free}: close other programs, or raise the limit (ulimit -v, a container's or a job's)"


@click.group(cls=_Kit, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kit")
def main():
    """Find out why a quantized language model is slow on your machine, how fast it could be, and what to change.

    \b
    kit doctor                          what this machine can do, and what is missing
    kit reproduce                       run all notebooks and write one offline report
    kit inspect model.gguf              what is in a file, and what fits in memory
    kit explain model.gguf              where a token's time goes, and what to change

    Public until 1.0, with changes in CHANGELOG.md: these commands, their options and exit codes, the names of kit.__all__, and
    the JSON of explain, inspect and experts (docs/public.md). Experimental: --device cuda (never timed on a GPU), macOS (never
    run) and Arm CPUs (only emulated).

    \b
    Exit code: 0 success; 1 the command ran and the answer is bad news (the help of each command
    says which); 2 error, with its reason in one line; 130 interrupted.
    """


def _ending_where_pages_are_lost(callback):
    """The command; it ends with one line where a file loses pages while it is read (kit.system.lost), and where a library has
    too few addresses (_Room)."""

    @functools.wraps(callback)
    def run(*args, **kwargs):
        _refuse_nothing(click.get_current_context())
        from kit.system import address_limit, lost

        lost.ends = True
        room = [_Room()] if address_limit() < _Room.LEAST else []
        sys.meta_path[:0] = room
        try:
            return callback(*args, **kwargs)
        finally:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in room]

    return run


MAY_BE_EMPTY = ("prompt", "system")  # texts; every other option that is empty was a variable that is not set


_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _refuse_nothing(ctx: click.Context) -> None:
    """UsageError for an argument or option of any command with nothing in it, or with NaN, which every range lets through."""
    for option in ctx.command.params:
        value, given = ctx.params.get(option.name), ctx.get_parameter_source(option.name)
        values = value if isinstance(value, tuple | list) else [value]
        name = option.opts[-1] if isinstance(option, click.Option) else option.metavar or option.name.upper()
        if given not in _GIVEN:
            continue
        if option.name not in MAY_BE_EMPTY and any(isinstance(each, str) and not each.strip() for each in values):
            raise click.UsageError(f"{name} is empty: give a value, or leave it out", ctx)
        if any(isinstance(each, float) and each != each for each in values):
            raise click.UsageError(f"{name} nan: give a number", ctx)


class _Room:
    """An import hook by which torch and llvmlite are a MemoryError. With fewer addresses than LEAST either may end the process
    (std::bad_alloc) or say that its file is missing."""

    LEAST = 800 << 20  # bytes: kit doctor ends in one line or works with more

    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "llvmlite") and name not in sys.modules:
            raise MemoryError(f"{name} and what it loads need {self.LEAST >> 20} MiB of address space")


def _guarded(command: click.Command) -> click.Command:
    """The command, and those of a group, with what every command checks."""
    for below in getattr(command, "commands", {}).values():
        _guarded(below)
    command.callback = command.callback and _ending_where_pages_are_lost(command.callback)
    return command


for _name in sorted({module.name for module in pkgutil.iter_modules(commands.__path__)} - {"cli"}):
    main.add_command(_guarded(importlib.import_module(f"kit.lab.commands.{_name}").command))
complete(main)
