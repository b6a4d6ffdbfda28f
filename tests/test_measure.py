"""The timing protocol on a clock of its own: order, rounds, states kept apart, when it stops."""

import ast
import math
import types

import nbformat
import numpy as np
import pytest

import kit
from kit.lab.measuring import kept, measure
from kit.lab.measuring.state import State
from kit.system.paths import notebooks_folder

FAST, SLOW = State(20.0, 10.0), State(10.0, 10.0)


class World:
    """A simulated clock, work of given durations, and a machine whose states are a list."""

    def __init__(self, *states):
        self.now, self.log, self.states = 0.0, [], list(states or [FAST])

    def clock(self):
        return self.now

    def look(self):
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def work(self, name, seconds):
        def run():
            self.log.append(name)
            self.now += seconds(len(self.log)) if callable(seconds) else seconds

        return run

    def given(self):
        return {"clock": self.clock, "look": self.look}


def test_time_keeps_the_first_call_apart():
    world = World()
    found = measure.time(world.work("a", lambda n: 0.5 if n == 1 else 0.1), 4, min_sample=0.4, clock=world.clock)
    assert found.first == 0.5 and found.samples == pytest.approx((0.1,) * 4)
    assert len(world.log) == 2 + 4 * 4  # the warm-up, one to count by, four calls a sample


def test_pairs_are_taken_in_turn_and_every_other_one_backwards():
    world = World()
    pair = measure.compare(world.work("a", 1.0), world.work("b", 3.0), 10, 0, budget=0, **world.given())
    assert "".join(world.log) == "ab" + "abba" * 5
    assert pair.ratio == 3.0 and measure.interval_of(pair.ratios()) == (3.0, 3.0) and pair.state == FAST and pair.left_out == 0


def noisy(generator, center):
    return lambda n: center * np.exp(generator.normal(0, 0.3))


def test_more_pairs_until_the_edge_is_clear():
    generator = np.random.default_rng(0)
    few, many = (World(), World())
    for world, edge in ((few, 50.0), (many, 1.4)):
        a, b = world.work("a", noisy(generator, 1.0)), world.work("b", noisy(generator, 2.0))
        pair = measure.compare(a, b, 10, 0, edges=(edge, None), budget=1e9, **world.given())
        assert measure.decided(pair.ratios(), (edge,))
        world.pairs = len(pair.ratios())
    assert few.pairs == 10 < many.pairs


def test_samples_of_two_states_are_not_mixed():
    """The state changes from fast to slow: the batch in between is dropped, and the ratio is of one state."""
    world = World(FAST, FAST, SLOW)
    slow = lambda n: 2.0 if len(world.states) == 1 else 1.0  # noqa: E731
    pair = measure.compare(world.work("a", 1.0), world.work("b", slow), 10, 0, budget=0, **world.given())
    assert pair.state == SLOW and len(pair.ratios()) == 10 and pair.left_out == 10
    assert set(pair.ratios()) == {2.0}


def test_rounds_of_several_ways_pair_round_by_round():
    world = World()
    ways = {name: (lambda s=seconds: s * (1 + len(world.log))) for name, seconds in (("x", 1.0), ("y", 2.0), ("z", 4.0))}
    found = measure.rounds(ways, 3, 0, **world.given())
    assert list(found.seconds) == ["x", "y", "z"] and set(found.ratios("z", "x")) == {4.0} and found.median("y") == 2.0


@pytest.mark.parametrize("ratios, edges, right", [
    ([1.5, 2.0], (None,), True), ([1.5, 2.0], (3.3,), True), ([1.5, 2.0], (3.0,), False), ([1.5, 2.0], (1.0,), False),
    ([1.5, 2.0], (0.9,), True), ([1.5, 2.0], (9.0, 1.7), False), ([1.0, 1.05], (1.0,), True), ([0.5, 0.51], (0.5,), True),
    ([1.0, 1.06], (1.0,), False),
    ([0.0, 0.0], (0.0,), False),
])  # fmt: skip
def test_an_edge_is_clear_beyond_what_runs_differ_by(monkeypatch, ratios, edges, right):
    """Runs differ by a factor of 1.5, and an interval of a twentieth is as narrow as any."""
    monkeypatch.setattr(measure.drift, "factor", lambda unit: 1.5)
    monkeypatch.setattr(measure, "interval_of", lambda values: (min(values), max(values)))
    assert measure.decided(ratios, edges) is right


