"""JupyterLab as `make lab` starts it, in a real browser: every notebook opens, and its cells run in the smoke profile."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import nbformat
import psutil
import pytest

from kit.system.paths import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on the PATH: install the package chromium"),
    pytest.mark.skipif(not shutil.which("make"), reason="no make on the PATH"),
]
NAMES = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
RUN = NAMES if os.environ.get("KIT_ALL_NOTEBOOKS") else ["00_start_here", "08_claims"]  # all ten take minutes
CONTROLS = {  # notebook -> its controls, and the cells that they need
    "03_cache_variants": ("list slider", "parameters imports my-policy policy play"),
    "04_attention": ("slider", "parameters imports start file three-ways equal time-head play"),
    "05_tile_decode": ("list slider", "parameters session record tile entropy families residuals"),
    "07_memory_frontier": ("slider", "parameters imports session disk file tensor ways measure whole best ahead control play"),
    "09_your_model": ("list slider", "parameters imports session file hits hits-figure by-hand at explore"),
}
MOVES = {
    "list": lambda page: page.locator(".jp-NotebookPanel:visible .widget-dropdown select").select_option(index=1),
    "slider": lambda page: page.locator(".jp-NotebookPanel:visible .noUi-handle").press("ArrowRight"),
}
# the panel of `path` on top, and the name of its kernel once that answered: what else JupyterLab opens (its launcher, at a
# moment of its own) may be the current widget, and a status may have been sent before anybody listened
OPEN = """async path => {
    await jupyterapp.restored;
    const panel = await jupyterapp.commands.execute("docmanager:open", { path, factory: "Notebook" });
    await panel.sessionContext.ready;
    const kernel = panel.sessionContext.session?.kernel;
    await kernel?.info;
    jupyterapp.shell.activateById(panel.id);
    while (jupyterapp.shell.currentWidget !== panel) await new Promise(later => setTimeout(later, 50));
    return kernel?.name;
}"""
RUN_ALL = """async () => {
    await jupyterapp.commands.execute("notebook:run-all-cells");
    await jupyterapp.commands.execute("docmanager:save");
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The notebooks, with `smoke` in their parameters cell: what a user edits there."""
    folder = tmp_path_factory.mktemp("lab")
    for name in NAMES:
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
        cell.source, count = re.subn(r'^profile: str = "quick"', 'profile: str = "smoke"', cell.source, flags=re.MULTILINE)
        assert count == 1, name
        nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder


@pytest.fixture(scope="module")
def lab(folder):
    """(address, token) of a server that `make lab` started; it ends with all its kernels."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--no-browser --port={port} --LabApp.expose_app_in_browser=True"
    command = ["make", "--silent", "--old-file=.venv/.notebooks", "lab", f"COPIES={folder}", f"ARGS={options}"]
    environment = os.environ | {
        "KIT_RESULTS": str(folder / "results"), "JUPYTER_CONFIG_DIR": str(folder / ".config"),
        "JUPYTER_RUNTIME_DIR": str(folder / ".runtime"),
        "IPYTHONDIR": str(folder / ".ipython"),
    }  # fmt: skip
    log = folder / "server.log"
    with open(log, "w") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not (found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", log.read_text())) or not _answers(port):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield found[1], found[2]
    finally:
        if process.poll() is None:  # a server that died has nothing left to end: its own error is the one to see
            children = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGTERM)
            for child in psutil.wait_procs(children, timeout=20)[1]:
                child.kill()
            process.wait()


def _answers(port, host="127.0.0.1"):
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


@pytest.fixture(scope="module")
def page(lab):
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install --editable '.[test]'"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page, complaints = browser.new_page(), []
        page.set_default_timeout(300_000)  # of a machine on which other tests compile
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith((lab[0], "data:", "blob:")) or complaints.append(request.url))
        page.goto(f"{lab[0]}/lab?reset&token={lab[1]}")
        page.wait_for_function("() => window.jupyterapp?.commands.hasCommand('docmanager:open')", polling=200)
        yield page
        browser.close()
    assert complaints == []  # of all that was opened: no error on the console, no request to anybody else


def test_the_server_is_on_loopback_and_wants_its_token(lab):
    address, token = lab
    port = int(address.rpartition(":")[2])
    own = {a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET}
    assert [other for other in own - {"127.0.0.1"} if _answers(port, other)] == []
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{address}/api/contents")
    with urllib.request.urlopen(f"{address}/api/contents?token={token}") as answer:
        names = {item["name"] for item in json.load(answer)["content"]}
    assert {f"{name}.ipynb" for name in NAMES} <= names


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_opens_and_its_cells_run(page, folder, name):
    kernel = page.evaluate(OPEN, f"{name}.ipynb")  # in the same page: loading all of JupyterLab takes longer than this
    title = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells[0].source.splitlines()[0].lstrip("# ")
    page.locator(".jp-NotebookPanel:visible h1").first.wait_for()
    assert page.locator(".jp-NotebookPanel:visible h1").first.inner_text().rstrip("¶").strip() == title.replace("`", "")
    assert kernel == "python3"
    if name not in RUN:
        return
    page.evaluate(RUN_ALL)
    code = [cell for cell in nbformat.read(folder / f"{name}.ipynb", as_version=4).cells if cell.cell_type == "code"]
    errors = [output.evalue for cell in code for output in cell.outputs if output.output_type == "error"]
    assert errors == [] and all(cell.execution_count for cell in code)
    assert "smoke" in next(cell for cell in code if "parameters" in cell.metadata.get("tags", [])).source
    assert (folder / "results" / "interactive" / f"{name}.jsonl").exists()


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_move_and_redraw(page, folder, name):
    """Every control of a notebook, without the measurements that it does not need: each draws another picture."""
    controls, needed = (part.split() for part in CONTROLS[name])
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id in needed]
    assert len(notebook.cells) == len(needed)
    nbformat.write(notebook, folder / f"controls-{name}.ipynb")
    assert page.evaluate(OPEN, f"controls-{name}.ipynb") == "python3"
    page.evaluate(RUN_ALL)
    picture = page.locator(".jp-NotebookPanel:visible .jp-OutputArea img").last
    seen = [picture.get_attribute("src")]
    for control in controls:
        MOVES[control](page)
        page.wait_for_function(
            "seen => !seen.includes([...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea img')]"
            ".at(-1)?.src)",
            arg=seen,
            polling=200,  # by a clock: a page that nobody looks at may draw no frames
        )
        seen.append(picture.get_attribute("src"))
    assert len(set(seen)) == 1 + len(controls)
