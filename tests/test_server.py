"""The client of a server: what counts as a token, what every bad answer is called, and that nothing goes anywhere else."""

import contextlib
import json
import operator
import os
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import documented
import psutil
import pytest
import served
from click.testing import CliRunner
from pytest import approx
from served import short  # noqa: F401

import kit
from kit.errors import ServerError
from kit.lab.commands.cli import main
from kit.lab.engines import owner, wheel_server
from kit.lab.engines.meter import Received, Report
from kit.lab.engines.protocols import PROTOCOLS, event_of
from kit.lab.engines.server import KEY, ServerClient, is_server
from kit.lab.engines.server import _lines as lines_of
from kit.lab.engines.started import Started, changed
from kit.lab.engines.watch import Holding, Seen
from kit.lab.explaining import refused as refused_load
from kit.lab.explaining import remedies, running_answer, running_words
from kit.lab.explaining.causes import Cause, Window, split
from kit.lab.explaining.running import Running
from kit.lab.measuring.busy import Busy
from kit.model.tokenizer import tokenizer_of
from kit.system import groups, usable_cores


def explain(*words):
    """(exit code, output, error) of kit explain."""
    done = CliRunner().invoke(main, ["explain", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def refused(*words, later=False):
    """The one line of an error, exit code 2; ``later``: what was found before it is printed."""
    code, out, said = explain(*words)
    assert code == 2 and (later or not out), (code, out, said)
    assert said.startswith("kit: error: ") and said.count("\n") == 1
    return said


# ---- the meter


def test_lines_without_an_event_are_none():
    assert [event_of(line) for line in ("", ": ping", "data: [DONE]", "event: x", "data: [1]")] == [None] * 5
    assert event_of('data: {"a": 1}') == event_of('{"a": 1}') == {"a": 1}


JUNK = None, -1, 1.5, True, "abc", [], {}, [None], {"a": None}, 2**70, float("nan"), float("inf")
_EVENTS = {  # protocol -> events with every field that is read
    "llama-server": [
        {"content": "a", "tokens": [5], "stop": True, "stop_type": "limit", "error": {"message": "x"}},
        {"timings": {"prompt_n": 1, "cache_n": 1, "predicted_n": 1, "prompt_ms": 1.0, "predicted_ms": 1.0}},
    ],
    "Ollama": [
        {"response": "a", "done_reason": "length"},
        {"done": True, "total_duration": 1, "load_duration": 1, "prompt_eval_duration": 1, "eval_duration": 1,
         "prompt_eval_count": 1, "eval_count": 1},
    ],
    "OpenAI-compatible server": [
        {"choices": [{"text": "a", "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}},
    ],
}  # fmt: skip


def _with_junk(event, junk):
    """Copies of an event: in each, one of its values, however deep, is ``junk``."""
    for key, value in event.items():
        yield event | {key: junk}
        rows = value if isinstance(value, list) else [value]
        for row in [row for row in rows if isinstance(row, dict)]:
            yield from (event | {key: [deep] if isinstance(value, list) else deep} for deep in _with_junk(row, junk))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_whatever_a_server_says_is_text_ids_and_counts_or_nothing(protocol):
    for junk in JUNK:
        for event in (each for good in _EVENTS[protocol.name] for each in _with_junk(good, junk)):
            piece = protocol.piece(event)
            assert all(isinstance(text, str) for text in (piece.text, piece.stop, piece.error)), event
            assert all(type(token) is int and token >= 0 for token in piece.ids), event
            *counts, load, prompt, made = piece.report or Report()
            assert all(each is None or (type(each) is int and 0 <= each < 2**53) for each in counts), event
            assert all(each is None or 0 <= each < float("inf") for each in (load, prompt, made)), event


def test_whatever_a_server_says_of_its_models_is_rows_and_a_path_or_nothing():
    row, answers = {"name": "q", "context_length": 512}, {}
    with served.serving(served.answering(lambda path: (200, answers | {"version": "1"}))) as url:
        for junk in (-1, "abc", [None], {"a": None}):
            for key, value in {"models": junk, "data": junk, "context_length": junk}.items():
                answers |= {"models": [row | {key: value}], "data": [{"id": "q"}], key: value}
                with contextlib.suppress(ServerError), ServerClient(url) as client:
                    assert client.model == "q" and client.context in (0, 512)
    paths = {owner._said(SimpleNamespace(about={"model_path": junk}, name="llama-server")) for junk in JUNK if junk != "abc"}
    assert paths == {None}


def test_tokens_of_a_server_whose_file_is_not_known_are_those_that_it_says_or_pieces():
    usage = iter([{"completion_tokens": 6}, {}])

    def words(path):
        told = [*({"text": text} for text in "abc"), {"finish_reason": "length"}]
        events = [{"choices": [each]} | ({} if "text" in each else {"usage": next(usage)}) for each in told]
        return 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()

    openai = served.answering(lambda path: (200, {"data": [{"id": "x"}]}), words)
    with served.serving(openai) as url, ServerClient(url) as client:
        told = [client.ask([], 6, positions=1) for _ in range(2)]
    assert [(got.fault, got.received, got.burst) for got in told] == [("", 6, True), ("", 3, True)]


def test_openai_reports_what_was_cached():
    piece = PROTOCOLS[2].piece({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 8,
                                                         "prompt_tokens_details": {"cached_tokens": 40}}})  # fmt: skip
    assert piece.report == Report(10, 40, 8)


# ---- addresses, keys, flags


@pytest.mark.parametrize("text, yes", [
    ("http://127.0.0.1:8080", True), ("https://host/v1", True), ("https://host/a/model.gguf", False), ("model.gguf", False),
    ("hf://a/b/c.gguf", False), ("https://huggingface.co/a/b", False), ("http://host/file?x=1", False),
])  # fmt: skip
def test_what_is_the_url_of_a_server(text, yes):
    assert is_server(text) == yes


def test_flags_are_replaced_and_secrets_hidden(smollm2):
    assert changed("./llama-server -t 8 --mlock -c 512", "-t 2") == "./llama-server --mlock -c 512 -t 2"
    assert changed("./llama-server --mlock -c 512", "--mlock") == "./llama-server -c 512 --mlock"
    with pytest.raises(ServerError, match="does not take '--frobnicate'"):
        Started("xllamacpp --frobnicate", smollm2)
    with pytest.raises(ServerError, match="does not take --spec-type draft-eagle3 here; it takes draft-simple, ngram-simple"):
        Started("xllamacpp --spec-type draft-eagle3", smollm2)
    with pytest.raises(ServerError, match="nowhere/llama-server: No such file"):
        Started("/nowhere/llama-server -t 2", smollm2)
    assert changed("x --sleep-idle-seconds -1 -c 512", "--sleep-idle-seconds 5") == "x -c 512 --sleep-idle-seconds 5"
    with pytest.raises(ServerError, match="-c many: give a whole number"):
        Started("xllamacpp -c many", smollm2)


@pytest.mark.parametrize("flag", [flag for flag in wheel_server.FLAGS if flag.fields], ids=lambda flag: flag.names[0])
def test_a_flag_that_the_wheel_takes_is_set(flag):
    """-fa was read and set nothing."""
    pytest.importorskip("xllamacpp")
    text, value = next(iter(flag.choices.items())) if flag.choices else ("7", flag.read("7"))
    for name in flag.names:
        made = wheel_server.parameters(wheel_server.parsed([name, text]))
        found = [operator.attrgetter(field)(made) for field in flag.fields]
        assert found == [value] * len(found)
    assert found != [operator.attrgetter(field)(wheel_server.parameters({})) for field in flag.fields]


@pytest.mark.parametrize("name", remedies.FLAGS)
def test_the_wheels_server_takes_every_flag_that_is_advised(name):
    pytest.importorskip("xllamacpp")
    flags = remedies.FLAGS[name].format(cores=2, context=4096, reuse="--ctx-checkpoints 32")
    assert wheel_server.parsed(flags.split()), flags


def test_a_key_goes_to_the_typed_host_alone_and_is_written_nowhere(monkeypatch):
    asked = []

    class Elsewhere(served.Quiet):
        def do_GET(self):
            asked.append(dict(self.headers))
            self.said(200, {"version": "1"})

    with served.serving(Elsewhere) as other:

        class Redirects(served.Quiet):
            def do_GET(self):
                asked.append(self.headers.get("Authorization"))
                self.send_response(302)
                self.send_header("Location", f"{other}{self.path}")
                self.end_headers()

        monkeypatch.setenv(KEY, "secret-of-mine")
        monkeypatch.setenv("HTTP_PROXY", other)
        with served.serving(Redirects) as url:
            told = refused(url)
    assert "it redirects to" in told and "secret-of-mine" not in told
    assert asked and set(asked) == {"Bearer secret-of-mine"}, "nothing went to the other host"


def test_a_server_that_wants_a_key(monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with served.serving(served.answering(lambda path: (401, {"error": "no key"}))) as url:
        assert f"the server wants a key; set {KEY} (401)" in refused(url)
        monkeypatch.setenv(KEY, "another-of-mine")
        said = refused(url)
        assert f"refuses the key of {KEY}" in said and "another-of-mine" not in said


# ---- bad input: one line, exit code 2


OTHERS = {  # what a server is -> (what it answers, what is said of it)
    "another kind": (lambda path: (200, b"<html>a page</html>", "text/html"), "a server of another kind"),
    "one that loads its model": (
        lambda path: (503, {"error": {"code": 503, "message": "Loading model"}}), "is loading its model; ask again when it has",
    ),
    "one that only chats": (
        lambda path: (200, {"data": [{"id": "m"}]}) if path == "/v1/models" else (404, {"error": {"message": "no such path"}}),
        "has no /v1/completions (no such path): kit measures no server that only chats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_a_server_that_cannot_be_measured(kind):
    answers, says = OTHERS[kind]
    with served.serving(served.answering(answers)) as url:
        assert says in refused(url, later="chats" in kind)


@pytest.mark.parametrize("greeting, says", [(b"", "nothing listens there"), (b"220 mail\r\n", "no answer of HTTP")])
def test_a_port_where_nothing_listens_or_that_does_not_speak_http(greeting, says):
    with socket.socket() as listens:
        listens.bind(("127.0.0.1", 0))

        def speak():
            with listens.accept()[0] as connection:
                connection.sendall(greeting)

        if greeting:
            listens.listen()
            threading.Thread(target=speak, daemon=True).start()
        assert says in refused(f"http://127.0.0.1:{listens.getsockname()[1]}")


@pytest.mark.parametrize("command, room", [((), 512), (("-c", "2048", "-np", "4"), 2048), (("--ctx-size=4096",), 4096)])
def test_the_context_that_is_advised_is_that_of_all_slots(command, room):
    running = SimpleNamespace(owner=owner.Owner(1, command=("llama-server", *command)), context=512)
    assert Running.room.fget(running) == room


@pytest.mark.parametrize("command, kv, width", [
    ("", "float16", 2.0), ("-ctk q8_0", "q8_0 and float16", 1.53125), ("-ctk q4_0 -ctv q4_0", "q4_0", 0.5625),
    ("--kv-cache-type q8_0", "q8_0", 1.0625), ("-ctk f32 --cache-type-v f32", "float32", 4.0),
])  # fmt: skip
def test_types_of_keys_and_values_by_the_command(command, kv, width):
    """q4_0 was told as float16, with its bytes."""
    running = Running.__new__(Running)
    running.owner = owner.Owner(1, command=("llama-server", *command.split()))
    assert (running.kv, running.kv_width) == (kv, width)


def test_a_server_that_drafts_has_no_limit_by_the_bytes_of_a_token(server, monkeypatch):
    """The tokens of a pass share them: a share of a limit of 300 % would be none."""
    monkeypatch.setattr(owner, "_DRAFTS", ("-c",))
    with ServerClient(server.url) as client:
        found = owner.find(client)
    assert found.drafts and "it drafts" in found.missing[-1]
    assert not owner.Owner(1, command=("x", "--spec-type", "none")).drafts
    running = Running.__new__(Running)
    running.owner = found
    assert running.least(48) == 0.0


def test_an_address_of_its_interface_is_the_server():
    """As other programs want them; a prefix of a proxy stays."""
    answers = lambda path: (200, {"version": "1"}) if path == "/mine/api/version" else (404, {})  # noqa: E731
    with served.serving(served.answering(answers)) as url:
        for path in ("", "/", "/v1", "/v1/", "/v1/models", "/v1/chat/completions", "/completion", "/props", "/api"):
            assert "no model is loaded" in refused(f"{url}/mine{path}")
        assert "a server of another kind" in refused(f"{url}/v1")


def test_https_to_a_server_without_it():
    with served.serving(served.answering(lambda path: (200, {}))) as url:
        assert f"is it {url}?" in refused(url.replace("http", "https", 1))


def test_options_that_are_not_for_a_server_or_for_one_alone(smollm2):
    assert "leave out --memory" in refused("http://127.0.0.1:1", "--memory", "1GiB")
    assert "--try: give the URL of a running server" in refused(smollm2, "--try")


@pytest.fixture(scope="module")
def server(smollm2):
    with served.started(smollm2, "-t 2 -c 512") as running:
        yield running


def test_a_model_name_that_it_does_not_have_and_two_models(server, smollm2):
    with served.serving(served.ollama(server.url, smollm2, models=("a:1b", "b:2b"))) as url:
        assert "2 models are loaded (a:1b, b:2b): name one, --served a:1b" in refused(url)
        assert "has no model 'c'; it has a:1b, b:2b" in refused(url, "--served", "c")
    assert "model 'c'" in refused(server.url, "--served", "c")


def test_a_stream_that_always_ends_early(server):
    with served.serving(served.proxy(server.url, each=lambda number: "drop" if number == 2 else None)) as url:
        assert "a stream that broke off after 1 of 4 tokens: no speed can be measured" in refused(url, later=True)


@pytest.mark.slow
def test_a_stream_that_ends_early_now_and_then_counts_for_nothing(server):
    asked = []

    def drop(number):
        return "drop" if len(asked) == 3 and number == 2 else None

    with served.serving(served.proxy(server.url, each=drop, begin=lambda: asked.append(1))) as url:
        with Running(url, gbps=lambda: 20.0) as running:
            assert len(running.windows) == 3 and len(running.faults) == 1


@pytest.mark.slow
def test_a_proxy_that_collects_the_whole_answer(server):
    """Pieces at once: the time of a token is that of a long answer minus a short one's, here 50 ms and the server's."""

    class Collects(served.proxy(server.url, each=lambda number: time.sleep(0.05))):
        def pass_on(self):
            sent, self.wfile.flush = [], lambda: None
            write, self.wfile.write = self.wfile.write, lambda data: sent.append(data)
            super().pass_on()
            self.wfile.write = write
            self.wfile.write(b"".join(sent))

        do_GET = do_POST = pass_on

    with served.serving(Collects) as url, Running(url, gbps=lambda: 20.0) as running:
        assert running.first.burst
        most = max(window.seconds for window in running.windows)  # other processes may lengthen a short answer
        assert len(running.decodes) == len(running.windows)
        assert most > 0.025, "from the first piece to the last nothing passed"


def test_an_answer_at_once_that_takes_no_longer_than_one_token_is_no_speed():
    """It was one of 0 s per token, and a division by it."""
    running, seconds = Running.__new__(Running), iter([2.0, 2.0, 2.1, 2.0])
    running.faults, running.owner = [], owner.Owner(None)

    def ask(*_, at_first=bool, at_end=bool):
        at_first(), at_end()
        return Received(4, next(seconds), 200, arrivals=(2.0,), received=4)

    running.ask = ask
    window, got = running.window([], 4)
    assert window is None and got.burst and len(running.faults) == 1


def test_lines_that_come_together_have_one_time_and_a_separator_is_none(monkeypatch):
    """What is done with the first one (a watch begins) took 50 ms on a busy machine, and became the time of the second."""
    clock = iter(range(10))
    monkeypatch.setattr("kit.lab.engines.server.time.perf_counter", lambda: next(clock))
    answer = SimpleNamespace(iter_bytes=lambda: [b"a\r\nb\nc", b"d\xe2\x80\xa8e\n\nf"])
    assert [*lines_of(answer)] == [(0, b"a"), (0, b"b"), (1, b"cd\xe2\x80\xa8e"), (1, b""), (2, b"f")]


def test_bytes_that_are_no_text_are_one_token_each(smollm2):
    """The character that stands for them is three tokens: 219 of 96 were counted."""
    client = ServerClient.__new__(ServerClient)
    with kit.open(smollm2) as file:
        client.tokenizer = tokenizer_of(file)
    ids = client.tokenizer.encode("a snowman \u2603", special=False, ends=False)
    broken = client.tokenizer.decode(ids[:-1]) + "\ufffd" * 9 + "."
    assert client._count(broken, ids) == len(ids) < client._count(broken, [])
    assert client._count(client.tokenizer.decode(ids), ids * 5) == len(ids), "what came is no more than its text"


@pytest.mark.slow
def test_a_file_that_the_process_has_deleted(smollm2, tmp_path):
    file = shutil.copy(smollm2, tmp_path / "gone.gguf")
    with served.started(file, "-t 2 -c 256") as running:
        os.unlink(file)
        assert "gone.gguf, was deleted while it runs: restart the server" in refused(running.url)


def test_a_refused_load_is_explained(server, smollm2, monkeypatch):
    """In a group of 1 GiB, of which 700 MiB are in use and 300 of those are pages of files."""
    said = "model requires more system memory (5.6 GiB) than is available (4.2 GiB)"
    monkeypatch.setattr("kit.system.groups.use", lambda process: (1 << 30, 700 << 20, 300 << 20))
    with served.serving(served.ollama(server.url, smollm2, refuses=said)) as url:
        told = refused(url, later=True)
    for part in (said, "allows 1.00 GiB, 700.0 MiB", "300.0 MiB of those", "624.0 MiB are available", "MiB of weights",
                 "num_ctx 8192"):  # fmt: skip
        assert part in told


def test_a_server_that_names_no_file_has_no_process_but_its_own(monkeypatch):
    """An unloaded Ollama: a process that had nothing to do with it was watched, because it maps memory without a file."""
    get = {"/api/version": {"version": "1"}, "/v1/models": {"data": [{"id": "a"}]}}
    refusal = 500, {"error": "model requires more system memory (5.6 GiB) than is available (4.2 GiB)"}
    unloaded = served.answering(lambda path: (200, get.get(path, {})), lambda path: refusal)
    monkeypatch.setattr(owner, "_family", lambda number: [psutil.Process()])  # no other server of these tests
    with served.serving(unloaded) as url, ServerClient(url) as client:
        found = owner.find(client)
        assert f"kit explain FILE --engine {url} names it" in refused(url, later=True)
    assert found.process is None and found.file is None and not any("passes requests on" in each for each in found.missing)


@pytest.mark.parametrize("free, context", [(2000, 4096), (1400, 1024), (1310, 0), (1200, 0)])
def test_the_largest_context_that_fits(free, context):
    """1,000 MiB of weights and 300 of the process; 100 KiB a position; the model has 4,096."""
    assert refused_load.fitting(free << 20, 1000 << 20, 100 << 10, 4096) == context


def test_the_group_tells_what_of_its_memory_are_pages_of_files(monkeypatch, tmp_path):
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100\nactive_file 40\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("300\n")
    monkeypatch.setattr("kit.system.groups.own", lambda controller, process="self": [(2, tmp_path)])
    assert groups.use() == (1000, 300, 140)


# ---- what is found and counted


def test_the_process_behind_the_port_its_file_and_its_flags(server, smollm2):
    with ServerClient(server.url) as client:
        found = owner.find(client)
    assert (found.process, found.file, found.mapped, found.threads) == (server.process.pid, smollm2, True, 2)
    assert found.missing == () and client.name == "llama-server"


def test_another_host_is_measured_from_outside_only(server, monkeypatch):
    monkeypatch.setattr(ServerClient, "local", False)
    monkeypatch.setattr("kit.lab.explaining.running._FIRST", 0.0)
    with Running(server.url, gbps=lambda: 20.0) as running:
        assert len(running.windows) == 1, "a slow server's first answer does not wait for three"
        assert running.file is running.owner.process is None and running.owner.missing
        assert running.windows[0].seconds > 0 and {cause.name for cause in running.decode} <= {"overhead", "unexplained"}


def test_an_address_of_this_machine_is_this_machine(monkeypatch):
    row = SimpleNamespace(address="192.0.2.7"), SimpleNamespace(address="fe80::1%eth0")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"eth0": row})
    client = ServerClient.__new__(ServerClient)
    for client.host, here in (("192.0.2.7", True), ("fe80::1", True), (socket.gethostname(), True), ("192.0.2.8", False)):
        assert client.local == here


def test_tokens_are_counted_by_the_files_own_tokenizer(server, smollm2):
    """Whatever a server says that it made."""

    class Lies(served.ollama(server.url, smollm2)):
        def _line(self, event, waited):
            if event.get("stop"):
                event["timings"]["predicted_n"] = 1000
            super()._line(event, waited)

    with served.serving(Lies) as url, Running(url, gbps=lambda: 20.0) as running:
        got = running.ask(running.prompt(12), 6)
        assert got.report.predicted == 1000 and 1 <= got.answered <= 7
        assert got.answered == len(running.server.tokenizer.encode(got.text, special=False, ends=False))


@pytest.mark.slow
def test_the_first_answer_the_json_and_nothing_left_running(server, tmp_path):
    code, out, said = explain(server.url, "--json")
    assert code == 0, said
    told = json.loads(out)
    assert {"engine", "decode", "prompt", "bound", "mbu", "causes"} <= told.keys() <= documented.keys("explain URL")
    assert {"name", "version", "threads", "flags"} <= told["engine"].keys()
    wanted = {"tokens_per_second", "seconds", "interval", "tokens_received", "tokens_asked"}
    assert wanted <= told["decode"].keys() and {"seconds", "bytes", "bandwidth"} == told["bound"].keys()
    names = "memory disk threads quota busy depth load pages swap reprocess overhead unexplained".split()
    assert all({"name", "seconds", "evidence", "remedy"} <= each.keys() and each["name"] in names for each in told["causes"])
    decode = sum(each["seconds"] for each in told["causes"] if each["of"] == "decode")
    assert decode == approx(told["decode"]["seconds"])
    before = tmp_path / "before.json"
    before.write_text(out)
    compared = running_answer.compared(told, told | {"decode": told["decode"] | {"seconds": 2 * told["decode"]["seconds"],
                                       "interval": [2 * end for end in told["decode"]["interval"]]}})  # fmt: skip
    assert compared["times"] == approx(0.5)
    assert server.process.poll() is None, "the user's server goes on"


@pytest.mark.slow
def test_a_change_is_tried_in_turn_with_a_server_that_kit_starts(smollm2, monkeypatch):
    """Eight threads on fewer cores, and the flag that cures it."""
    for name, value in served.PASSIVE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kit.lab.engines.llama_cpp.ENVIRONMENT", {})
    monkeypatch.setattr("kit.lab.measuring.slices.read_gbps", lambda: 20.0)
    monkeypatch.setattr(running_answer, "_BUDGET", 1.0)
    monkeypatch.setattr(running_answer, "_ROUNDS", 2)
    # Whether that is the largest cause depends on others' work, beside which nothing is advised: test_too_many_threads has it.
    waiting = Seen(1.0, (0.75,) * 8, (0.25,) * 8, cores=2)
    monkeypatch.setattr(
        "kit.lab.explaining.running.split", lambda window, *more: split(Window(1, window.seconds, waiting), *more)
    )
    monkeypatch.setattr(running_words, "busy_of", lambda running: Busy(0.0))
    threads = 8 * usable_cores()
    code, out, said = explain(smollm2, "--engine", f"xllamacpp -t {threads} -c 256", "--try", "--json")
    assert code == 0, said
    told = json.loads(out)
    assert told["engine"]["threads"] == threads
    assert told["change"]["cause"] == "threads", told["causes"]
    tried = told["tried"]
    assert tried["change"] == f"-t {usable_cores()}" and f"-c 256 -t {usable_cores()}`" in " ".join(tried["told"].split())
    assert tried["interval"][0] <= tried["times"] <= tried["interval"][1]


def test_two_settings_in_turn_are_a_ratio_with_an_interval():
    told = running_answer.told_in_turn("a -t 8", "a -t 2", {"a -t 8": [0.2, 0.22, 0.21], "a -t 2": [0.1, 0.1, 0.1]})
    assert told["times"] == approx(2.1) and told["interval"][0] < 2.1 < told["interval"][1]
    assert (told["before"], told["after"]) == (0.21, 0.1)


@pytest.mark.slow
def test_a_server_that_ends_meanwhile_is_an_error_of_one_line(smollm2):
    with served.started(smollm2, "-t 2 -c 256") as running, Running(running.url, gbps=lambda: 20.0) as ran:
        _ = ran.first
        running.process.kill()
        running.process.wait()
        with pytest.raises(ServerError, match="the connection broke"):
            _ = ran.windows


@pytest.mark.parametrize("others, yes", [(1.0, False), (0.0, True)])
def test_sections_of_a_busy_server_have_no_remedy_no_share_and_no_change(monkeypatch, others, yes):
    """With neighbors, two threads that spin were a hundred times slower than eight that sleep."""
    owner = SimpleNamespace(process=0, threads=8, command=[], file=None, missing=[], mapped=False)
    seen = Seen(1.0, (0.7,) * 8, (0.25,) * 8, cores=2, others=others)
    threads = Cause("threads", 0.06, 0.05, 0.07, "8 threads on 2 cores", "-t 2")
    got = SimpleNamespace(answered=9, asked=9, report=SimpleNamespace(predicted=9), stopped=False)
    server = SimpleNamespace(name="llama-server", version="b1", url="http://here", model="m", tokenizer=None)
    running = SimpleNamespace(
        owner=owner, server=server, windows=[Window(9, 0.1, seen)] * 2, decodes=[got] * 2, gbps=10.0, context=0, kv="float16",
        file=None, holding=Holding(), decode=[Cause("memory", 0.04, 0.04, 0.04), threads], load=[], prompts=[], overhead=0.0,
        per_position=0.0, turns=None, second_turn=[], deep=None, faults=[], least=lambda at: 0.04, bytes_at=lambda at: 4e8,
    )  # fmt: skip
    told = [*running_words.sections(running)]
    data, text = {key: value for key, value, _ in told if key}, "\n".join(words for *_, words in told)
    assert bool(data["change"]) == bool(data["mbu"]) == ("To change" in text) == ("-t 2" in text) == yes
    assert [row["remedy"] for row in data["causes"]] == ["", "-t 2" if yes else ""] and data["busy"] == (not yes)
    assert [row["kind"] for row in data["answer"]["table"]] == ["limit"] * yes + ["yours"]
    assert ("of the limit" in text) == yes and ("Busy machine" in text) == (not yes)


@pytest.mark.parametrize("times, verdict", [(1.02, "as fast"), (2.0, "faster"), (0.5, "slower")])
def test_an_answer_compared_with_an_earlier_one(times, verdict):
    def answer(seconds, others=0.0):
        decode = {"seconds": seconds, "interval": [0.975 * seconds, 1.025 * seconds], "others": others}
        return {"decode": decode, "engine": {"file": "a.gguf"}}

    told = running_answer.compared(answer(0.1), answer(0.1 / times))
    span = [0.975 / 1.025, 1.025 / 0.975]
    assert told["verdict"] == verdict and [told["times"], *told["interval"]] == approx([times, *(times * end for end in span)])
    deep = {"at_depth": answer(0.2)["decode"] | {"positions": 1024}, "second_turn": {"seconds": 0.3, "again": 200}}
    later = {"at_depth": answer(0.1)["decode"] | {"positions": 1024}, "second_turn": {"seconds": 0.1, "again": 0}}
    told = running_answer.compared(answer(0.1) | deep, answer(0.1 / times) | later)
    assert told["verdict"] == verdict and "300 ms" in told["told"] and "200" in told["told"]
    faster = {"times": approx(2.0), "interval": approx([2 * end for end in span]), "verdict": "faster"}
    assert told["at_depth"] == faster, "a cache of fewer bits shows at depth alone"
    later["at_depth"]["positions"] = 512
    assert "at_depth" not in running_answer.compared(answer(0.1) | deep, answer(0.1) | later)
    busy = running_answer.compared(answer(0.1), answer(0.1 / times, 1.0))
    assert busy["verdict"] == "busy" and "times as fast" not in busy["told"] and "no comparison" in busy["told"]


def test_pages_on_several_nodes_are_told():
    held = Holding(0.9, 0.5, 10 << 20, swapped=1 << 20, limit=1 << 30, nodes=(75, 25))
    told = running_words._held(SimpleNamespace(holding=held, file=True, owner=SimpleNamespace(process=1)))
    told = " ".join(told.split())
    assert all(part in told for part in ("90%", "50%", "75%, 25%", "1.00 MiB", "1.00 GiB"))


def test_a_server_has_a_picture_where_its_file_is_known(server, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.lab.explaining.running._FIRST", 0.0)
    monkeypatch.setattr("kit.lab.engines.bounds_of.measured", lambda: SimpleNamespace(bandwidth=0.0, rates={"int8": 1e11}))
    monkeypatch.setattr(running_answer, "_BUDGET", 0.1)
    monkeypatch.setattr("kit.lab.measuring.slices.read_gbps", lambda: 20.0)
    out = tmp_path / "roof.svg"
    assert explain(server.url, "--figure", out)[0] == 0
    drawn = out.read_text(encoding="utf-8")
    assert server.url in drawn and "20 GB/s" in drawn
    assert "end the name with" in refused(server.url, "--figure", tmp_path / "roof.txt")
    monkeypatch.setattr(ServerClient, "local", False)
    assert "without the file there is no roof" in refused(server.url, "--figure", out)


@pytest.mark.parametrize("change", [
    lambda said: said.clear(), lambda said: said.pop("engine"), lambda said: said.update(engine=[]),
    lambda said: said["engine"].update(file=-1), lambda said: said.update(decode=None),
    lambda said: said["decode"].pop("seconds"),
    lambda said: said["decode"].update(interval=None), lambda said: said["decode"].update(interval=[0.1]),
    lambda said: said["decode"].update(seconds=0), lambda said: said["decode"].update(others="abc"),
    lambda said: said["at_depth"].update(seconds="abc"), lambda said: said["second_turn"].pop("again"),
])  # fmt: skip
def test_an_answer_to_compare_with_that_is_none_is_said_before_anything_is_asked(tmp_path, change):
    token = {"seconds": 0.1, "interval": [0.09, 0.11]}
    said = {"decode": dict(token), "engine": {"file": "a.gguf"}, "at_depth": token | {"positions": 512}}
    said |= {"second_turn": {"seconds": 0.3, "again": 9}}
    change(said)
    (tmp_path / "before.json").write_text(json.dumps(said))
    told = refused("http://127.0.0.1:1", "--compare", tmp_path / "before.json")
    assert "not an answer of `kit explain URL --json`" in told


def test_a_server_in_the_home_folder_is_found_as_a_bench_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    ran = []
    Started("~/llama-server -t 4", "a.gguf", run=lambda command, **how: ran.append(command))
    assert ran[0][:3] == ["/home/x/llama-server", "-t", "4"]


def test_a_server_that_kit_started_ends_with_it(smollm2):
    with served.started(smollm2, "-t 2 -c 256") as running:
        process = running.process
    assert process.poll() is not None
    end = time.monotonic() + 5
    with pytest.raises(ServerError, match="nothing listens"):
        while time.monotonic() < end:
            ServerClient(running.url).close()
