"""What every test shares."""

import collections
import functools
import gc
import multiprocessing
import os
import shutil
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings

sys.modules.setdefault("rfc3987_syntax", None)  # as kit.lab.report does: two seconds of each worker

# Whatever this shell says bytecode is written, or hundreds of processes compile all of kit and tests, each two seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

gc.set_threshold(50_000, 20)  # of 700: the collector takes an eighth of compiling, and finds nothing

settings.register_profile("quick", deadline=None)  # how long an example takes, beside other processes, is no fault
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("KIT_EXAMPLES", "quick"))

# Kernels are compiled once for all processes, those of other installations of the kit included.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "kernels"))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a background job; tests send it to what they start
    signal.signal(signal.SIGINT, signal.default_int_handler)
# As in the kit's own processes (kit.tune_torch): the threads of torch would spin for 3 ms after each operation, on a core that
# other workers need, three quarters of a test's CPU time. Programs of users get the environment without it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ |= {"OMP_WAIT_POLICY": "passive", "KIT_TUNED": "OMP_WAIT_POLICY"}
# So would those of numpy's products, which are references of tests: one thread, in this process alone.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401
os.environ["KIT_PATIENCE"] = "0"  # the other half of the tests keeps the machine busy


def pytest_runtest_logfinish():
    """Models that tests leave open wait for the collector, which runs seldom here; select() takes no file beyond 1,024."""
    if len(os.listdir("/dev/fd")) > 500:
        gc.collect()


@pytest.fixture(autouse=True)
def quiet(monkeypatch, request):
    """Words do not depend on what else runs beside the tests; the fixture ``crowded`` says that something does, and
    ``measured_load`` that it is measured. Nor do they on how much runs of this kind of machine differ: on one whose runs
    differed by a third, a page's verdict was another."""
    monkeypatch.setattr("kit.lab.measuring.drift.machine_id", lambda: "new")
    if "crowded" not in request.fixturenames:
        monkeypatch.setattr("kit.lab.measuring.busy.Busy.seen", lambda self, others: self)
    if "measured_load" not in request.fixturenames:
        monkeypatch.setattr("kit.lab.measuring.state.cores_used_by_others", lambda: 0.0)
        monkeypatch.setattr("kit.lab.measuring.busy.look.__defaults__", (0.0,))  # it sleeps for what nobody asks


@pytest.fixture
def measured_load():
    """For a test with processes that compute beside it."""


# Of each kernel, what it takes beside its tokens and for each of them: rows are the fastest of a few, and floats of many.
TAKES = {"rows": (0.0, 1.0), "few": (1.5, 0.5), "tiles": (4.0, 0.5), "floats": (3.5, 0.5)}


@pytest.fixture(autouse=True, scope="session")
def crossings_by_rule():
    """The kernel for so many tokens is the same in each run and on each machine, and no other one is compiled. Other processes
    measure, and so do tests with the fixture ``measured_crossings``."""
    from kit.cpu import crossings

    def times(_, activations, tokens, *of):
        names = crossings.candidates(activations, tokens, crossings._ALIKE in of)
        return {name: TAKES[name][0] + TAKES[name][1] * tokens for name in names}

    with pytest.MonkeyPatch.context() as patch:
        real = crossings._times
        patch.setattr(crossings, "_times", times)
        yield real


@pytest.fixture
def measured_crossings(crossings_by_rule, monkeypatch):
    """Which kernel multiplies is measured, as it is for a user."""
    monkeypatch.setattr("kit.cpu.crossings._times", crossings_by_rule)


@pytest.fixture(autouse=True, scope="session")
def one_process_says_what_a_process_takes():
    """Each test has a store of its own, and starts two seconds of another process for it."""
    from kit.lab.measuring import process

    with pytest.MonkeyPatch.context() as patch:
        real = process._of_a_process
        patch.setattr(process, "_of_a_process", functools.cache(real))
        yield real


