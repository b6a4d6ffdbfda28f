"""One notebook in its own process. The parent is `kit.lab.report.runner`: it sends a job and listens to events.

Standard input carries the job, one line of JSON, and then stays open: when it ends, the parent is gone and so is this
process, and all that it has started. The events go, a line of JSON each, to the file descriptor in the argument:
``{"cell": n, "records": k}`` when cell n (from 1, in the executed notebook) starts and k records have been written,
``{"failed": reason}`` at the end if it failed.
"""

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill import PapermillExecutionError, execute_notebook
from traitlets.config import Config

from kit.system import note, python

LONGEST = 90  # bytes of the path of a kernel's sockets, without the number at its end: macOS takes 103, Linux 107


class _OwnKernel(AsyncKernelManager):
    """A kernel of this interpreter, whatever another installation calls python3 in JUPYTER_PATH or the user's folder."""

    kernel_spec = KernelSpec(
        argv=[*python.running("ipykernel_launcher"), "-f", "{connection_file}", "--IPKernelApp.ignore_cwd=True"],
        language="python",
    )


def main() -> None:
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    records = Path(job["records"])
    # No port, where a socket's path is not too long: one that is free may be another kernel's before this one takes it, and
    # then it dies at its start.
    place = str(Path(os.environ["KIT_READING"]).with_name("kernel"))
    sockets = {"transport": "ipc", "ip": place} if len(os.fsencode(place)) <= LONGEST else {}
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as events:

        def on_cell_start(cell, cell_index):
            count = len(records.read_bytes().splitlines()) if records.exists() else 0
            print(json.dumps({"cell": cell_index + 1, "records": count}), file=events)

        try:
            execute_notebook(
                _literal(job["source"]), _literal(job["output"]), job["parameters"], cwd=job["cwd"],
                kernel_name="python3", language="python", progress_bar=False, on_cell_start=on_cell_start,
                kernel_manager_class=_OwnKernel,
                shutdown_kernel="immediate",  # it has nothing left to write, and takes a second to take itself apart
                start_timeout=3600,  # papermill's minute is too short where a CPU is emulated; the parent's --timeout counts
                config=Config(ConnectionFileMixin=sockets),
            )  # fmt: skip
        except PapermillExecutionError as error:
            last_line = (error.evalue.strip().splitlines() or [""])[-1]
            print(json.dumps({"failed": f"{error.ename}: {last_line}".rstrip(": ")}), file=events)
        except DeadKernelError:
            reason = "the kernel died: killed from outside, out of memory, a lost page of a file, or a crash in native code"
            if tensor := note.read(Path(os.environ["KIT_READING"])):
                reason += f"; the last tensor that it read was {tensor}"
            print(json.dumps({"failed": reason}), file=events)
        except Exception as error:  # whatever stops papermill itself is this notebook's failure, not the run's
            print(json.dumps({"failed": f"{type(error).__name__}: {error}".splitlines()[0]}), file=events)


def _literal(path: str) -> str:
    """papermill formats paths with the parameters: braces in a folder's name must survive that."""
    return path.replace("{", "{{").replace("}", "}}")


def _die_with_parent() -> None:
    """The parent was killed: the kernel would notice, but not what its cells have started. Stopped, nothing starts more."""
    sys.stdin.read()
    stopped = set()
    while started := set(psutil.Process().children(recursive=True)) - stopped:
        for process in started:
            with suppress(psutil.Error):
                process.suspend()
        stopped |= started
    for process in stopped:
        with suppress(psutil.Error):
            process.kill()
    os._exit(1)


if __name__ == "__main__":
    main()
