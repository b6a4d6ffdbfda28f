"""Plain papermill, as its users know it: from any folder, to a local file or to S3, without the kit's own runner."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from kit.system.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAPERMILL = Path(sys.executable).with_name("papermill")
QUICKEST = "00_start_here"
# Each takes seconds to start, and the tests of kit reproduce run all of their cells: KIT_ALL_NOTEBOOKS=1 runs each here too.
CHOSEN = NOTEBOOKS if os.environ.get("KIT_ALL_NOTEBOOKS") else [path for path in NOTEBOOKS if path.stem == QUICKEST]


def papermill(source, output, folder, **environment):
    """`papermill SOURCE OUTPUT -p profile smoke` in ``folder``, results of the session in ``folder/results``."""
    command = [PAPERMILL, str(source), str(output), "-p", "profile", "smoke", "--no-progress-bar"]
    variables = os.environ | {"KIT_RESULTS": str(folder / "results")} | environment
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=280)


def check(text):
    """The executed notebook has the parameter, every code cell ran, and none failed."""
    notebook = nbformat.reads(text, as_version=4)
    assert notebook.metadata.papermill.parameters == {"profile": "smoke"} and notebook.metadata.papermill.exception is None
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code) and any(cell.outputs for cell in code)
    assert "injected-parameters" in {tag for cell in code for tag in cell.metadata.tags}


@pytest.mark.slow
@pytest.mark.parametrize("source", CHOSEN, ids=lambda path: path.stem)
def test_a_notebook_runs_from_any_folder(source, tmp_path):
    result = papermill(source, "out.ipynb", tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "unknown parameter" not in result.stderr  # papermill only warns of one
    check((tmp_path / "out.ipynb").read_text())
    assert list((tmp_path / "results").glob(f"interactive/{source.stem}.jsonl"))


@pytest.fixture
def which(tmp_path):
    """A notebook with the kernel of ours that prints which Python runs it."""
    cells = [nbformat.v4.new_code_cell("profile = 'quick'", metadata={"tags": ["parameters"]}),
             nbformat.v4.new_code_cell("import sys; print(sys.prefix)")]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=nbformat.read(NOTEBOOKS[0], as_version=4).metadata)
    (tmp_path / "source").mkdir()
    nbformat.write(notebook, tmp_path / "source" / "which.ipynb")
    return tmp_path / "source" / "which.ipynb"


def test_the_kernel_is_this_environments_own(which, tmp_path):
    """`python3` is a kernel of any environment on the machine: papermill from here must start the Python from here."""
    result = papermill(which, "out.ipynb", tmp_path, PATH="/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    printed = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[-1].outputs[0].text.strip()
    assert printed == sys.prefix


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket of moto's server on loopback, and the environment that leads there."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    import boto3

    storage = boto3.resource("s3").Bucket("lab")
    storage.create()
    yield storage, environment
    server.stop()


def test_a_notebook_comes_from_s3_and_goes_to_s3(bucket, which, tmp_path):
    storage, environment = bucket
    storage.upload_file(str(which), "in.ipynb")
    result = papermill("s3://lab/in.ipynb", "s3://lab/runs/out.ipynb", tmp_path, **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert {item.key for item in storage.objects.all()} == {"in.ipynb", "runs/out.ipynb"}
    check(storage.Object("runs/out.ipynb").get()["Body"].read().decode())
    assert not list(tmp_path.glob("*.ipynb"))


@pytest.mark.parametrize("call", ["Session('00', profile='nope')", "Session('00', model='no.gguf', out=out).file()"])
def test_a_wrong_parameter_is_one_line_and_the_line_of_its_cell(call, tmp_path, capsys):
    """Not a page of the kit's own code; what papermill shows at its end is what IPython shows."""
    shell = InteractiveShell.instance()
    shell.user_ns["out"] = str(tmp_path)
    shell.run_cell(f"import kit\n\nlab = kit.{call}")
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(("ReportError: there is no profile 'nope'; choose one of smoke", "GGUFError: "))
    assert second == f"  cell line 3: lab = kit.{call}"
