"""Experts in slots: the same logits at every budget and policy, hits as a replay says, one line for whatever goes wrong."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import kit
from kit.errors import CacheError, GGUFError, ModelError
from kit.lab.commands.cli import main
from kit.lab.findings.offload import OFFLOADS, HeldBy
from kit.lab.predicting.routes import of_spans
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize
from kit.model import budget, readers, slots
from kit.model.readers import Depth
from kit.model.slot_layout import SlotLayout

PROMPT = [5, 6, 7, 8, 9, 10, 11]
POLICIES = [name for name in slots.NAMES if name != "auto"]


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """A plan of these tests has no room for kernels that have never run on this machine."""
    monkeypatch.setattr(budget, "added_by_slots", lambda file: 0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("slots"), {}
    return lambda name: made.get(name) or made.setdefault(name, synthesize(folder / f"{name}.gguf", name))


@pytest.fixture
def file(paths):
    with kit.open(paths("tiny-qwen3moe")) as file:
        yield file


def held(file, experts, policy="LRU", **how):
    """Weights with room for so many experts."""
    return kit.Weights(file, experts=kit.Slots(experts * SlotLayout(file).size, policy, depth=Depth(2, 1 << 16), **how))


def decode(weights, tokens=12, linear="fused-int8", unplanned=""):
    """Logits after a prompt and after each of the tokens that follow it."""
    model = kit.Transformer(weights, linear=linear)
    model.unplanned = unplanned or model.unplanned
    cache, batch, found = model.new_cache(64), PROMPT, []
    for _ in range(tokens):
        found.append(model.step(batch, cache))
        batch = [int(found[-1].argmax())]
    return torch.stack(found)


@pytest.mark.parametrize("unplanned", ["", "one by one"])
@pytest.mark.parametrize("name", ["tiny-qwen3moe", "tiny-gpt-oss", "tiny-deepseek2"])
def test_logits_are_those_without_a_limit_and_hits_those_of_a_replay(paths, name, unplanned):
    with kit.open(paths(name)) as file:
        layout = SlotLayout(file)
        for linear in ("fused", "fused-int8"):
            right = decode(kit.Weights(file), linear=linear, unplanned=unplanned)
            for experts in (layout.used + 1, layout.used + 5, layout.layers * layout.experts + layout.used):
                weights = held(file, experts)
                assert torch.equal(decode(weights, linear=linear, unplanned=unplanned), right), (experts, linear)
                check_hits(weights, file, "LRU", experts - layout.used)
                weights.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_logits_and_the_hits_of_its_replay(file, policy):
    weights = held(file, 7, policy)
    assert torch.equal(decode(weights, 24), decode(kit.Weights(file), 24))
    check_hits(weights, file, policy, 5)
    weights.close()


def check_hits(weights, file, policy, capacity):
    """The live hits are the replay's, access by access; what hits is not read, and what misses is read once."""
    spans = weights.trace.spans
    accesses = of_spans(spans, file).requests()
    live = [span for span in spans if span.what == "access" and "experts[" in span.tensor]
    assert [span.tensor for span in live] == accesses.keys
    _, hit = kit.cache.replay.replay_hits(accesses.counted(), slots.policy_named(policy, capacity, SlotLayout(file).layers))
    assert [span.outcome == "hit" for span in live] == hit.tolist()
    stats, missed = weights.experts.stats, [span.tensor for span in live if span.outcome != "hit"]
    assert (stats.hits, stats.misses) == (hit.sum(), len(missed))
    assert stats.bytes_loaded == sum(span.nbytes for span in live if span.outcome != "hit")
    assert sorted(span.tensor for span in spans if span.what == "read" and "experts[" in span.tensor) == sorted(missed)
    assert all(span.end >= span.start for span in spans)


