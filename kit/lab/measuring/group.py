"""Processes under a limit of memory, with real swap beside it if asked: root on Linux alone."""

import os
import shutil
import subprocess
from pathlib import Path

from kit.errors import ReportError
from kit.system import group_root

# The guard makes swap file and group and takes them away when the pipe to its parent ends, which a killed parent does too.
_GUARD = """
set -eu
swap=$1 group=$2 bytes=$3
end() { # a process may join, or a dead one linger, until the group is gone
  set +e; tries=0
  until [ ! -d "$group" ] || rmdir "$group" || [ $((tries += 1)) -gt 300 ]; do
    kill -9 $(cat "$group/cgroup.procs"); sleep 0.1
  done 2>/dev/null
  [ "$bytes" = 0 ] || { swapoff "$swap"; rm -f "$swap"; }
}
trap end EXIT
umask 077
[ "$bytes" = 0 ] || { fallocate -l "$bytes" "$swap"; mkswap "$swap" >&2; swapon "$swap" >&2; }
mkdir "$group"; test -e "$group/$4"
echo ready
cat >/dev/null
"""
_TOOLS = ("fallocate", "mkswap", "swapon", "swapoff")


def missing_rights(swap: bool = True) -> list[str]:
    """What a memory limit, and ``swap`` beside it, needs and this process lacks."""
    lacks = {
        "the rights of root": not hasattr(os, "geteuid") or os.geteuid() != 0,
        "Linux with the memory controller of cgroup v1 or v2": group_root() is None,
        "the commands " + ", ".join(_TOOLS): swap and not all(map(shutil.which, _TOOLS)),
    }
    return [what for what, lacking in lacks.items() if lacking]


class Group:
    """Real swap of ``nbytes`` on a file in ``folder`` (0: none), and a group of processes under a memory limit, while the
    ``with`` lasts.

    ReportError says which right is missing, or what the system refused. Swap, group and file go however this process ends.
    """

    def __init__(self, folder: Path, nbytes: int):
        if lacks := missing_rights(nbytes > 0):
            raise ReportError(
                f"swap=true needs {'; '.join(lacks)}. Leave out -p swap=true: a file is then used instead of swap"
            )
        root, self._limit = group_root()
        self._folder = root / f"kit-pressure-{os.getpid()}"
        self._command = [str(Path(folder) / f"swap-{os.getpid()}"), str(self._folder), str(nbytes), self._limit]

    def __enter__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = ["sh", "-c", _GUARD, "guard", *self._command]
        self._guard = subprocess.Popen(command, text=True, start_new_session=True, **pipes)  # no Ctrl-C reaches the guard
        if self._guard.stdout.readline() != "ready\n":
            said = self._guard.communicate()[1].strip()
            raise ReportError(f"swap = true: {said[-300:]}; name a folder on ext4 or xfs with --out, or leave out swap=true")
        return self

    def __exit__(self, *_):
        self._guard.communicate()

    def run(self, command: list[str], limit: int | None = None, timeout: float = 300.0, **how) -> subprocess.CompletedProcess:
        """A command in the group, with so many bytes of memory (None: as many as there are); ``how``: of subprocess.run."""
        unlimited = "max" if self._limit == "memory.max" else "-1"
        (self._folder / self._limit).write_text(str(limit or unlimited))
        joined = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]
        try:
            return subprocess.run(joined, timeout=timeout, **how)
        except subprocess.TimeoutExpired:
            raise ReportError(f"swap = true: a way took more than {timeout:.0f} s under a limit of {limit} bytes") from None
