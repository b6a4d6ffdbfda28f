"""hf:// sources on a cache folder laid out by hand as huggingface_hub does, offline."""

import socket
import threading

import httpx
import pytest
from click.testing import CliRunner
from huggingface_hub import constants, errors

import kit
from kit.errors import GGUFError
from kit.gguf import reachable
from kit.gguf.sources import absolute, largest_part, model_bytes, model_name, part_names, resolve
from kit.lab.commands.cli import main
from kit.lab.synthetic.write import synthesize

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The folder of files of the repository owner/model, at one commit, in a Hub cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots" / COMMIT / "sub").mkdir(parents=True)
    return repository / "snapshots" / COMMIT


@pytest.mark.parametrize("where", ["model/m.gguf", "model@main/m.gguf", f"model@{COMMIT}/m.gguf", "model/sub/m.gguf"])
def test_a_cached_file_opens_offline(hub, where):
    local = synthesize(hub / where.partition("/")[2], "tiny-llama")
    with kit.open(f"hf://owner/{where}") as file:
        assert file.architecture == "llama" and file.path == local


def test_all_parts_of_a_split_file_are_fetched(hub):
    for number in (1, 2):
        (hub / "sub" / f"m-{number:05d}-of-00002.gguf").write_bytes(b"x")
    assert resolve("hf://owner/model/sub/m-00002-of-00002.gguf").name == "m-00001-of-00002.gguf"
    (hub / "sub" / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(GGUFError, match="not in the cache"):
        resolve("hf://owner/model/sub/m-00001-of-00002.gguf")


def test_a_split_model_has_one_name_and_the_bytes_of_its_parts(tmp_path):
    sizes = {"a-00001-of-00003.gguf": 3, "a-00002-of-00003.gguf": 50, "a-00003-of-00003.gguf": 7, "b.gguf": 5}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    for name in list(sizes)[:3]:
        assert (model_name(str(tmp_path / name)), model_bytes(tmp_path / name)) == ("a.gguf", 60)
        assert largest_part(tmp_path / name).name == "a-00002-of-00003.gguf"
    assert (model_name("b.gguf"), model_bytes(tmp_path / "b.gguf")) == ("b.gguf", 5)
    assert largest_part(tmp_path / "b.gguf") == tmp_path / "b.gguf"


@pytest.mark.parametrize("source, message", [
    ("hf://owner/model/none.gguf", "not in the cache .*, and HF_HUB_OFFLINE is set"),
    ("hf://owner/other/m.gguf", "not in the cache"), ("hf://owner/model", "expected hf://owner/repo/file.gguf"),
    ("hf://owner/model/", "expected hf://owner/repo/file.gguf"),
    ("hf://ow ner/model/m.gguf", "expected hf://owner/repo/file.gguf"), ("hf://../model/m.gguf", "Repo id must use"),
    ("hf://owner/model/../../m.gguf", r"'\.\.' path segment"),
])  # fmt: skip
def test_what_cannot_be_resolved(hub, source, message):
    with pytest.raises(GGUFError, match=message) as caught:
        kit.open(source)
    assert str(caught.value).startswith(source) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind, message", [
    (errors.GatedRepoError, "owner/model is gated: accept its license"),
    (errors.RepositoryNotFoundError, "no repository owner/model, or it is private: set HF_TOKEN"),
    (errors.RevisionNotFoundError, "owner/model has no revision 'v9'"),
    (errors.RemoteEntryNotFoundError, "owner/model has no file 'm.gguf'"), (errors.HfHubHTTPError, "503 from the Hub"),
])  # fmt: skip
def test_what_the_hub_answers(monkeypatch, kind, message):
    response = httpx.Response(503, request=httpx.Request("GET", "https://example.org"))

    def answer(*args, **kwargs):
        raise kind("503 from\n the Hub", response=response)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", answer)
    with pytest.raises(GGUFError, match=message):
        kit.open("hf://owner/model@v9/m.gguf")