def test_auto_takes_the_policy_whose_replay_of_the_first_tokens_hits_most(file):
    weights = held(file, 5, "auto")
    assert torch.equal(decode(weights, 40), decode(kit.Weights(file), 40))
    accesses = of_spans(weights.trace.spans, file).requests().counted()
    first = accesses[[token <= slots.FIRST for token in accesses.tokens]]
    hits = {name: kit.replay(first, slots.policy_named(name, 3, 2)).hits for name in POLICIES}
    name = weights.experts.policy_name
    assert hits[name] == max(hits.values()) > hits["LRU"] and f"auto: {name}" in weights.experts.how
    lru, after = kit.LRU(3), slots.policy_named(name, 3, 2)
    found = [lru.request(key, 1) or lru.insert(key, 1) is None for key in first.keys]
    slots.adopt(after, list(lru))
    found += [after.request(key, 1) or after.insert(key, 1) is None for key in accesses.keys[len(first) :]]
    assert weights.experts.stats.hits == hits["LRU"] + sum(
        span.outcome == "hit" for span in weights.trace.spans if span.what == "access" and span.token > slots.FIRST
    )


def test_a_prompt_reads_each_expert_of_a_layer_once(file):
    weights = held(file, 3)
    decode(weights, 1)
    read = [span.tensor for span in weights.trace.spans if span.what == "read" and "experts[" in span.tensor]
    used = {span.tensor for span in weights.trace.spans if span.what == "access" and "experts[" in span.tensor}
    assert len(read) == len(used) and {*read} == used and len(used) > 4


def test_rows_of_a_batch_and_dequantized_weights_come_from_slots_too(file):
    found = []
    for weights in (held(file, 5), kit.Weights(file)):
        model = kit.Transformer(weights, linear="fused")
        caches = [model.new_cache(8) for _ in range(2)]
        logits = model.batch([PROMPT[:3], PROMPT[2:7]], caches, torch.tensor([2, 7]))
        found.append((logits, decode(weights, 4, linear="dequantized")))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_without_a_way_past_the_page_cache_it_is_read_through_it_and_the_trace_says_so(file, monkeypatch):
    refuse = lambda path: (_ for _ in ()).throw(OSError(errno.EINVAL, "Invalid argument"))  # noqa: E731
    for direct in (True, False):
        monkeypatch.setattr(readers, "open_past", refuse)
        weights = held(file, 4, direct=direct)
        assert torch.equal(decode(weights), decode(kit.Weights(file)))
        assert ("Invalid argument" in weights.experts.how) == direct
        outcomes = {span.outcome for span in weights.trace.spans if span.what == "read" and "experts[" in span.tensor}
        assert outcomes == {"through the page cache"}


def test_a_recorded_pass_takes_another_routing_where_a_measurement_asks_for_it(file):
    right = None
    for weights in (held(file, 5), kit.Weights(file, experts=HeldBy(OFFLOADS["mapped"], 0, None))):
        model = kit.Transformer(weights, linear="fused-int8")
        cache = model.new_cache(8)
        model.step(PROMPT[:2], cache)
        weights.experts.route = lambda layer: [layer, 7]
        weights.trace.clear()
        found = [model.step([token], cache) for token in (3, 4)]
        assert of_spans(weights.trace.spans, file).decoded == [[(0, [0, 7]), (1, [1, 7])]] * 2
        right = right or found
        assert all(torch.equal(*pair) for pair in zip(found, right, strict=True))


# ---- what goes wrong


def failing(monkeypatch, error, after=6):
    """Reads fail after some."""
    real, left = os.preadv, iter(range(after))

    def preadv(*how):
        if next(left, None) is None:
            if isinstance(error, int):
                return error
            raise error
        return real(*how)

    monkeypatch.setattr(readers.os, "preadv", preadv)


@pytest.mark.parametrize("unplanned", ["", "one by one"])
@pytest.mark.parametrize(
    "error, message", [(OSError(errno.EIO, "Input/output error"), "cannot be read: Input/output error"), (0, "became shorter")]
)
def test_a_read_that_fails_is_one_error_each_time(file, monkeypatch, error, message, unplanned):
    weights = held(file, 5)
    failing(monkeypatch, error)
    for _ in range(2):
        with pytest.raises(GGUFError, match=rf"tiny-qwen3moe.gguf: .*{message}"):
            decode(weights, unplanned=unplanned)
    before = threading.active_count()
    weights.close()
    assert threading.active_count() <= before - 2
    with pytest.raises(GGUFError):
        decode(weights)


