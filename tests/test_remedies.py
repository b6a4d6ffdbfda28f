"""Evidence and remedies of a server's causes, its second turn, and the limits of a file, from what a test sets."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.gguf.uses import Use
from kit.lab.engines import bounds_of
from kit.lab.engines.base import EngineFacts, Pass
from kit.lab.engines.bounds_of import FileWork, Roof
from kit.lab.engines.owner import Owner
from kit.lab.engines.watch import Holding, Seen
from kit.lab.explaining import remedies, second_turn
from kit.lab.explaining.causes import DECODE, Cause, Window
from kit.lab.explaining.remedies import ServerFacts

FACTS = ServerFacts("llama-server", Owner(1), Holding(), 2e9, 1000, 20.0, 4096, 0.25)
BUSY = Seen(2.0, (0.5,) * 4, (0.2,) * 4, cores=2, others=1.5)


@pytest.mark.parametrize("limit, own, pushed", [
    (1500, 600, True), (1500, 500, False), (1500, 501, True), (1000, 600, False), (1001, 600, True), (0, 600, False),
])  # fmt: skip
def test_weights_are_pushed_out_where_the_file_alone_would_fit(limit, own, pushed):
    """Of 1,000 bytes, beside what the server holds of its own."""
    assert replace(FACTS, holding=Holding(limit=limit, own=own)).pushed is pushed


@pytest.mark.parametrize("limit, own, context, each, smaller", [
    (2000, 1124, 4096, 0.25, 2048),  # 100 beside the context: 900 of room, 3,600 positions
    (1612, 1124, 4096, 0.25, 2048), (1611, 1124, 4096, 0.25, 1024), (9000, 1124, 4096, 0.25, 4096),
    (9000, 1124, 3000, 0.25, 2048),
    (1164, 1124, 4096, 0.25, 256), (1163, 1124, 4096, 0.25, 0), (1512, 500, 4096, 0.25, 2048), (0, 0, 4096, 0.0, 2048),
    (0, 0, 512, 0.0, 512), (10**9, 0, 1 << 20, 0.25, 1 << 17),
])  # fmt: skip
def test_the_largest_context_is_a_power_of_two_that_leaves_the_file_its_room(limit, own, context, each, smaller):
    """From 256 to 131,072 positions; of a server whose positions' bytes are not known half of what it has."""
    assert replace(FACTS, holding=Holding(limit=limit, own=own), context=context, position_bytes=each).smaller == smaller


@pytest.mark.parametrize("name, facts, seen, flags, part", [
    ("threads", FACTS, BUSY, "-t 2", "-t 2"), ("threads", FACTS, replace(BUSY, quota=1.0), "-t 1", "-t 1"),
    ("threads", FACTS, replace(BUSY, cores=4), "", "OMP_WAIT_POLICY=active"),
    ("threads", replace(FACTS, owner=Owner(1, sleepy=("--poll 0", "X=1"))), replace(BUSY, cores=4), "",
    "without --poll 0 and X=1"),
    ("threads", replace(FACTS, engine="Ollama"), BUSY, "", "num_thread 2"),
    ("threads", replace(FACTS, engine="x"), BUSY, "", "2 threads"),
    ("quota", FACTS, BUSY, "", "--cpus 4"), ("quota", FACTS, Seen(1.0), "", "--cpus 1"),
    ("busy", FACTS, BUSY, "", "other processes"), ("busy", FACTS, replace(BUSY, busiest=("make", "cc")), "", ": make, cc"),
    ("disk", FACTS, BUSY, "--mlock", "--mlock"), ("disk", replace(FACTS, engine="x"), BUSY, "", "lock the model"),
    ("disk", replace(FACTS, holding=Holding(limit=900)), BUSY, "", "more memory"), ("swap", FACTS, BUSY, "", "more memory"),
    ("disk", replace(FACTS, holding=Holding(limit=2000, own=1124)), BUSY, "-c 2048 -ctk q8_0 -ctv q8_0", "-c 2048"),
    ("swap", replace(FACTS, holding=Holding(limit=2000, own=1124)), BUSY, "-c 2048 -ctk q8_0 -ctv q8_0", "-c 2048"),
    ("disk", replace(FACTS, holding=Holding(limit=1050, own=2000)), BUSY, "", "more memory"),  # no context leaves it enough
    ("depth", replace(FACTS, kept=0.51), BUSY, "-ctk q8_0 -ctv q8_0 -fa on", "halves"),
    ("depth", replace(FACTS, kept=0.5), BUSY, "", "attention computes"),
    ("disk", replace(FACTS, engine="Ollama", holding=Holding(limit=2000, own=1124)), BUSY, "", "num_ctx 2048"),
    ("reprocess", FACTS, BUSY, "", "--cache-reuse 256"), ("load", FACTS, BUSY, "--sleep-idle-seconds -1", "keeps the model"),
    ("reprocess", replace(FACTS, recurrent=True), BUSY, "--ctx-checkpoints 32", "only gone back"),
    ("prompt", FACTS, BUSY, "", ""),
])  # fmt: skip
def test_a_cause_has_the_remedy_of_its_engine(name, facts, seen, flags, part):
    words, given = remedies.remedy(name, facts, seen)
    assert given == flags and part in words and "{" not in words


