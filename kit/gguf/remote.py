"""The header of a model on a web server, read by range requests: a file is described before anybody downloads it.

``hf://owner/repo/file.gguf`` is asked of the Hub by huggingface_hub's rules, with the user's token; any other URL without one.
httpx2 leaves the token out when another host is asked (a redirect to a store of files).
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from kit.errors import GGUFError
from kit.gguf import checks, foreign, reader
from kit.gguf.hub import cached, hub_error, of_hub
from kit.gguf.parts import part_names
from kit.gguf.reachable import reachable

_PIECES = (1 << 20, 8 << 20, 64 << 20, 256 << 20)  # bytes from the start that are tried in turn, until the header is whole
_NEAR = 1 << 16  # an error in so many bytes before the end of what was read may come from what was not
_SECONDS, _REDIRECTS = 30.0, 5
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Part(NamedTuple):
    """One file on a server: its ``url``, the ``name`` of the file and the headers of a request for it."""

    url: str
    name: str
    headers: dict[str, str]


class RemoteFile(reader.GGUFFile):
    """A model of which only the headers are here. ``source``: its URL. Reading a tensor is a GGUFError."""

    def __init__(self, source: str, paths: list[Path], parts: list):
        super().__init__(paths, parts, "small")
        self.source = source

    def raw(self, name: str):
        """GGUFError: nothing but the header was read."""
        raise GGUFError(f"{self.source}: tensor {name!r} was not downloaded, only the header: {download(self.source)}")

    def blocks(self, name: str):
        """As ``raw``."""
        return self.raw(name)


def download(source: str) -> str:
    """How to get the whole file, for messages."""
    return f"kit fetch {source} downloads it" if source.startswith("hf://") else "download it, then name the file"


def is_remote(name: str) -> bool:
    """Whether a model's name is a URL, or one of the Hub whose file is not in the cache."""
    source = foreign.hub_name(str(name))
    if source.startswith("hf://"):
        from huggingface_hub import constants

        return cached(source) is None and not constants.HF_HUB_OFFLINE
    return source.startswith(("http://", "https://"))


def opened(name: str) -> reader.GGUFFile:
    """The model of a name: by its header alone where it is on a server, else as kit.open does."""
    return open_header(name) if is_remote(name) else reader.open(foreign.hub_name(str(name)))


def open_header(name: str) -> RemoteFile:
    """The model of a URL by its header; all parts of a split one. GGUFError in one line for a server that does not answer, does
    not know the file, wants a login, gives no ranges, or cuts its answer."""
    source = foreign.hub_name(str(name))
    if remedy := foreign.page(source):
        raise GGUFError(f"{source}: {remedy}")
    try:
        urlsplit(source)
    except ValueError as error:
        raise GGUFError(f"{source}: is no URL: {error}") from None
    with tempfile.TemporaryDirectory(prefix="kit-header-") as folder:
        parts = [_header(_shown(source), part, Path(folder, str(number)), number) for number, part in enumerate(_parts(source))]
    paths = [Path(part.name) for part in _parts(source)]
    checks.check_split(paths, parts)
    return RemoteFile(_shown(source), paths, parts)


def _parts(source: str) -> list[Part]:
    if source.startswith("hf://"):
        from huggingface_hub import get_token, hf_hub_url

        repo, revision, names = of_hub(source)
        try:
            urls = [hf_hub_url(repo, name, revision=revision) for name in names]
        except ValueError as error:  # an invalid repository or file name
            raise GGUFError(f"{source}: {' '.join(str(error).split())}") from None
        token = get_token()  # HF_TOKEN, or of `hf auth login`
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return [Part(url, name.rpartition("/")[2], headers) for url, name in zip(urls, names, strict=True)]
    pieces = urlsplit(source)
    folder, _, last = pieces.path.rpartition("/")
    names = part_names(last) if last.endswith(".gguf") else [last]
    return [Part(urlunsplit(pieces._replace(path=f"{folder}/{name}")), unquote(name) or "model.gguf", {}) for name in names]