@pytest.mark.parametrize(
    "name, meant", [("smolm2-135m", "smollm2-135m"), ("SmolLM2", "smollm2-135m"), ("gemma3-270m", "gemma-3-270m")]
)
def test_a_misspelled_name_of_a_model_offers_the_nearest(name, meant, tmp_path, monkeypatch):
    """By every way in: Python, the commands that open a model, those that run it elsewhere, fetch."""
    monkeypatch.chdir(tmp_path)
    for function in (kit.open, absolute, resolve):
        with pytest.raises(GGUFError, match=f"^{name}: no file and no model has this name; did you mean {meant}\\?"):
            function(name)
    for arguments in (["inspect", name], ["explain", name], ["generate", name, "-p", "a"], ["fetch", name],
                      ["experts", name, "--memory", "1GiB"], ["reproduce", "--model", name]):  # fmt: skip
        run = CliRunner().invoke(main, arguments)
        assert run.exit_code == 2 and f"did you mean {meant}?" in run.stderr and run.stderr.count("\n") == 1, arguments
    (tmp_path / name).write_text("a file of that name")
    assert absolute(name) == str(tmp_path / name) and resolve(name).exists()


def test_another_missing_file_is_no_misspelled_model(tmp_path, monkeypatch):
    """Nor is a link to itself, or the home of nobody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    for name in ("model.gguf", "./smollm2", "smollm2/x", "my-own.gguf", absolute(str(tmp_path / "loop.gguf")), "~no-user/m"):
        with pytest.raises(GGUFError, match="~no-user" if name[0] == "~" else "cannot be opened"):
            kit.open(name)


def test_part_names():
    names = ["a-00001-of-00003.gguf", "a-00002-of-00003.gguf", "a-00003-of-00003.gguf"]
    assert all(part_names(name) == names for name in names)
    for single in ("a.gguf", "a-1-of-3.gguf", "a-00001-of-00003.bin", "-00001-of-00003.gguf"):
        assert part_names(single) == [single]
    with pytest.raises(GGUFError, match="part 0 of 3"):
        part_names("a-00000-of-00003.gguf")


@pytest.fixture
def closed():
    """A port of this machine at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_hub_that_cannot_be_reached_is_asked_once_and_the_cache_is_used(hub, closed, monkeypatch, caplog):
    """huggingface_hub alone tries six times in 23 seconds, and prints a line for each."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed}")
    with pytest.raises(GGUFError, match=r"not in the cache .*, and the Hub cannot be reached") as caught:
        kit.open("hf://owner/model/m.gguf")
    assert "\n" not in str(caught.value) and not caplog.records
    local = synthesize(hub / "m.gguf", "tiny-llama")
    assert resolve("hf://owner/model/m.gguf") == local and not caplog.records


def test_whether_a_server_answers(closed, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert not reachable.reachable(f"http://127.0.0.1:{closed}/a") and not reachable.reachable("https://nosuch.invalid/a")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reachable.reachable(f"http://127.0.0.1:{port}/a")
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{port}")
        assert reachable.reachable("http://nosuch.invalid/a")  # the proxy knows that name, or says that it does not
        monkeypatch.setenv("no_proxy", "nosuch.invalid")
        assert not reachable.reachable("http://nosuch.invalid/a")
    assert reachable.reachable("ftp://nosuch.invalid/a") and reachable.reachable("http://[a/b")  # refused by who opens them


def test_a_look_up_that_never_ends_is_not_waited_for(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(reachable, "_SECONDS", 0.01)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: over.wait(60) and [])
    assert not reachable.reachable("https://example.org/a")
    over.set()


def test_a_record_of_routes_that_is_no_file_says_what_one_may_give():
    done = CliRunner().invoke(main, ["experts", "nosuch", "--memory", "1GiB"])
    assert done.exit_code == 2 and "one of gptoss, qwen, gemma (kit fetch lists models)" in done.stderr