@pytest.mark.parametrize("seconds, least, calls, took", [
    (0.1, 0.4, 4, 0.1), (0.1, 0.0, 1, 0.1), (1.0, 0.4, 1, 1.0), (0.0, 5e-9, 5, 0.0), (0.25, 0.6, 2, 0.25),
])  # fmt: skip
def test_a_sample_is_as_many_calls_as_its_time_holds(seconds, least, calls, took):
    """One call is the warm-up and one counts, where a least time is asked for."""
    world = World()
    sample, first = measure.sampler(world.work("a", seconds), least, world.clock)
    before = len(world.log)
    assert before == (2 if least else 1) and first == seconds and sample() == pytest.approx(took)
    assert len(world.log) - before == calls


def test_rounds_are_taken_again_until_enough_are_of_one_state():
    """Of 3 and 3 in two states, whose batches are between probes, three in a row are one state; 9 are tried at most."""
    one = {"x": lambda: 1.0}
    world = World(FAST, SLOW, FAST, FAST)
    found = measure.rounds(one, 3, 0, **world.given())
    assert (len(found.seconds["x"]), found.left_out, found.state) == (3, 6, FAST)
    world = World(*[FAST, SLOW] * 9)
    found = measure.rounds(one, 3, 0, **world.given())
    assert (len(found.seconds["x"]), found.left_out, found.state) == (9, 0, None)
    found = measure.rounds(one, 1, 0, **World(*[FAST, SLOW] * 9).given())
    assert len(found.seconds["x"]) == 3, "a round of no state is none of those that are enough"
    world = World(FAST, SLOW, SLOW, State(40.0, 10.0), State(40.0, 10.0))
    found = measure.rounds(one, 2, 0, **world.given())
    assert (len(found.seconds["x"]), found.state) == (2, SLOW), "the first of two that are as frequent"


def test_more_rounds_are_taken_until_enough_or_the_budget_is_over():
    for budget, enough, count in ((0.0, 9, 2), (100.0, 6, 6), (4.0, 99, 4), (3.0, 99, 4)):
        world = World()
        world.now = 50.0
        ways = {"x": lambda world=world: world.work("x", 1.0)() or 1.0}
        found = measure.rounds(
            ways, 2, budget, lambda so_far, enough=enough: len(so_far.seconds["x"]) >= enough, **world.given()
        )
        assert len(found.seconds["x"]) == count and found.median("x") == 1.0


def test_a_ratio_is_of_the_same_round():
    found = measure.Rounds({"a": (1.0, 2.0, 4.0), "b": (3.0, 2.0, 2.0)})
    assert [*found.ratios()] == [3.0, 1.0, 0.5] and found.ratio == 1.0 and found.median("b") == 2.0


def student_cdf(t, freedom):
    """P(T <= t) from Student's density, by the trapezoid rule."""
    places = np.linspace(0, t, 200_001)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    return 0.5 + np.trapezoid(scale * (1 + places**2 / freedom) ** (-(freedom + 1) / 2), places)