def test_evidence_is_what_was_seen_of_a_token():
    seen = replace(BUSY, read=40 << 20, swapped=20 << 20, faults=30, throttled=3.0, quota=1.5, sleeps=10030, stolen=0.06)
    holding = Holding(0.4, 0.25, 7 << 20, 3 << 20, 9 << 20)
    told = {name: remedies._evidence(name, replace(FACTS, holding=holding), seen, 10) for name in
            ("memory", "disk", "swap", "threads", "busy", "quota", "pages", "overhead", "unexplained", "prompt")}  # fmt: skip
    for name, parts in {
        "memory": ("1.86 GiB", "20.0 GB/s"), "swap": ("2.00 MiB from swap",),
        "disk": ("4.00 MiB from disk", "3 faults", " 60%", "9.00 MiB", "7.00 MiB", "3.00 MiB"),
        "threads": ("4 threads on 1.5 cores", "50%", "20%", "1000 times per token"), "busy": ("50%", "1.5 cores", "took 0.1"),
        "quota": ("1.5 cores", "1.5 s per second"), "pages": ("25%",), "unexplained": ("4 threads", "20%"),
    }.items():  # fmt: skip
        assert all(part in told[name] for part in parts), told[name]
    assert told["overhead"] and told["prompt"] == ""
    quiet = Seen(2.0, cores=1)
    names = "disk threads busy quota pages unexplained".split()
    few = {name: remedies._evidence(name, FACTS, quiet, 0) for name in names}
    assert ";" not in few["disk"] and "0 faults" in few["disk"] and "0 threads on 1 core" in few["threads"]
    assert "woken" not in few["threads"] and "host" not in few["busy"]
    assert "0.0 s per second" in few["quota"] and few["pages"].startswith("0%") and "not watched" in few["unexplained"]
    assert "1 thread on" in remedies._evidence("threads", FACTS, Seen(1.0, (0.1,), (0.9,)), 1)
    assert "1.0 s per second" in remedies._evidence("quota", FACTS, Seen(0.5, throttled=0.5), 1)
    assert "30 faults" in remedies._evidence("disk", FACTS, seen, 1)
    edge = remedies._evidence("busy", FACTS, replace(BUSY, stolen=0.05), 10)
    assert "host" not in edge and ";" not in remedies._evidence("disk", replace(FACTS, holding=Holding(0.995)), quiet, 1)
    assert "1%" in remedies._evidence("disk", replace(FACTS, holding=Holding(0.994)), quiet, 1)
    assert "not watched" in remedies._evidence("unexplained", FACTS, replace(BUSY, known=False), 1)


def test_the_longest_window_is_the_evidence_of_all():
    seen = Seen(1.0, read=10), Seen(2.0, read=5 << 20, faults=9), Seen(0.5)
    windows = [Window(count, 0.1, each) for count, each in zip((10, 5, 10), seen, strict=True)]
    rows = [{"disk": 0.04, "memory": 0.06}] * 3
    found = {cause.name: cause for cause in remedies.explained(windows, rows, FACTS, DECODE, {"memory": "told"})}
    assert found["memory"].evidence == "told" and "1.00 MiB" in found["disk"].evidence and found["disk"].flags == "--mlock"


