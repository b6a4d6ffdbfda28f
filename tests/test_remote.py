"""A model's header by range requests, from a real server on this machine: with ranges, without, and with every fault."""

import re
import threading
from http.server import BaseHTTPRequestHandler

import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from served import Server
from test_gguf_reader import split_model

import kit
from kit.errors import GGUFError
from kit.gguf import remote
from kit.gguf.remote import is_remote, open_header
from kit.lab.commands.cli import main
from kit.lab.synthetic.write import synthesize


class Handler(BaseHTTPRequestHandler):
    """Serves ``files`` (path -> bytes) by ranges, or answers what the first part of the path says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        server.asked.append((self.path, dict(self.headers)))
        first, _, rest = path.lstrip("/").partition("/")
        if first in server.faults:
            return server.faults[first](self, rest)
        self.part(server.files.get(path))

    def part(self, data, cut=0, total=None, start=None, less=0):
        """The part that was asked for; ``cut``: bytes that are missing of what is announced; ``less``: of what is said to be
        the part, though the answer itself is whole."""
        if data is None:
            return self.plain(404, b"not found")
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        some = data[first : last + 1]
        self.send_response(206)
        shown = first if start is None else start
        self.send_header("Content-Range", f"bytes {shown}-{shown + len(some) - 1}/{total or len(data)}")
        some = some[: len(some) - less]
        self.send_header("Content-Length", str(len(some)))
        self.end_headers()
        self.wfile.write(some[: len(some) - cut])
        self.server.sent += len(some) - cut
        self.close_connection = bool(cut)

    def plain(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """A function that starts a server of ``files`` with ``faults``; ``url`` is its address."""
    running = []

    def start(files=(), **faults):
        server = Server(Handler)
        server.files, server.faults, server.asked, server.sent = dict(files), faults, [], 0
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("model") / "tiny-Q4_K_M.gguf", "tiny-llama")


def test_only_the_header_is_read(serve, model, monkeypatch):
    """By small pieces: as many as the header needs, and not the tensors behind it."""
    monkeypatch.setattr(remote, "_PIECES", (1 << 10, 1 << 12, 1 << 16))
    monkeypatch.setattr(remote, "_NEAR", 512)
    data = model.read_bytes() + bytes(1 << 20)
    server = serve({"/a%20b/tiny-Q4_K_M.gguf": data})
    with kit.open(model) as whole, open_header(f"{server.url}/a%20b/tiny-Q4_K_M.gguf?signature=secret") as file:
        assert file.tensors == whole.tensors and file.metadata.keys() == whole.metadata.keys()
        assert file.metadata["tokenizer.ggml.tokens"] == whole.metadata["tokenizer.ggml.tokens"]
        assert file.sizes == [len(data)] and server.sent <= 1 << 16 < whole.tensors["output.weight"].nbytes
        assert "secret" not in file.source and file.path.name == "tiny-Q4_K_M.gguf"
        assert len(server.asked) == 3 and all("signature=secret" in path for path, _ in server.asked)
        for read in (file.raw, file.blocks):
            with pytest.raises(GGUFError, match="was not downloaded, only the header: download it"):
                read("token_embd.weight")


def test_all_parts_of_a_split_model(serve, tmp_path):
    split_model(tmp_path, [["a"], ["b", "c"], []])
    server = serve({f"/x/{path.name}": path.read_bytes() for path in tmp_path.iterdir()})
    with open_header(f"{server.url}/x/m-00002-of-00003.gguf") as file:
        assert list(file.tensors) == ["a", "b", "c"] and file.tensors["c"].part == 1 and len(file.sizes) == 3
    del server.files["/x/m-00003-of-00003.gguf"]
    with pytest.raises(GGUFError, match="the server answers 404"):
        open_header(f"{server.url}/x/m-00001-of-00003.gguf")


def loop(handler, rest):
    handler.plain(302, Location=f"/loop/{len(rest)}{rest}")


FAULTS = {  # first part of a path -> (what the server does, what the error says)
    "whole": (lambda handler, _: handler.plain(200, bytes(1 << 12)), r"does not give parts of a file \(it answers 200"),
    "loop": (loop, "redirects more than 5 times: its redirects may be a loop"),
    "elsewhere": (
        lambda handler, _: handler.plain(302, Location="ftp://127.0.0.1/m.gguf"),
        "redirects to what is no web address",
    ),
    "cut": (lambda handler, _: handler.part(bytes(1 << 12), cut=100), "is cut short"),
    "less": (lambda handler, _: handler.part(bytes(1 << 12), less=100), "is cut short: 3,996 of 4,096 bytes"),
    "shifted": (lambda handler, _: handler.part(bytes(1 << 12), start=7), "with another part than was asked for"),
    "login": (lambda handler, _: handler.plain(401), "answers 401 Unauthorized; it wants a login"),
    "forbidden": (lambda handler, _: handler.plain(403), "answers 403 Forbidden; it wants a login"),
    "broken": (lambda handler, _: handler.plain(500), "answers 500 Internal Server Error"),
    "page": (lambda handler, _: handler.part(b"<!doctype html>" + bytes(1 << 18)), "a web page"),
    "short": (lambda handler, _: handler.part(b"GGUF" + bytes(2)), "expected 4 bytes of the version"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_server_is_one_line(serve, fault):
    does, message = FAULTS[fault]
    server = serve(**{fault: does})
    with pytest.raises(GGUFError, match=message) as caught:
        open_header(f"{server.url}/{fault}/m.gguf")
    told = str(caught.value)
    assert "\n" not in told and told.startswith(server.url) and "kit-header" not in told
    for command in ("inspect", "explain"):
        ran = CliRunner().invoke(main, [command, f"{server.url}/{fault}/m.gguf"])
        assert ran.exit_code == 2 and ran.stderr.count("\n") == 1 and re.search(message, ran.stderr), ran.stderr


@pytest.mark.parametrize("url, message", [
    ("http://127.0.0.1:1/m.gguf", "cannot be reached"), ("http://[/m.gguf", "Invalid|invalid"), ("http:///m.gguf", "m.gguf: "),
])  # fmt: skip
def test_what_is_no_server(url, message):
    with pytest.raises(GGUFError, match=message) as caught:
        open_header(url)
    assert "\n" not in str(caught.value)


def test_a_password_is_in_no_message(serve):
    server = serve()
    with pytest.raises(GGUFError, match="404") as caught:
        open_header(server.url.replace("//", "//user:hunter2@") + "/m.gguf")
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def hub(serve, model, monkeypatch, tmp_path):
    """A stand-in for the Hub: its answers send to another host, that of the files. (the Hub, the host of the files)."""
    files = serve({"/blob": model.read_bytes()})
    place = files.url.replace("127.0.0.1", "localhost")
    there = {"owner": lambda handler, rest: handler.plain(302, Location=f"{place}/blob")}
    there["gated"] = lambda handler, rest: handler.plain(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="gated")
    there["nobody"] = lambda handler, rest: handler.plain(404, b"{}", X_Error_Code="EntryNotFound", X_Error_Message="none")
    server = serve(**there)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return server, files


def test_a_token_goes_to_the_hub_alone(hub):
    server, files = hub
    assert is_remote("hf://owner/model/tiny-Q4_K_M.gguf")
    with open_header("hf://owner/model@v2/tiny-Q4_K_M.gguf") as file:
        assert file.architecture == "llama" and file.source == "hf://owner/model@v2/tiny-Q4_K_M.gguf"
    tokens = [[headers.get("Authorization") for _, headers in each.asked] for each in hub]
    assert set(tokens[0]) == {"Bearer hf_secret"} and set(tokens[1]) == {None}
    assert server.asked[0][0].endswith("/owner/model/resolve/v2/tiny-Q4_K_M.gguf") and files.asked


@pytest.mark.parametrize("name, message", [
    ("hf://gated/m/a.gguf", "gated/m is gated: accept its license"), ("hf://nobody/m/a.gguf", "nobody/m has no file 'a.gguf'"),
])  # fmt: skip
def test_what_the_hub_refuses(hub, name, message):
    with pytest.raises(GGUFError, match=message) as caught:
        open_header(name)
    assert str(caught.value).startswith(name) and "\n" not in str(caught.value) and "hf_secret" not in str(caught.value)


def test_a_page_of_the_hub_is_its_file(monkeypatch):
    asked = []
    monkeypatch.setattr(remote, "cached", lambda source: asked.append(source))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert is_remote("https://huggingface.co/owner/model/resolve/main/m.gguf") and asked == ["hf://owner/model/m.gguf"]
    assert not is_remote("m.gguf") and not is_remote("ollama:qwen") and is_remote("https://example.org/m.gguf")


def test_inspect_of_a_url(serve, model):
    server = serve({"/tiny-Q4_K_M.gguf": model.read_bytes()})
    ran = CliRunner().invoke(main, ["inspect", f"{server.url}/tiny-Q4_K_M.gguf"])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith(f"{server.url}/tiny-Q4_K_M.gguf\nonly the header was read; download it")
    here = CliRunner().invoke(main, ["inspect", str(model)]).stdout

    def same(text):
        return [line for line in text.splitlines() if line.startswith(("Q4_K", "named", "a token reads", "parameters"))]

    assert same(ran.stdout) == same(here) and len(same(here)) == 4