@pytest.mark.parametrize("count", range(2, 6))
@pytest.mark.parametrize(("first", "positive"), [(0.5, True), (0.0, False), (-3.0, False)])
def test_few_samples_have_students_interval_of_logarithms_if_all_are_positive(count, first, positive):
    values = np.array([first, 1.0, 2.5, 4.0, 4.5])[:count]
    low, high = measure.interval_of(values)
    scaled, ends = (np.log(values), np.log([low, high])) if positive else (values, np.array([low, high]))
    error = scaled.std(ddof=1) / math.sqrt(count)
    assert ends.mean() == pytest.approx(scaled.mean())
    assert student_cdf((ends[1] - ends[0]) / 2 / error, count - 1) == pytest.approx(0.975, abs=2e-5)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A function that runs another as a page of one run would: in a process of its own, with what the run has kept."""
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))

    def page(body):
        monkeypatch.setattr(kept, "_calls", type(kept._calls)())
        return body()

    return page


def test_what_was_measured_in_a_run_is_not_measured_again(page, monkeypatch):
    """Call n of a name with these arguments gives again what it gave; calls from inside another belong to it; what no pickle
    holds, and what has an argument that cannot be told, is measured again."""
    calls = []

    @kept.once_a_run
    def inner(value):
        calls.append(value)
        return value

    @kept.once_a_run
    def outer(value):
        return inner(value) + inner(value + 1)

    @kept.once_a_run
    def closure(_=None):
        calls.append("closure")
        return lambda: 0

    def body(values=(1, 10)):
        found = [outer(value) for value in values], inner(5)
        closure()
        closure(object())
        return found

    first = page(body)
    assert first == ([3, 21], 5) and calls == [1, 2, 10, 11, 5, "closure", "closure"]
    assert page(body) == first and calls[7:] == ["closure", "closure"]
    assert page(lambda: body((10,))) == ([21], 5) and calls[9:] == ["closure", "closure"]
    monkeypatch.delenv(kept.FOLDER)
    assert page(body) == first and calls[11:] == calls[:7]


def test_a_page_that_takes_another_branch_reads_no_other_calls_value(page):
    """Values were found by the number of their line and the order of the calls: two calls that differ by a number with a
    fraction, a cache or a function were one, and a page that left the first out read its value for the second."""
    here = 5

    @kept.once_a_run
    def measured(share, policy=None, prepare=None):
        return share, repr(policy), prepare and prepare()

    def body(*left_out):
        calls = {
            "half": (0.5,), "a quarter": (0.25,), "LRU": (1, kit.LRU(4)), "MRU": (1, kit.MRU(4)),
            "a function": (1, None, lambda: 1), "another": (1, None, lambda: 2), "held": (1, None, lambda: here),
        }  # fmt: skip
        return {name: measured(*arguments) for name, arguments in calls.items() if name not in left_out}

    whole = page(body)
    assert len(set(whole.values())) == len(whole)
    for left_out in whole:
        assert page(lambda left_out=left_out: body(left_out)).items() <= whole.items()
    here = 6
    assert page(body)["held"] == (1, "None", 6)
    taken = [page(lambda of=of: measure.rounds({of: lambda: 1.0}, 1, 0, look=lambda: FAST, of="one")) for of in ("a", "b")]
    assert [[*each.seconds] for each in taken] == [["a"], ["b"]]


def test_what_was_measured_inside_another_measurement_is_no_value_of_its_own(page, tmp_path, monkeypatch):
    """Where only drawing is left each that is measured all the same is noted."""
    values = iter(["inside", "direct", "again"])

    @kept.once_a_run
    def inner():
        return next(values)

    @kept.once_a_run
    def outer():
        return inner()

    assert page(lambda: (outer(), inner())) == ("inside", "direct") and page(inner) == "direct"
    monkeypatch.setenv(kept.DRAWS, str(tmp_path / "notes"))
    assert page(lambda: (outer(), inner(), inner())) == ("inside", "direct", "again")
    assert (tmp_path / "notes").read_text() == f"{inner.__module__}.{inner.__qualname__}\n"


def test_a_function_is_told_by_its_name_where_another_process_finds_it_there():
    named, by_code = kept.told(student_cdf), kept.told(lambda: 1)
    assert named == (student_cdf.__module__, "student_cdf") and by_code[0] == kept._code((lambda: 1).__code__)
    main = types.FunctionType(student_cdf.__code__, {"__name__": "__main__"}, "student_cdf")
    assert (main.__module__, kept.told(main)[0]) == ("__main__", kept._code(student_cdf.__code__))


def test_rounds_of_a_page_have_names_of_their_own():
    """By which a page that is rendered again finds them."""
    for path in sorted(notebooks_folder().glob("*.ipynb")):
        code = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        calls = [node for cell in code for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)]
        rounds = [call for call in calls if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "measure.rounds"]
        names = [ast.literal_eval(key.value) for call in rounds for key in call.keywords if key.arg == "of"]
        assert len(rounds) == len({*names}), f"{path.name}: {len(rounds)} rounds have the names {names}"