def test_a_sum_names_what_is_more_than_a_hundredth():
    causes = [Cause("memory", 0.060, 0.05, 0.07), Cause("busy", 0.039, 0, 1), Cause("disk", 0.001, 0, 1)]
    told = remedies.sum_told(causes)
    assert told.startswith("100 ms = 60") and told.count("+") == 1 and "disk" not in told
    lines = remedies.table([*causes, Cause("unexplained", 0.0, 0.0, 0.0)])
    assert ["60%" in lines[0], "39%" in lines[1], "1%" in lines[2], "0%" in lines[3]] == [True] * 4 and len(lines) == 4
    assert lines[0].split()[0] == "memory" and "not explained" in lines[3]
    assert "    0%" in remedies.table([Cause("memory", 0.0, 0.0, 0.0)])[0]


# ---- a second turn


class Running:
    """A server on which a position takes a millisecond and each request half a second more."""

    def __init__(self, *turns, ids=(7,) * 8, text="", takes_ids=True, name="llama-server", **more):
        self.turns, self.asked, self.overhead = list(turns), [], 0.5
        self.per_position, self.budget, self.spent, self.context, self.prompts = 0.001, 40.0, 0.0, 0, True
        encode = lambda text, special, ends: [1] * 5 if text == "five" and not special and not ends else []  # noqa: E731
        protocol = SimpleNamespace(takes_ids=takes_ids)
        self.server = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode), protocol=protocol, name=name)
        self.first = turn(ids=ids, text=text)
        vars(self).update(more)

    def prompt(self, count):
        return [5] * count

    def further(self, count):
        return [9] * count

    def ask(self, prompt, tokens, cached=True):
        self.asked.append((len(prompt), tokens, cached, prompt[-1]))
        return self.first if len(self.asked) == 1 else self.turns[len(self.asked) - 2]


def turn(first=0.5, computed=None, cached=None, fault="", ids=(), text=""):
    report = SimpleNamespace(computed=computed, cached=cached)
    return SimpleNamespace(first=first, fault=fault, ids=ids, text=text, report=report)


COLD = turn(2.0)
TURNS = {  # what the second turn answers, and the same without the cache -> (computed, again)
    "what is new": (turn(0.5, 17, 199), COLD, (17, 0)), "all": (turn(0.5, 216, 0), COLD, (216, 199)),
    "one more": (turn(0.5, 18), COLD, (18, 1)),
    "more than there is": (turn(0.5, 999), COLD, (999, 199)), "less than is new": (turn(0.5, 3), COLD, (3, 0)),
    "by a short time": (turn(0.8), COLD, (43, 0)), "by a long time": (turn(1.7), COLD, (173, 156)),
    "longer": (turn(9.0), COLD, (216, 199)),
    "no time at all": (turn(0.4), COLD, (0, 0)), "half": (turn(1.25), COLD, (108, 91)),
    "less than half": (turn(1.24), COLD, (107, 0)),
    "nothing to compare": (turn(0.596), turn(fault="an error"), (108, 91)),
    "a cold one as fast": (turn(0.6), turn(0.5), (216, 199)),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNS)
def test_what_a_second_turn_computes_again_is_by_account_or_by_time(name):
    """192 positions, 8 of an answer and 16 that are new: the last of the answer was never computed."""
    on, off, (computed, again) = TURNS[name]
    running = Running(on, off)
    assert second_turn.measured(running) == {
        "positions": 216, "new": 16, "computed": computed, "again": again, "seconds": on.first,
        "seconds_without_cache": None if off.fault else off.first,
    }  # fmt: skip
    assert running.asked == [(192, 8, True, 5), (216, 1, True, 9), (216, 1, False, 9)]


@pytest.mark.parametrize("name, cached, again", [("Ollama", None, 0), ("Ollama", 0, 199), ("llama-server", None, 199)])
def test_ollama_counts_what_it_had_as_computed(name, cached, again):
    assert second_turn.measured(Running(turn(0.6, 216, cached), COLD, name=name))["again"] == again


@pytest.mark.parametrize("more, length", [
    ({}, 192), ({"per_position": 0.1}, 48), ({"per_position": 10 / 192}, 48), ({"per_position": 0.052}, 192),
    ({"budget": 10.0, "spent": 8.0, "per_position": 0.0052}, 192),
    ({"budget": 10.0, "spent": 8.0, "per_position": 1 / 192}, 48),
    ({"context": 232}, 192), ({"context": 231}, None), ({"per_position": 0.1, "context": 88}, 48), ({"prompts": False}, None),
])  # fmt: skip
def test_a_turn_is_as_long_as_time_and_context_allow(more, length):
    running = Running(turn(0.5, 17), COLD, **more)
    found = second_turn.measured(running)
    assert (found and found["positions"]) == (length and length + 8 + 16)
    assert [each[0] for each in running.asked[:1]] == [length] * bool(length)