def test_a_file_that_becomes_shorter_is_one_error(paths, tmp_path):
    own = tmp_path / "own.gguf"
    own.write_bytes(paths("tiny-qwen3moe").read_bytes())
    with kit.open(own) as file:
        weights = held(file, 5)
        decode(weights, 2)
        offset = min(stack.offset for stack in SlotLayout(file).stacks.values())
        os.truncate(own, offset)
        with pytest.raises(GGUFError, match=r"own\.gguf: (became shorter|was changed)"):
            weights.experts.forget()
            weights.experts.expects(["blk.1.ffn_down_exps.weight[3]"])
            weights.experts.blocks("blk.1.ffn_down_exps.weight[3]")


@pytest.mark.parametrize("unplanned", ["", "one by one"])
def test_an_interrupt_leaves_slots_that_work_or_say_that_they_do_not(file, monkeypatch, unplanned):
    right = decode(kit.Weights(file), unplanned=unplanned)
    for place, name in ((readers.Load, "wait"), (slots.ExpertSlots, "_start")):
        for after in (0, 3, 11):
            weights, real, left = held(file, 5), getattr(place, name), iter(range(after))

            def interrupted(*how, left=left, real=real):
                if next(left, None) is None:
                    monkeypatch.undo()
                    raise KeyboardInterrupt
                return real(*how)

            monkeypatch.setattr(place, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                decode(weights, unplanned=unplanned)
            try:
                assert torch.equal(decode(weights, unplanned=unplanned), right)
            except CacheError as error:
                assert "interrupted" in str(error) and name == "_start"
            weights.close()


def test_a_slot_is_not_filled_while_an_older_read_into_it_is_on_the_way(file, monkeypatch):
    """As after an interrupt: nobody has waited for the first expert, and its slot is the next one's."""
    real, stuck, go = os.preadv, SlotLayout(file).reads(0, 0, memoryview(bytearray(1 << 20)), "")[0].offset, threading.Event()
    monkeypatch.setattr(readers.os, "preadv", lambda fd, views, at: (at == stuck and go.wait(10), real(fd, views, at))[1])
    weights, names = held(file, 3), [f"blk.0.ffn_gate_exps.weight[{expert}]" for expert in range(4)]
    weights.experts.expects(names[:2])
    slot, later = weights.experts._now["blk.0.experts[0]"], threading.Timer(0.2, go.set)
    later.start()
    weights.experts.expects(names[2:])
    reused = names[2:][[weights.experts._now[f"blk.0.experts[{expert}]"] for expert in (2, 3)].index(slot)]
    found = weights.experts.blocks(reused)
    later.join()
    weights.close()
    assert (found == kit.Weights(file).blocks(reused)).all()


def test_memory_that_the_system_does_not_give_is_one_error(file, monkeypatch):
    refuse = lambda nbytes: (_ for _ in ()).throw(OSError(errno.ENOMEM, "Cannot allocate memory"))  # noqa: E731
    monkeypatch.setattr(slots, "reserve", refuse)
    with pytest.raises(CacheError, match=r"cannot allocate .* for experts \(.*Cannot allocate memory\); give less memory"):
        held(file, 5)
    monkeypatch.undo()
    monkeypatch.setattr(budget, "memory_limit", lambda: 1 << 20)
    with pytest.raises(ModelError, match=r"memory 2\.00 MiB is more than this process may use: give at most 1\.00 MiB"):
        budget.divide(file, "2MiB")


def test_too_little_is_one_error_with_the_least_that_works(file, paths, monkeypatch):
    with pytest.raises(
        CacheError, match=r"one token uses 2 experts per layer, and .* holds only 2 of 140\.0 KiB; .* at least 420\.0 KiB"
    ):
        held(file, 2)
    with pytest.raises(CacheError, match=r"policy 'Belady' is not known; choose one of auto, FIFO, LRU"):
        kit.Slots("1 GiB", policy="Belady")
    with pytest.raises(CacheError, match="not both"):
        kit.Weights(file, cache=kit.LRU("1 GiB"), experts=kit.Slots("1 GiB"))
    with kit.open(paths("tiny-granite")) as dense, pytest.raises(CacheError, match="has no experts"):
        kit.Weights(dense, experts=kit.Slots("1 GiB"))
    monkeypatch.setattr(budget, "process_bytes", lambda file: 0)
    for name in ("tiny-qwen3moe", "tiny-granite"):
        with kit.open(paths(name)) as small:
            with pytest.raises(ModelError, match=rf"{name}.gguf: memory 10\.00 KiB is too little: .* give at least ") as told:
                budget.divide(small, "10KiB", 32)
            value, unit = str(told.value).split()[-2:]
            least = float(value) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]
            weights, found = budget.weights_within(small, int(least * 1.005), context=32)
            assert not found.whole
            assert torch.equal(*(decode(each, 4, unplanned="one by one") for each in (weights, kit.Weights(small))))