@pytest.fixture
def measured_process(one_process_says_what_a_process_takes, monkeypatch):
    """What a process takes is asked of another process."""
    monkeypatch.setattr("kit.lab.measuring.process._of_a_process", one_process_says_what_a_process_takes)


@pytest.fixture(autouse=True)
def close_figures():
    """Figures drawn by a test go with it."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(autouse=True)
def own_measurements(monkeypatch, tmp_path_factory, request):
    """Each test has a store of measurements of its own (kit.lab.measuring.measurements), which is made at the first write."""
    monkeypatch.setenv("KIT_MEASURED", str(tmp_path_factory.getbasetemp() / f"measured-{abs(hash(request.node.nodeid))}"))


@pytest.fixture
def invented_machine(monkeypatch):
    """Runs of notebooks are on a machine that nobody has."""
    from invented import MACHINE

    monkeypatch.setattr("kit.lab.measuring.machine.of_run", lambda folder: MACHINE)


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory):
    """An open tiny model in Q4_K_M."""
    import kit
    from kit.lab.synthetic.write import cached_model

    with kit.open(cached_model("tiny-llama", mix="Q4_K_M", folder=tmp_path_factory.mktemp("models"))) as file:
        yield file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder for the files of a test module."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def call():
    """``call(function, *args)`` runs a function of triton_worker in a process that interprets Triton's kernels."""
    from triton_worker import interpret

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=interpret) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.fixture(scope="session", params=["smollm2-135m", "gemma-3-270m"])
def trained(request):
    """The path of each trained model in turn."""
    return _fetched(request.param)


@pytest.fixture(scope="session")
def smollm2():
    """The path of SmolLM2 135M."""
    return _fetched("smollm2-135m")


def _fetched(name):
    """The path of a trained model; where it is not at hand a skip that says so. Damaged parts or a full disk are an error."""
    from kit.errors import GGUFError
    from kit.gguf.trained import fetch

    try:
        return fetch(name)
    except GGUFError as error:
        if "not on this machine" not in str(error):
            raise
        pytest.skip(str(error))


# The files that take most CPU time, first, so that no worker is left with one at the end.
FIRST = (
    "aarch64 smoke activations cells device fused hf hf_engine jupyterlab sweep triton_model gpu_session benchmarks experts "
    "ahead quants_dequantize quants_new_formats transformer attention_page triton report_browser reproduce explain first_token "
    "frontier triton_tiles codec_tiles pressure wheel server_causes busy quants_choice docs server tile_notebooks "
    "gates attention"
).split()


def pytest_collection_modifyitems(items):
    place = {f"test_{name}": number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))


# A skip whose reason holds the text on the left could have been met on a machine of which the right is true.
COULD_BE_MET = {
    "no Chromium": lambda: shutil.which("apt-get") and os.geteuid() == 0,
    "no make": lambda: shutil.which("apt-get") and os.geteuid() == 0,
    "not installed: pip install": lambda: True,
    "could not import": lambda: True,
    "not on this machine: kit fetch": lambda: True,
    "no aarch64 under QEMU": lambda: shutil.which("apt-get") and shutil.which("dpkg-deb") and sys.version_info[:2] == (3, 11),
    "KIT_SKYPILOT_PYTHON": lambda: os.environ.get("KIT_SKYPILOT_PYTHON"),
}
_skips = collections.Counter()


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        _skips[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_collectreport(report):
    if report.skipped:
        _skips[report.longrepr[2].removeprefix("Skipped: ")] += 1


def _avoidable():
    return [r for r in _skips if any(text in r and met() for text, met in COULD_BE_MET.items())]


def pytest_sessionfinish(session):
    """With KIT_STRICT, as in CI, a skip that this machine could have met fails the run."""
    if os.environ.get("KIT_STRICT") and _avoidable() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if _skips:
        terminalreporter.section("skipped, by reason")
        for reason, count in _skips.most_common():
            could = "  <- this machine could meet it" if reason in _avoidable() else ""
            terminalreporter.write_line(f"{count:5}  {reason}{could}")