@pytest.mark.parametrize("running", [
    Running(turn(fault="x"), COLD), Running(turn(first=None), COLD), Running(first=turn(fault="x")),
    Running(server=SimpleNamespace(tokenizer=None)),
])  # fmt: skip
def test_what_cannot_be_asked_is_no_measurement(running):
    assert second_turn.measured(running) is None


def test_a_server_that_takes_text_gets_another_prompt_of_that_length():
    running = Running(turn(0.5, 17), COLD, ids=(), text="five", takes_ids=False)
    assert second_turn.measured(running)["positions"] == 192 + 5 + 16 and running.asked[2] == (213, 1, False, 5)


# ---- the limits of a file


def test_the_work_of_a_file_is_two_operations_a_weight(monkeypatch):
    """The head once a prompt, a third of an expert's stack for each token, and no product with rows or vectors."""
    uses = [Use("token_embd.weight", 90, 90, 1, 9), Use("output.weight", 40, 20), Use("blk.0.ffn_up.weight", 100, 50),
            Use("blk.0.ffn_down_exps.weight", 60, 30, 2, 6), Use("blk.0.norm.weight", 8, 32)]  # fmt: skip
    monkeypatch.setattr(bounds_of, "uses_of", lambda file: uses)
    tensors = {use.name: SimpleNamespace(shape=(use.elements,) if "norm" in use.name else (1, use.elements)) for use in uses}
    work = bounds_of.work_of(SimpleNamespace(tensors=tensors), 10)
    assert work.token_bytes == 10 + 20 + 50 + 10 + 32 and work.token_operations == 2 * (40 + 100 + 20)
    assert work.prompt_operations == 2 * (10 * 120 + 40) and work.tokens == 10 and work.prompt_bytes > work.token_bytes
    del uses[1]
    tied = bounds_of.work_of(SimpleNamespace(tensors=tensors), 10)
    assert tied.prompt_operations == 10 * tied.token_operations == 10 * 240, "no head is known"


def test_a_roof_is_bytes_over_bandwidth_and_operations_over_rates(monkeypatch):
    roof, work = Roof(100.0, {"float32": 10.0, "int8": 80.0, "int16": 40.0}, {}), FileWork(200.0, 9.0, 400.0, 160.0, 8)
    assert roof.decode(work) == {"seconds": 2.0, "bytes": 200.0, "bandwidth": 100.0}
    assert roof.decode(work, 50.0)["seconds"] == 2.5
    rows = roof.prompt(work)
    assert {kind: (row["seconds"], row["tokens_per_second"], row["by"]) for kind, row in rows.items()} == {
        "float32": (2.0, 0.5, "arithmetic"), "int8": (0.5, 2.0, "memory"), "int16": (0.5, 2.0, "arithmetic")}  # fmt: skip
    for gbps, best in ((1e-8, 100.0), (3e-7, 300.0)):
        monkeypatch.setattr(bounds_of.slices, "read_gbps", lambda gbps=gbps: gbps)
        bounds_of.again(roof)
        assert roof.bandwidth == pytest.approx(best)
    monkeypatch.setattr(bounds_of.arithmetic, "probe", lambda: {"int8": SimpleNamespace(best=7.0, method="m")})
    found = bounds_of.measured()
    assert (found.bandwidth, found.rates, found.methods["int8"]) == (pytest.approx(300.0), {"int8": 7.0}, "m")


@pytest.mark.parametrize("file, told", [(None, None), (Path("a.gguf"), "a.gguf")])
def test_facts_of_an_engine_are_plain_data(file, told):
    assert EngineFacts("x", file=file).to_json()["file"] == told


@pytest.mark.parametrize("given, each", [((6.0, 3, 4), 2.0), ((6.0, 0, 4), None), ((6.0, 3, 4, 0, None, "broke off"), None)])
def test_a_pass_is_a_speed_of_the_tokens_that_came(given, each):
    assert Pass(*given).per_token == each
