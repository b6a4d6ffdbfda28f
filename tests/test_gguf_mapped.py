"""A file that is changed while it is mapped: one error before a tensor is read, never a wrong number or a dead process."""

import os
import resource
import shutil
import subprocess
import sys

import nbformat
import psutil
import pytest

import kit
from kit.errors import GGUFError
from kit.lab.compressor import SafetensorsFile
from kit.lab.report.runner import execute
from kit.lab.synthetic.write import synthesize
from kit.system import lost

NAME = "blk.0.ffn_down.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "model.gguf"
    synthesize(path, "tiny-llama")
    return path


@pytest.fixture
def path(original, tmp_path):
    return shutil.copy(original, tmp_path / "model.gguf")


@pytest.mark.parametrize("read", ["raw", "blocks"])
@pytest.mark.parametrize("before", [False, True], ids=["first read", "read before"])
def test_a_file_that_shrank_is_an_error(path, read, before):
    with kit.open(path) as file:
        if before:
            getattr(file, read)(NAME)
        os.truncate(path, 4096)
        with pytest.raises(GGUFError, match=rf"model\.gguf: was changed from [\d,]+ to 4,096 bytes.*'{NAME}' was not read"):
            getattr(file, read)(NAME)


def test_a_file_written_in_place_is_an_error(path):
    with kit.open(path) as file:
        with open(path, "r+b") as handle:
            handle.seek(-1, os.SEEK_END)
            handle.write(b"x")
        os.utime(path, ns=(0, 0))  # a clock of coarse steps would hide the write
        with pytest.raises(GGUFError, match="was changed in place"):
            kit.Weights(file)[NAME]


def test_a_file_that_another_took_the_place_of_stays_readable(path, original):
    with kit.open(path) as file:
        before = file.raw(NAME).copy()
        os.replace(shutil.copy(original, path.with_name("other.gguf")), path)
        assert (file.raw(NAME) == before).all()


def test_closing_lets_go_of_the_file_and_keeps_views(path):
    file = kit.open(path)
    assert opened(path) != []
    view = file.raw(NAME)
    expected = view.copy()
    file.close()
    file.close()
    assert (view == expected).all()
    del view, file
    assert opened(path) == []


def opened(path) -> list[str]:
    """The path of a file, once for each descriptor and map that this process has of it."""
    here = psutil.Process()
    return [held.path for held in here.open_files() + here.memory_maps() if held.path == str(path)]


def test_safetensors_too(tmp_path):
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(64, 64)}, path)
    file = SafetensorsFile(path)
    os.truncate(path, 100)
    with pytest.raises(GGUFError, match="was changed from"):
        file.blocks("w")


SHRINKS = """
import os, sys
import kit
from kit.gguf.mapped import MappedFile, lost
from kit.lab.commands.cli import main

path, passes, pass_ = sys.argv[2], [], kit.Transformer.logits

def shrinking(*given, **more):
    passes.append(1)
    if len(passes) == 3:
        os.truncate(path, 3 * 4096)
    return pass_(*given, **more)

kit.Transformer.logits = shrinking
MappedFile.check = lambda self, tensor: lost.watch(self.path, self._seen)  # the file shrinks after the check
main()
"""


@pytest.mark.parametrize("command", [
    "generate {} --tokens 1,2,3 -n 6", "generate {} --tokens 1,2,3 -n 6 --cache none",
    "perplexity {} --tokens 40 --context 8 --text {}.txt",
])  # fmt: skip
def test_a_lost_page_ends_a_command_with_one_line(path, command):
    """By threads of compiled code, by torch and NumPy in the main thread, and in a run of windows."""
    path.with_name("model.gguf.txt").write_text("one two three four five " * 40, encoding="utf-8")
    before = path.stat().st_size
    ran = subprocess.run([sys.executable, "-c", SHRINKS, *command.format(path, path).split()], capture_output=True, text=True)
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr == f"kit: error: {path}: was changed from {before:,} to 12,288 bytes while it was open: open it again\n"


def test_what_lost_pages_are_told(path):
    status = path.stat()
    same = [str(path), [status.st_size, status.st_mtime_ns]]
    assert lost.told([same]) == f"{path}: a page cannot be read: the disk or the network file system under it failed"
    assert "was changed in place" in lost.told([same, [str(path), [status.st_size, 0]]])
    assert "gone: cannot be read any more: No such file" in lost.told([same, ["gone", [1, 0]]])


def test_a_lost_page_ends_the_notebook_and_names_the_tensor(path, tmp_path):
    """The file shrinks after the check: the notebook's kernel dies, and the run names the tensor that was being read."""
    source = tmp_path / "reads.ipynb"
    code = f"import os, kit\nblocks = kit.open({str(path)!r}).blocks({NAME!r})\nos.truncate({str(path)!r}, 4096)\nblocks.sum()"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), source)
    (tmp_path / "out").mkdir()
    outcome = execute(source, tmp_path / "out" / "reads.ipynb", {})
    assert outcome.status == "failed" and f"the last tensor that it read was '{NAME}' of {path}" in outcome.reason


def test_a_notebook_runs_beside_more_open_files_than_select_can_name(tmp_path):
    source = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), source)
    (tmp_path / "out").mkdir()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip(f"this user may open {before[1]} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    with open(os.devnull) as one:
        others = [os.dup(one.fileno()) for _ in range(1100)]
        try:
            outcome = execute(source, tmp_path / "out" / "empty.ipynb", {})
        finally:
            for descriptor in others:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert outcome.status == "ok", outcome.reason
