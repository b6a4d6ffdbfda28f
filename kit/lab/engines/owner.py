"""Who is behind a port of this machine: the process that runs the model, its file, threads, flags and cores."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from kit.errors import ServerError
from kit.lab.engines import said
from kit.lab.engines.server import ServerClient
from kit.system import processes

_MAGIC = b"GGUF"
_GPU = ("/dev/nvidia", "/dev/kfd", "/dev/dri")  # maps of a process that uses one
_HIDDEN = ("--api-key", "--hf-token", "-hft")  # flags whose values are not shown
_SLEEPY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # how the threads of OpenMP wait
_DRAFTS = ("-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf", "--spec-type")
_MODEL, _THREADS = ("-m", "--model"), ("-t", "--threads", "--num-threads")


class Owner(NamedTuple):
    """``process``: of the model, None where it was not found; ``others``: those of the same server. ``command``: its words,
    secrets left out. ``file``: as this process reaches it. ``mapped``: whether the model's process maps it. ``missing``: what
    could not be found, in words. ``gpu``: whether it uses one, which kit does not watch. ``sleepy``: what in its environment
    or its command makes its threads sleep when they wait for each other."""

    process: int | None
    others: tuple[int, ...] = ()
    command: tuple[str, ...] = ()
    file: Path | None = None
    mapped: bool = False
    missing: tuple[str, ...] = ()
    gpu: bool = False
    sleepy: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Process ids of the server."""
        return ((self.process,) if self.process else ()) + self.others

    def flag(self, names: tuple[str, ...]) -> str:
        """The value of the last of these flags in the command; "" without."""
        value = ""
        for word, after in zip(self.command, [*self.command[1:], ""][: len(self.command)], strict=True):
            name, _, given = word.partition("=")
            if name in names:
                value = given or after
        return value

    @property
    def drafts(self) -> bool:
        """Whether it drafts by its command: several tokens share a pass."""
        return self.flag(_DRAFTS) not in ("", "none")

    @property
    def threads(self) -> int | None:
        """As the command says."""
        text = self.flag(_THREADS)
        return int(text) if text.isdigit() else None


def find(server: ServerClient, file: Path | None = None) -> Owner:
    """The owner of the server's port. ``file``: what the user named, in place of what the server says."""
    if not server.local:
        return Owner(None, file=file, missing=(f"{server.host} is another host, so this is measured from outside only",))
    listening, missing = _listening(server.port), []
    tree = [process for number in listening for process in _family(number)]
    tree = [process for process in tree if process.pid != os.getpid()]
    if (tree and not any([*_models(process.pid)] for process in tree)) or not tree:  # a proxy may listen for it
        said = _said(server)
        behind = [number for number in processes.mapping(str(said)) if number != os.getpid()] if said else []
        if behind:
            missing.append(
                "a model in the process that listens: it passes requests on, and kit watches the one that maps the file"
            )
            tree = [*_family(behind[0]), *tree]
    holds = [(process, held) for process in tree if (held := [*_models(process.pid)])]
    process, mapped = (holds[0][0], holds[0][1]) if holds else (None, [])
    if gone := next((each for each in mapped if each.deleted), None):
        raise ServerError(
            f"{server.url}: the file of process {process.pid}, {gone.path}, was deleted while it runs: restart the server"
        )
    if len(paths := {each.path for _, held in holds for each in held}) > 1 and file is None:
        said = _said(server)
        chosen = next((each for _, held in holds for each in held if said and each.path == str(said)), None)
        if chosen is None:
            raise ServerError(f"{server.url}: it maps {len(paths)} models ({', '.join(sorted(paths))}): name one as MODEL")
        process, mapped = next(each for each in holds if chosen in each[1])
        mapped = [chosen]
    if process is None and tree:  # nothing is mapped: the child that works, or the process itself
        process = max(tree, key=lambda each: _resident(each))
    command = _command(process) if process else ()
    if process is None:
        missing.append("the process behind the port (it belongs to another user or runs in another container)")
    found = Owner(process.pid if process else None, command=command)
    path = file or (processes.reaches(process.pid, mapped[0].path) if mapped else _named(server, process, found))
    if path is None or not path.exists():
        missing.append("the model's file" + f" ({path} is not on this machine)" * (path is not None))
        path = None
    gpu = process is not None and any(part.path.startswith(_GPU) for part in processes.maps(process.pid))
    if gpu:
        missing.append("what its GPU does, so the limit of this machine's memory is not its limit")
    if found.drafts:
        missing.append("the bytes of a token: it drafts, and the tokens of a pass share them, so they set no limit")
    others = tuple(each.pid for each in tree if process and each.pid != process.pid)
    sleepy = _sleepy(process, found) if process else ()
    return found._replace(others=others, file=path, mapped=bool(mapped), missing=tuple(missing), gpu=gpu, sleepy=sleepy)


def _listening(port: int) -> list[int]:
    with suppress(psutil.AccessDenied):
        rows = psutil.net_connections("tcp")
        return sorted({row.pid for row in rows if row.pid and row.status == psutil.CONN_LISTEN and row.laddr.port == port})
    return []


def _family(number: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(number)
        return [process, *process.children(recursive=True)]
    return []


def _models(number: int) -> Iterator[processes.Map]:
    """The maps of models' files: each file once."""
    seen = set()
    for part in processes.maps(number):
        if part.path.startswith("/") and part.size > 1 << 16 and part.path not in seen:
            seen.add(part.path)
            path = processes.reaches(number, part.path)
            if part.path.endswith(".gguf") if part.deleted else _is_model(path):
                yield part


def _is_model(path: Path) -> bool:
    with suppress(OSError):
        if path.is_file():
            with open(path, "rb") as file:
                return file.read(4) == _MAGIC
    return False


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _command(process: psutil.Process) -> tuple[str, ...]:
    words: list[str] = []
    with suppress(psutil.Error):
        for word in process.cmdline():
            name = word.partition("=")[0]
            words.append(
                "***" if words and words[-1] in _HIDDEN else f"{name}=***" if name in _HIDDEN and "=" in word else word
            )
    return tuple(words)


def _sleepy(process: psutil.Process, owner: Owner) -> tuple[str, ...]:
    """The variables of _SLEEPY that say so, and llama.cpp's --poll 0; no other variable of the process is looked at."""
    with suppress(psutil.Error):
        given = process.environ()
        if given.get("GOMP_SPINCOUNT", "0") != "0":  # then GNU's OpenMP spins, whatever the policy is
            given.pop("OMP_WAIT_POLICY", None)
        named = [f"{name}={given[name]}" for name in _SLEEPY if given.get(name, "").lower() in ("passive", "0")]
        return (*named, *["--poll 0"] * (owner.flag(("--poll",)) == "0"))
    return ()


def _said(server: ServerClient) -> Path | None:
    """The file that the server names: /props of llama.cpp, the FROM line of Ollama's /api/show."""
    if path := said.text(server.about.get("model_path")):
        return Path(path)
    if server.name == "Ollama":
        lines = str(server.get("/api/show", model=server.model).get("modelfile", "")).splitlines()
        path = next((line.partition(" ")[2].strip() for line in lines if line.startswith("FROM /")), "")
        return Path(path) if path else None
    return None


def _named(server: ServerClient, process: psutil.Process | None, owner: Owner) -> Path | None:
    path = _said(server) or (Path(text) if (text := owner.flag(_MODEL)) else None)
    if path is None or process is None:
        return path
    if not path.is_absolute():
        with suppress(psutil.Error):
            path = Path(process.cwd()) / path
    return processes.reaches(process.pid, os.path.normpath(path))