INTERRUPTED = """
import os, sys, time
from kit.lab.commands.cli import main
from kit.lab.findings.offload import OFFLOADS, HeldBy
from kit.lab.measuring import process
from kit.model import budget, readers
real, process.process_bytes = os.preadv, lambda file=None: 0
budget.added_by_slots = lambda file: 0
def slow(*how):
    print("reading", flush=True)
    time.sleep(0.5)
    return real(*how)
readers.os.preadv = slow
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_generation_from_slots_at_once(paths):
    arguments = ["generate", str(paths("tiny-qwen3moe")), "--tokens", "1,2", "-n", "60", "--memory", "1800KiB", "--json"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *arguments], **how)
    while process.stdout.readline() != "reading\n":
        assert process.poll() is None, process.stderr.read()
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130 and process.stderr.read() == "kit: interrupted\n"


# ---- one budget for the whole program


@pytest.mark.parametrize("name", ["tiny-qwen3moe", "tiny-granite"])
def test_the_parts_of_a_budget_add_up_to_the_memory(paths, name, monkeypatch):
    monkeypatch.setattr(budget, "process_bytes", lambda file: 0)
    with kit.open(paths(name)) as file:
        kinds = set()
        for memory in (1280 << 10, 1536 << 10, 64 << 20) if "moe" in name else (700 << 10, 750 << 10, 64 << 20):
            found = budget.divide(file, memory, 32)
            parts = found.process + found.history + found.page_cache + (found.slots or found.pinned)
            assert parts <= memory and (found.whole or parts == memory) and str(found)
            kinds.add((found.whole, found.slots > 0, found.pinned > 0))
        mixture = name == "tiny-qwen3moe"
        assert kinds == {(True, False, False), (False, mixture, not mixture)}
        dense = sum(info.nbytes for key, info in file.tensors.items() if "_exps." not in key and key != "token_embd.weight")
        assert found.dense == dense + (file.tensors["token_embd.weight"].nbytes if "output.weight" not in file.tensors else 0)


def test_generate_stays_within_a_budget_and_says_what_it_held(paths, monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.process.process_bytes", lambda file=None: 0)
    path = paths("tiny-qwen3moe")
    plain = ["generate", str(path), "--tokens", "5,6,7", "-n", "20", "--ignore-end", "--json"]

    def ran(*more):
        run = CliRunner().invoke(main, [*plain, *more])
        return json.loads(run.stdout) if not run.exit_code else run.stderr

    right = ran()
    for policy in ("LRU", "LFU", "auto"):
        told = ran("--memory", "1500KiB", "--policy", policy)
        assert told["tokens"] == right["tokens"] and f" by {policy}" in str(told["cache"]) and "experts" in str(told["memory"])
        assert 0 < told["experts"]["hits"] < told["experts"]["hits"] + told["experts"]["misses"] and told["experts"]["hit_rate"]
    assert ran("--memory", "1GiB")["cache"] == "straight from the file" and right["memory"] is right["experts"] is None
    assert "is too little" in ran("--memory", "200KiB") and "is too little" in ran("--memory", "200KiB", "--linear", "fused")
    assert "--policy has no" in ran("--policy", "LFU")


@pytest.mark.slow
def test_the_peak_of_a_process_stays_within_its_memory(tmp_path):
    """A mapped file of 640 MiB passes it."""
    changes = {"hidden_size": 2048, "intermediate_size": 1024}
    more = {"expert_count": 90, "expert_feed_forward_length": 1024}
    tiny = GEOMETRIES["tiny-qwen3moe"]
    path = synthesize(tmp_path / "large.gguf", replace(tiny, **changes, more=tiny.more | more))
    plain = [sys.executable, "-c", "from kit.lab.commands.cli import main; main()", "generate", str(path)]
    plain += ["--tokens", ",".join(map(str, range(1, 200))), "-n", "8", "--ignore-end", "--json"]
    within = ["--memory", "750MiB"]  # the first such run compiles the kernels of slots, which no plan knows of
    found = [
        json.loads(subprocess.run([*plain, *more], capture_output=True, check=True).stdout) for more in (within, [], within)
    ][1:]
    assert found[0]["tokens"] == found[1]["tokens"] and found[1]["experts"]["misses"]
    assert found[1]["peak_memory_bytes"] <= 750 << 20 < found[0]["peak_memory_bytes"]


def test_a_dense_model_without_a_way_past_the_page_cache_is_read_through_it(paths, monkeypatch):
    monkeypatch.setattr(budget, "process_bytes", lambda file: 0)
    monkeypatch.setattr("kit.model.pinned.open_past", lambda path: (_ for _ in ()).throw(OSError(errno.EINVAL, "no")))
    with kit.open(paths("tiny-granite")) as file:
        weights, found = budget.weights_within(file, "700KiB", context=32)
        assert weights.mapped and "no way past it" in str(found)


def test_perplexity_within_a_budget_is_that_without(paths, monkeypatch):
    monkeypatch.setattr(budget, "process_bytes", lambda file: 0)
    for name, memory in (("tiny-qwen3moe", "1900KiB"), ("tiny-granite", "1050KiB")):
        plain, found = ["perplexity", str(paths(name)), "--tokens", "40", "--context", "16", "--json"], []
        for more in ([], ["--memory", memory]):
            run = CliRunner().invoke(main, [*plain, *more])
            assert not run.exit_code, run.output
            found.append(json.loads(run.stdout))
        assert found[0]["perplexity"] == found[1]["perplexity"] and found[0]["memory"] is None
        assert ("experts" if "moe" in name else "pinned") in found[1]["memory"]
    for more, told in (
        (["--policy", "LFU"], "--policy has no effect"),
        (["--memory", "1GiB", "--linear", "matmul"], "own blocks"),
    ):
        assert told in CliRunner().invoke(main, [*plain, *more]).stderr


# ---- readers


def test_the_probe_takes_the_fewest_readers_that_are_as_fast(monkeypatch, tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(128 << 20)
    speed = {1: 1.0, 2: 1.9, 4: 2.9, 8: 3.0, 16: 3.01}
    monkeypatch.setattr(readers, "random_gbps", lambda path, count, nbytes, *how, **more: speed[count] - nbytes / 1e10)
    assert readers.probed(path, 1 << 20) == Depth(4, 256 << 10, pytest.approx(2.9 - (256 << 10) / 1e10))
    monkeypatch.setattr(readers, "random_gbps", lambda *how, **more: (_ for _ in ()).throw(OSError()))
    assert readers.probed(path, 1 << 20) == Depth()
    assert readers.probed(path, 1 << 26) == Depth()


def test_every_reader_wakes_at_once(file, monkeypatch):
    """Two threads that compute on two cores held reads back for a millisecond each: a token took 1.3 to 1.8 times as long."""
    woken = []
    monkeypatch.setattr(readers, "wake_at_once", lambda: woken.append(threading.current_thread().name))
    held(file, 5).close()
    assert sorted(woken) == ["kit-reader-0", "kit-reader-1"]


def test_pieces_cover_a_read_once(file):
    layout, slot = SlotLayout(file), memoryview(bytearray(1 << 20))
    for read in layout.reads(1, 3, slot, "x"):
        parts = list(readers._pieces(read, 8192))
        assert sum(len(part.view) for part in parts) == len(read.view) and sum(part.least for part in parts) == read.least
        assert [part.offset for part in parts] == [read.offset + 8192 * number for number in range(len(parts))]