def _shown(source: str) -> str:
    """A URL without a password and without a signature."""
    if source.startswith("hf://"):
        return source
    pieces = urlsplit(source)
    return urlunsplit(pieces._replace(netloc=pieces.netloc.rpartition("@")[2], query="", fragment=""))


def _header(source: str, part: Part, path: Path, number: int):
    """The header of one file. It lies at the start of a sparse file of the whole file's size, which is mapped and then gone."""
    held = size = 0
    for piece in _PIECES:
        with path.open("ab") as out:
            data, size = _range(source, part, held, min(piece, size or piece), size)
            out.truncate(held)
            out.write(data)
            held += len(data)
            out.truncate(size)
        try:
            read = reader.read_part(path, number, "small")
            if read.end <= held:
                return read
            read.file.close()
        except GGUFError as error:
            if held == size or (error.offset is not None and error.offset < held - _NEAR):
                raise GGUFError(str(error).replace(str(path), f"{source} ({part.name})")) from None
        if held == size:
            break
    raise GGUFError(f"{source} ({part.name}): its header is longer than {_PIECES[-1]:,} bytes: {download(source)}")


def _range(source: str, part: Part, start: int, stop: int, size: int) -> tuple[bytes, int]:
    """(bytes ``start`` to ``stop`` of a file, its size); ``size``: that of an earlier answer, 0: not known yet."""
    if start >= stop:
        return b"", size
    with _asked(source, part, {"Range": f"bytes={start}-{stop - 1}"}) as answer:
        if answer.status_code != 206:
            raise GGUFError(
                f"{source}: the server does not give parts of a file (it answers {answer.status_code} to a range request): "
                f"{download(source)}"
            )
        told = answer.headers.get("Content-Range", "")
        match = _RANGE.fullmatch(told)
        if not match or int(match[1]) != start or (size and int(match[3]) != size) or int(match[2]) >= int(match[3]):
            raise GGUFError(f"{source}: the server answers with another part than was asked for ({told!r}): {download(source)}")
        wanted, data = min(stop, int(match[3])) - start, bytearray()
        for some in answer.iter_raw():
            data += some
            if len(data) > wanted:
                break
    if len(data) != wanted:
        how = "is cut short" if len(data) < wanted else "is longer than announced"
        raise GGUFError(f"{source}: the server's answer {how}: {len(data):,} of {wanted:,} bytes; try again")
    return bytes(data), int(match[3])


@contextmanager
def _asked(source: str, part: Part, headers: dict[str, str]) -> Iterator:
    """The answer to a request, open to be read; GGUFError for what a server or the way to it does wrong."""
    import httpx2
    from huggingface_hub import errors
    from huggingface_hub.utils import hf_raise_for_status

    problems = {  # the first class that fits
        httpx2.TooManyRedirects: f"the server redirects more than {_REDIRECTS} times: its redirects may be a loop",
        httpx2.UnsupportedProtocol: "the server redirects to what is no web address",
        httpx2.TimeoutException: f"the server does not answer within {_SECONDS:.0f} s",
        httpx2.RemoteProtocolError: "the server's answer is cut short, or is no HTTP; try again",
        httpx2.ConnectError: "the server cannot be reached",
    }
    hub = source.startswith("hf://")
    if not reachable(part.url):
        raise GGUFError(f"{source}: {problems[httpx2.ConnectError]}")
    try:
        with httpx2.Client(follow_redirects=True, max_redirects=_REDIRECTS, timeout=_SECONDS) as client:
            request = part.headers | headers | {"Accept-Encoding": "identity"}
            with client.stream("GET", part.url, headers=request) as answer:
                if hub:
                    hf_raise_for_status(answer)
                elif answer.status_code >= 400:
                    wants = "; it wants a login, which kit has none for" * (answer.status_code in (401, 403))
                    raise GGUFError(f"{source}: the server answers {answer.status_code} {answer.reason_phrase}{wants}")
                yield answer
    except errors.HfHubHTTPError as error:
        repo, revision, _ = of_hub(source)
        raise hub_error(error, source, repo, part.name, revision) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        known = next((text for kind, text in problems.items() if isinstance(error, kind)), None)
        raise GGUFError(f"{source}: {known or ' '.join(str(error).split())}") from None
