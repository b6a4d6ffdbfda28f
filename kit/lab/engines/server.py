"""A client of a running server: llama-server, Ollama, or any that speaks OpenAI's protocol, by the URL that the user typed.

Requests go to that URL and nowhere else: no redirect is followed and no proxy of the environment is used. A key comes from the
environment (KIT_SERVER_KEY), goes to that host alone, and is written nowhere.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from urllib.parse import urlsplit

import httpx2 as httpx
import psutil

from kit.errors import ServerError
from kit.gguf.foreign import hub_name
from kit.lab.engines import said
from kit.lab.engines.meter import Received, Report
from kit.lab.engines.protocols import PROTOCOLS, Asked, Protocol, event_of
from kit.units import from_json

KEY = "KIT_SERVER_KEY"
_CONNECT, _ANSWER = 5.0, 300.0  # seconds to wait for a connection, and for the next piece of an answer
_SHORT = 10.0  # for the questions that no model works on
TEXT = "A large language model on a small computer answers slowly, because every token reads all of its weights once. "
_PATHS = (*(each.path for each in PROTOCOLS), *(each.found_by[0] for each in PROTOCOLS), "/v1/chat/completions", "/v1", "/api")
_LOCAL = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::")


def is_server(text: str) -> bool:
    """Whether a text is the URL of a server, and not of a file: its path names no file, and the Hub has files alone.
    ServerError for what is no URL."""
    if not text.startswith(("http://", "https://")) or hub_name(text).startswith("hf://"):
        return False
    try:
        parts = urlsplit(text)
    except ValueError as error:  # http://[::1
        raise ServerError(f"{text}: is no URL: {error}") from None
    file = "." in parts.path.rpartition("/")[2] or parts.query
    return not file and parts.hostname not in ("huggingface.co", "hf.co", "www.huggingface.co")


class ServerClient:
    """A running server. ServerError in one line where nothing listens, or it is of another kind.

    ``model``: the name of one of its models; not needed where it has one. ``tokenizer``: of the file that it runs, once that is
    known: it counts what is received.
    """

    def __init__(self, url: str, model: str = ""):
        parts = urlsplit(url)
        try:
            self.host, self.port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ServerError(f"{url}: {error}: give http://host:port") from None
        if parts.username or parts.password or parts.query:
            raise ServerError(f"{self.host}: leave name, password and query out of the URL; a key goes into {KEY}")
        path = parts.path.rstrip("/")
        known = next((each for each in _PATHS if path.endswith(each)), "")
        self.url = f"{parts.scheme}://{parts.netloc}{path.removesuffix(known)}"
        self.tokenizer, self._prompts = None, 0
        key = os.environ.get(KEY)
        headers, self._keyed = ({"Authorization": f"Bearer {key}"} if key else {}), bool(key)
        timeout = httpx.Timeout(_ANSWER, connect=_CONNECT)
        # no connection is used again: a server may have closed it
        once = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(headers=headers, timeout=timeout, trust_env=False, follow_redirects=False, limits=once)
        try:
            self.protocol, self.about = self._recognize()
            self.model = self._choose(model)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def local(self) -> bool:
        """Whether it runs on this machine, as far as its name tells: an address of its own network is this machine too."""
        own = (each.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for each in rows)
        return self.host in {*_LOCAL, socket.gethostname(), *own}

    @property
    def name(self) -> str:
        """Of the engine."""
        return self.protocol.name

    @property
    def version(self) -> str:
        """As the server tells it."""
        return str(self.about.get("build_info") or self.about.get("version") or "")

    def get(self, path: str, **body) -> dict:
        """The JSON of a short question, a POST where it has a ``body``; {} where the server has no answer to it."""
        try:
            method = "POST" if body else "GET"
            answer = self._client.request(method, f"{self.url}{path}", json=body or None, timeout=_SHORT)
            return said.part(answer.json()) if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def _recognize(self) -> tuple[Protocol, dict]:
        refused = ""
        for protocol in PROTOCOLS:
            path, key = protocol.found_by
            try:
                answer = self._client.get(f"{self.url}{path}", timeout=_SHORT)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise ServerError(f"{self.url}: {self._unanswered(error)}") from None
            if answer.status_code in (401, 403):
                told = f"refuses the key of {KEY}" if self._keyed else f"wants a key; set {KEY}"
                raise ServerError(f"{self.url}: the server {told} ({answer.status_code})")
            if answer.is_redirect:
                refused = f"; it redirects to {answer.headers.get('location', 'another place')}: give that URL if you trust it"
            if answer.status_code == 503 and protocol is PROTOCOLS[0]:
                raise ServerError(f"{self.url}: the server is loading its model; ask again when it has")
            try:
                about = said.part(answer.json()) if answer.status_code == 200 else {}
            except ValueError:
                continue
            if key in about:
                return protocol, about
        kinds = "llama-server, Ollama or an OpenAI-compatible server"
        raise ServerError(f"{self.url}: a server of another kind, not {kinds}{refused}")

    def _unanswered(self, error: Exception) -> str:
        """Why no answer of HTTP came, and what to do."""
        told = " ".join(str(error).split()) or type(error).__name__
        if "ssl" in told.lower():
            return f"no answer of HTTPS ({told}): is it {self.url.replace('https', 'http', 1)}?"
        if isinstance(error, httpx.ConnectError):
            return "nothing listens there; start the server, or correct host and port"
        return f"no answer of HTTP ({told}): is it the port of the model's server?"

    @cached_property
    def loaded(self) -> list[dict]:
        """The models that Ollama holds in memory (/api/ps)."""
        return said.rows(self.get("/api/ps").get("models"))

    @property
    def context(self) -> int:
        """Positions of a slot, as the server tells them; 0: it does not."""
        own = said.count(said.part(self.about.get("default_generation_settings")).get("n_ctx"))
        running = (row.get("context_length") for row in self.loaded if row.get("name") == self.model)
        return own or said.count(next(running, 0)) or 0

    def _choose(self, wanted: str) -> str:
        listed = [str(row.get("id")) for row in said.rows(self.get("/v1/models").get("data"))]
        running = [str(row.get("name") or row.get("model")) for row in self.loaded] if self.name == "Ollama" else listed
        if wanted:
            known = [name for name in dict.fromkeys(running + listed) if name in (wanted, f"{wanted}:latest")]
            if not known and (running or listed):
                raise ServerError(f"{self.url}: has no model {wanted!r}; it has {', '.join((running or listed)[:8])}")
            return (known or [wanted])[0]
        if len(running) > 1:
            names = ", ".join(running[:8])
            raise ServerError(f"{self.url}: {len(running)} models are loaded ({names}): name one, --served {running[0]}")
        if not running and len(listed) != 1 and self.name == "Ollama":
            have = f"; it has {', '.join(listed[:8])}: name one, --served {listed[0]}" if listed else ""
            raise ServerError(f"{self.url}: no model is loaded{have}")
        return (running or listed or [""])[0]

    def prompt(self, positions: int) -> list[int]:
        """Token ids of a text of so many positions, which no earlier prompt begins like; [] where no tokenizer is known."""
        self._prompts += 1
        return self.tokenizer.encode(self._text(positions // 8 + 2))[:positions] if self.tokenizer else []

    def _text(self, sentences: int) -> str:
        return f"{self._prompts * 7919 % 9973} " + TEXT * sentences

    def ask(self, prompt: list[int], tokens: int, cached: bool = True, positions: int = 0,
            at_first: Callable[[], object] = bool, at_end: Callable[[], object] = bool) -> Received:  # fmt: skip
        """Stream an answer. ``prompt``: token ids; where no tokenizer is known a text of about so many ``positions`` is sent,
        that of the last ``prompt``. ``at_first``: called when the first piece has come, ``at_end`` when the last one has. A
        broken connection is part of what is received, no exception."""
        if self.tokenizer:
            written = self.tokenizer.decode(prompt, special=True)
        else:
            written = self._text(positions // 16 + 1)[: 5 * positions]
        asked = Asked(tuple(prompt), written, tokens, self.model, cached)
        body = self.protocol.body(asked)
        if not prompt and self.protocol.takes_ids:
            body["prompt"] = written
        start, arrivals, texts, ids, raw = time.perf_counter(), [], [], [], []
        status, ended, stop, error, report = 0, False, "", "", Report()
        try:
            with self._client.stream("POST", f"{self.url}{self.protocol.path}", json=body) as answer:
                status = answer.status_code
                if status != 200:
                    raw.append(answer.read())
                    error = _told(raw[0])
                for at, line in _lines(answer) if status == 200 else ():
                    raw.append(line + b"\n")
                    if (event := event_of(line.decode("utf-8", "replace"))) is None:
                        continue
                    piece = self.protocol.piece(event)
                    if piece.text or piece.ids:
                        arrivals.append(at - start)
                        texts.append(piece.text)
                        ids += piece.ids
                        if len(arrivals) == 1:
                            at_first()
                    ended, stop = ended or piece.ended, piece.stop or stop
                    error, report = piece.error or error, piece.report or report
        except (httpx.HTTPError, ValueError) as problem:
            error = error or ("" if arrivals else " ".join(str(problem).split()) or type(problem).__name__)
        seconds = time.perf_counter() - start
        at_end()
        written = "".join(texts)
        received = self._count(written, ids, report.predicted or len(arrivals))
        counts = tuple(arrivals), received, written, tuple(ids)
        return Received(tokens, seconds, status, b"".join(raw), *counts, ended, stop, error, report)

    def _count(self, text: str, ids: list[int], otherwise: int = 0) -> int:
        """Tokens received: the ids that came, if they are that text, else the text's tokens by the file's own tokenizer. These
        are no more than the ids: bytes that are no text became several tokens each. Without a tokenizer as many as the
        server says, or pieces: ``otherwise``."""
        if self.tokenizer is None:
            return len(ids) or (otherwise if text else 0)
        if ids and self.tokenizer.decode(ids).strip("\ufffd") == text.strip("\ufffd"):
            return len(ids)
        counted = len(self.tokenizer.encode(text, special=False, ends=False)) if text else 0
        return min(counted, len(ids) or counted)


def _lines(answer: httpx.Response) -> Iterator[tuple[float, bytes]]:
    """When each line came, and the line. Those that come together have one time, whatever is done with the first."""
    rest = b""
    for data in answer.iter_bytes():
        at = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        yield from ((at, line.rstrip(b"\r")) for line in lines)
    if rest:
        yield time.perf_counter(), rest


def _told(body: bytes) -> str:
    """The message of an error's body, in one line."""
    try:
        answer = from_json(body)
        told = answer.get("error", answer) if isinstance(answer, dict) else answer
        return " ".join(str(told.get("message", told) if isinstance(told, dict) else told).split())[:300]
    except ValueError:
        return " ".join(body.decode("utf-8", "replace").split())[:120]
