"""The causes of a server's time and the counters under them, worked out by hand from windows that nobody measured."""

import itertools
import mmap
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.lab.engines import watch
from kit.lab.engines.owner import Owner
from kit.lab.engines.watch import Holding, Seen, Watch
from kit.lab.explaining.causes import DECODE, DEEP, Cause, Window, account, largest, split, with_depth
from kit.system.processes import Map, Thread, Work

MANY = {"waited": (0.6,) * 4, "ran": (0.4,) * 4}  # threads on two cores
LOST = {"waited": (0.0, 0.0), "ran": (0.2, 0.2), "sleeps": 4000, "faults": 1000, "kernel": 0.4, "disk": 0.1, "others": 0.3}
ALL = {"waited": (0.3, 0.3), "ran": (0.1, 0.1), "others": 5.0, "disk": 0.1, "faults": 1, "throttled": 0.1}
SPLITS = {  # of a token of 0.1 s -> (seconds of the window, what is seen, arguments, seconds by cause without the unexplained)
    "nothing is known": (1.0, MANY | {"known": False, "throttled": 1.0}, {}, {}),
    "no thread is known": (0.5, {"others": 5.0}, {}, {}),
    "a group that is held back": (2.0, {"throttled": 1.2, "waited": (0.6,) * 4, "ran": (0.2,) * 4}, {}, {"quota": 0.06}),
    "on three of four cores": (2.0, {"throttled": 1.2, "cores": 4, "waited": (0.4,) * 3, "ran": (0.5,) * 3}, {},
                              {"quota": 0.04}),
    "what its threads ran": (2.0, {"throttled": 1.2, "cores": 4, "waited": (0.4,) * 3, "ran": (0.7,) * 3}, {}, {"quota": 0.03}),
    "no thread, held back": (0.5, {"throttled": 0.2}, {}, {"quota": 0.04}),
    "faults and the kernel": (2.0, {"disk": 0.3, "faults": 300, "kernel": 0.4}, {}, {"disk": 0.05}),
    "read ahead, and woken": (1.0, {"disk": 0.2, "faults": 100, "read": 24000 * mmap.PAGESIZE, "sleeps": 8100, "kernel": 0.32,
                                    "waited": (0.0, 0.0), "ran": (0.4, 0.4)}, {}, {"disk": 0.044, "threads": 0.024}),
    "one fault": (1.0, {"disk": 0.3, "faults": 1, "kernel": 0.2}, {}, {"disk": 0.05}),
    "swap": (1.0, {"disk": 0.4, "read": 400, "swapped": 300}, {}, {"disk": 0.01, "swap": 0.03}),
    "swap alone": (1.0, {"disk": 0.4, "read": 100, "swapped": 300}, {}, {"swap": 0.04}),
    "a byte of swap": (1.0, {"disk": 0.4, "swapped": 1}, {}, {"swap": 0.04}),
    "a byte from disk": (1.0, {"disk": 0.4, "read": 1}, {}, {"disk": 0.04}),
    "more than all": (1.0, {"disk": 0.9, "faults": 9, "kernel": 0.5}, {"memory": 0.025},
                      {"disk": 0.08, "memory": 0.02}),
    "a wait without a read": (1.0, {"disk": 0.5}, {}, {}),
    "a slow way to the client": (1.0, {}, {"reported": 0.07}, {"overhead": 0.03}),
    "pages": (1.0, {}, {"pages": 0.005}, {"pages": 0.005}),
    "others while none ran": (1.0, {"waited": (0.2, 0.1), "ran": (0.1, 0.1), "others": 5.0}, {}, {"busy": 0.08}),
    "others while any waited": (1.0, {"waited": (0.5, 0.2), "ran": (0.4, 0.4), "others": 5.0}, {}, {"busy": 0.06}),
    "no longer than they ran": (1.0, {"waited": (0.2, 0.1), "ran": (0.1, 0.1), "others": 0.3}, {}, {"busy": 0.03}),
    "waits that are none": (1.0, {"waited": (0.05, 0.05), "ran": (0.1, 0.1), "others": 5.0}, {}, {"busy": 0.00975}),
    "all of these": (0.5, ALL, {"reported": 0.09}, {"disk": 0.01, "quota": 0.02, "overhead": 0.01, "busy": 0.04}),
    "a host that takes": (1.0, {"stolen": 0.4}, {}, {"busy": 0.02}),
    "of one core": (1.0, {"stolen": 0.4, "cores": 1}, {}, {"busy": 0.04}),
    "takes all": (1.0, {"stolen": 4.0}, {"memory": 0.025}, {"busy": 0.08, "memory": 0.02}),
    "threads and others": (1.0, MANY | {"others": 2.0}, {"memory": 0.02}, {"threads": 0.024, "busy": 0.024}),
    "threads alone": (1.0, MANY, {"memory": 0.02}, {"threads": 0.048}),
    "threads asleep": (2.0, LOST, {"memory": 0.003}, {"disk": 0.015, "threads": 0.08}),
    "asleep beside all": (2.0, LOST | {"throttled": 0.2}, {"memory": 0.003, "reported": 0.09},
                          {"disk": 0.015, "quota": 0.01, "overhead": 0.01, "threads": 0.06}),
    "four asleep on two cores": (1.0, {"waited": (0.0,) * 4, "ran": (0.2,) * 4, "sleeps": 8000, "kernel": 0.04, "others": 0.5},
                                 {}, {"threads": 0.039}),
    "on cores of others": (1.0, {"waited": (0.0,) * 4, "ran": (0.2,) * 4, "sleeps": 8000, "kernel": 0.04, "others": 2.0},
                           {}, {"threads": 0.004}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLITS)
def test_a_token_is_divided_as_its_rules_say(name):
    seconds, seen, given, right = SPLITS[name]
    memory, pages = given.get("memory", 0.01), given.get("pages", 0.0)
    window = Window(10, 0.1, Seen(seconds, **({"cores": 2} | seen)), given.get("reported"))
    right = {"memory": memory} | right
    right["unexplained"] = max(0.0, 0.1 - sum(right.values()))
    found = split(window, memory, pages)
    assert {each: found[each] for each in found if each in right or found[each] > 1e-12} == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize("sleeps, faults, woken", [
    (2001, 0, 2001), (2000, 0, 0), (3000, 900, 2100), (3000, 1000, 0), (5, 9, 0),
])  # fmt: skip
def test_threads_are_woken_where_that_is_often(sleeps, faults, woken):
    """500 times a second each: 2,000 of two threads in two seconds, without the sleeps of faults."""
    assert Seen(2.0, (0.0, 0.0), sleeps=sleeps, faults=faults).woken == woken


def test_causes_of_windows_are_their_means_and_add_up():
    found = {cause.name: cause for cause in account([{"memory": 1.0, "disk": 0.2}, {"memory": 3.0}], DEEP)}
    assert {name: cause.seconds for name, cause in found.items()} == {"memory": 2.0, "disk": 0.1, "unexplained": 0.0}
    assert 0 < found["memory"].low < 0.01 and found["memory"].high > 1000, "two samples say next to nothing"
    assert {cause.of for cause in found.values()} == {DEEP}
    (alone, none) = account([{"memory": 2.0}])
    assert (alone.low, alone.high, alone.of, none.seconds) == (2.0, 2.0, DECODE, 0.0)
    skewed = next(cause for cause in account([{"memory": value} for value in (*[1.0] * 8, 1000.0)]) if cause.name == "memory")
    assert skewed.low == 1.0 and skewed.seconds == 112 == skewed.high, "the interval of a median has the mean as well"


def test_depth_is_what_is_longer_than_near_the_beginning():
    near = [{"unexplained": 0.01}, {"unexplained": 0.03}]
    rows = with_depth([{"memory": 0.1, "unexplained": 0.05}, {"memory": 0.1, "unexplained": 0.01}], near)
    assert rows[0] == pytest.approx({"memory": 0.1, "depth": 0.03, "unexplained": 0.02})
    assert rows[1] == {"memory": 0.1, "depth": 0.0, "unexplained": 0.01}


def test_the_largest_fault_has_more_than_a_tenth_of_its_own_kind_of_token():
    def cause(name, seconds, of=DECODE):
        return Cause(name, seconds, seconds, seconds, of=of)

    rows = [cause("memory", 0.9), cause("disk", 0.1)]
    assert largest(rows) is None and largest([]) is None
    assert largest([*rows, cause("swap", 0.2)]).name == "swap"
    deep = [cause("memory", 1.0, DEEP), cause("depth", 0.5, DEEP)]
    assert largest([*rows, cause("swap", 0.6), *deep]).name == "swap", "0.6 of 1.6 is more than 0.5 of 1.5"
    assert largest([cause("memory", 3.4), cause("swap", 0.6), *deep]).name == "depth", "and less, of 4"


@pytest.fixture
def watched(monkeypatch):
    """A server of process 5 whose counters a test sets."""
    listed = itertools.cycle([(0.0, {7: (1.0, "make")}), (4.0, {7: (9.0, "make")})])
    monkeypatch.setattr(watch, "_list", lambda: next(listed))
    monkeypatch.setattr(watch.processes, "cores_of", lambda process: (2, 1.5))
    monkeypatch.setattr(watch.psutil, "pid_exists", lambda process: process == 5)
    monkeypatch.setattr(watch.psutil, "cpu_count", lambda: 64)
    return lambda **owner: Watch(Owner(**({"process": 5} | owner)))


BEFORE = watch._Counts(10.0, {1: Thread(1.0, 0.5, "S", 100), 2: Thread(3.0, 0.0, "R", 7), 3: Thread(0.0, 0.0, "S", 0)},
                       Work(5, 50, 1.0), 1000, 10, 0.5, 20.0, 1.0)  # fmt: skip
AFTER = watch._Counts(14.0, {1: Thread(3.0, 1.5, "R", 300), 2: Thread(4.0, 5.0, "R", 17), 3: Thread(0.6, 9.0, "S", 900),
                             4: Thread(0.8, 0.4, "R", 4)}, Work(9, 60, 2.5), 1500, 25, 0.75, 28.0, 1.4)  # fmt: skip


def test_a_window_is_the_difference_of_its_counters(watched):
    """Of 4 seconds thread 1 ran 2; thread 3 ran three tenths of that, and is none that computes; thread 4 began meanwhile."""
    seen = watched()
    seen._looks, seen._waits = 4, 1
    assert seen._between(BEFORE, AFTER) == Seen(
        4.0, (0.25, 1.0, 0.1), (0.5, 0.25, 0.2), disk=0.25, kernel=0.5, throttled=0.25, faults=4, read=500, swapped=15, cores=2,
        quota=1.5, others=2.0, stolen=pytest.approx(0.1), busiest=("make (process 7, 2.0 cores)",), sleeps=200 + 10 + 4,
    )  # fmt: skip


def test_counters_that_go_back_are_none_and_nothing_is_a_share_of_no_time(watched):
    back = AFTER._replace(at=10.0, read=900, swapped=9, throttled=0.4, others=19.0, stolen=0.5)
    seen = watched(gpu=True)._between(BEFORE, back)
    assert (seen.seconds, seen.ran, seen.sleeps) == (1e-9, (1.0,) * 3, 0), "a GPU's threads are not watched"
    assert (seen.read, seen.swapped, seen.throttled, seen.others, seen.stolen, seen.disk) == (0, 0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("process, gone", [(None, False), (6, True)])
def test_a_process_that_is_not_there_leaves_the_machine(watched, process, gone):
    seen = watched(process=process)._between(BEFORE, AFTER._replace(threads={}))
    assert (seen.gone, seen.known, seen.cores, seen.quota, seen.others) == (gone, False, 64, float("inf"), 2.0)
    assert seen.kernel == 1.5, "the work of one thread"
    watch.psutil.cpu_count = lambda: None
    assert watched(process=None)._between(BEFORE, AFTER).cores == 1


def test_looks_for_a_disk_are_counted_until_the_end(watched, monkeypatch):
    waits = iter([True, False])
    monkeypatch.setattr(watch.processes, "waits_for_disk", lambda process: next(waits))
    looks, seen = iter([False, False, True]), watched()
    seen._look(SimpleNamespace(wait=lambda seconds: next(looks)))
    assert (seen._looks, seen._waits) == (2, 1)


def test_a_window_begins_without_looks_and_ends_its_thread(monkeypatch):
    monkeypatch.setattr(watch, "_EVERY", 60.0)
    seen = Watch(Owner(os.getpid()))
    assert seen.stop() == Seen(0.0, known=False) and (seen._looks, seen._waits) == (0, 0), "nothing came"
    seen._looks = seen._waits = 9
    seen.start()
    assert seen._sampler.daemon and (seen._looks, seen._waits) == (0, 0)
    done = seen.stop()
    assert not seen._sampler.is_alive() and done.known and done.disk == 0.0 and len(done.ran) >= 1


@pytest.mark.parametrize("process", [None, 5])
def test_what_is_counted_of_a_server_and_without_one(watched, monkeypatch, process):
    """Of one whose reads are not told, they are none."""
    real = watch.psutil.Process
    monkeypatch.setattr(watch.psutil, "Process", lambda number=None: SimpleNamespace(number=number) if number else real())
    monkeypatch.setattr(watch.state, "seconds_of_others", lambda own: 100.0 + len(own))
    monkeypatch.setattr(watch.processes, "threads", lambda number: {number: "thread"})
    monkeypatch.setattr(watch.processes, "work", lambda number: number)
    monkeypatch.setattr(watch.groups, "throttled", lambda number: float(number))
    monkeypatch.setattr(watch.psutil, "cpu_times", lambda: SimpleNamespace(idle=1.0))
    found = watched(process=process)._count()
    right = ({5: "thread"}, 5, 5.0, 102.0) if process else ({}, 0, 0.0, 101.0)
    assert (found.threads, found.work, found.throttled, found.others) == right and found.read == found.stolen == 0
    if process:
        told = SimpleNamespace(io_counters=lambda: SimpleNamespace(read_bytes=7))
        monkeypatch.setattr(watch.psutil, "Process", lambda number=None: told)
        assert Watch._count(SimpleNamespace(owner=Owner(5))).read == 7


def test_a_process_is_listed_with_all_its_seconds(monkeypatch):
    """One that has ended meanwhile is not."""

    def ended():
        raise watch.psutil.NoSuchProcess(2)

    lives, times = SimpleNamespace(pid=1, name=lambda: "make"), SimpleNamespace(user=2.0, system=1.0)
    lives.cpu_times = lambda: times
    monkeypatch.setattr(watch.psutil, "process_iter", lambda: [lives, SimpleNamespace(pid=2, cpu_times=ended)])
    assert watch._list()[1] == {1: (3.0, "make")}


def test_the_busiest_of_the_others_are_three_at_most():
    then = (1.0, {1: (5.0, "a"), 2: (0.0, "b"), 9: (0.0, "own")})
    now = (3.0, {1: (6.0, "a"), 2: (0.1, "b"), 3: (4.0, "c"), 4: (0.5, "d"), 5: (0.2, "e"), 9: (2.0, "own")})
    assert watch._busiest(then, now, {9}) == tuple(
        f"{name} (process {number}, {cores} cores)"
        for name, number, cores in (("c", 3, "2.0"), ("a", 1, "0.5"), ("d", 4, "0.2"))
    )
    assert watch._busiest(then, (3.0, {2: (0.1, "b"), 5: (0.12, "e")}), set()) == ("e (process 5, 0.1 cores)",), "0.05 is quiet"


PARTS = [Map("/m/a.gguf", 200, 100, 40, 0, 0, False), Map("/old/a.gguf", 200, 100, 10, 1, 2, False),
         Map("", 30, 20, 20, 5, 10, False), Map("/lib/b.so", 60, 50, 0, 0, 1, False)]  # fmt: skip


@pytest.mark.parametrize("owner, group, total, right", [
    (Owner(None), (1000, 200), 2000, Holding(1.0)),
    (Owner(None, file=Path("/m/a.gguf")), (1000, 200), 2000, Holding(0.5)),
    (Owner(5, file=Path("/m/a.gguf"), mapped=True), None, 2000, Holding(0.5, 0.25, 13, 6, nodes=(3, 8))),
    (Owner(5, file=Path("/m/a.gguf"), mapped=True), (1000, 200), 1000, Holding(0.5, 0.25, 13, 6, nodes=(3, 8))),
    (Owner(5, file=Path("/m/a.gguf"), mapped=True), (999, 200), 1000, Holding(0.5, 0.25, 13, 6, 999, 200, (3, 8))),
    (Owner(5, file=Path("/m/a.gguf")), (1, 0), 1000, Holding(0.5, None, 13, 6, 1, 0)),
    (Owner(5), (0, 5), 1000, Holding(1.0, None, 13, 6)),
])  # fmt: skip
def test_what_a_server_holds_is_the_sum_of_its_maps(monkeypatch, owner, group, total, right):
    monkeypatch.setattr("kit.gguf.pagecache.resident_fraction", lambda file: 0.5)
    monkeypatch.setattr(watch.processes, "maps", lambda process: iter(PARTS))
    monkeypatch.setattr(watch.processes, "memory_of", lambda process: group)
    monkeypatch.setattr(watch.processes, "nodes", lambda process, path: {1: 8, 0: 3} if path == "/m/a.gguf" else {})
    assert watch.holding(owner, total) == right
