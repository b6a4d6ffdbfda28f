"""Pages of 2 MiB: a file that was written in small pieces is read again, and nobody's numbers change."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGUFWriter

import kit
from kit.errors import GGUFError
from kit.gguf import large_pages
from kit.gguf.mapped import MappedFile
from kit.lab.commands.cli import main
from kit.lab.measuring import doctor
from kit.lab.synthetic.write import synthesize
from kit.system import advise, forget, page_sizes

SIZE = 96 << 20


@pytest.fixture
def path(tmp_path):
    """A file in pieces of 4 KiB, as `dd bs=4k` writes one."""
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    with open(tmp_path / "small.bin", "wb", buffering=0) as file:
        for start in range(0, SIZE, 4096):
            file.write(data[start : start + 4096])
        os.fsync(file.fileno())
    return tmp_path / "small.bin"


def read(file):
    """The bytes, by the page tables of this process."""
    return int(np.bitwise_xor.reduce(file.data.view(np.uint64)))


def test_small_pages_are_read_again(path, monkeypatch):
    monkeypatch.setattr(large_pages, "SLOWEST", 0)  # a disk that others use may be slow
    file, trace = MappedFile(path), kit.Trace()
    before, address = read(file), file.data.ctypes.data
    held, large = page_sizes(file.data)
    if held == 0:
        assert large_pages.begin([file], trace) is None  # this system does not tell
        return
    assert large < large_pages.FEW * held
    large_pages.begin([file], trace).join()
    (span,) = trace.spans
    assert (read(file), file.data.ctypes.data) == (before, address)
    assert span.what == "large pages" and span.tensor == "small.bin"
    if span.outcome == "done":
        assert span.nbytes == SIZE and large_pages.share(file.data) > large_pages.FEW
        assert large_pages.begin([file], trace) is None  # once is enough
    else:  # a file system without them: no more than two pieces went
        assert "gives no large pages" in span.outcome and span.nbytes <= 2 * large_pages.PIECE


def test_pieces_that_have_large_pages_are_left_alone(path):
    """A copy by `cp` may be half large: the large half is not read again, and does not end the reading of the other."""
    file = MappedFile(path)
    before, half = read(file), large_pages.PIECE
    with open(path, "rb", buffering=0) as handle:
        if large_pages.read_again(file.data[:half], handle)[1] != "done":
            pytest.skip("this file system gives no large pages")
        assert 0.3 < large_pages.share(file.data) < 0.4
        assert large_pages.read_again(file.data, handle) == (SIZE - half, "done")
    assert large_pages.share(file.data) > large_pages.FEW and read(file) == before


def test_a_file_that_another_process_maps_ends_the_reading(path):
    """Its pages cannot be dropped: to try all of them took time from every token, even where a part has large pages."""
    file = MappedFile(path)
    read(file)
    with open(path, "rb", buffering=0) as handle:
        last = file.data[2 * large_pages.PIECE :]
        assert advise(last, "unmap") and forget(handle, 2 * large_pages.PIECE, len(last)) and advise(last, "populate")
        if (large_pages.share(file.data) or 0) < 0.3:
            pytest.skip("this file system gives no large pages")
        other = "import sys, numpy as np; data = np.memmap(sys.argv[1], np.uint8, 'r'); data[::4096].sum()"
        command = [sys.executable, "-c", f"{other}; print(flush=True); sys.stdin.read()", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            done, outcome = large_pages.read_again(file.data, handle)
            child.stdin.close()
    assert "another process maps the file" in outcome and done <= 2 * large_pages.PIECE


def test_a_folder_says_what_it_gives(path, tmp_path):
    """As the file of the test above says, through a folder that does not exist yet."""
    file = MappedFile(path)
    read(file)
    with open(path, "rb", buffering=0) as handle:
        outcome = large_pages.read_again(file.data, handle)[1]
    known = page_sizes(file.data)[0] > 0
    assert doctor.large_pages_in(tmp_path / "new") is (outcome == "done" if known else None)


def test_generate_says_that_it_read_a_file_again(tmp_path, monkeypatch):
    path = synthesize(tmp_path / "m.gguf", "tiny-llama")
    monkeypatch.setattr(large_pages, "LEAST", 0)
    monkeypatch.setattr(large_pages, "share", lambda data: 0.25)
    monkeypatch.setattr(large_pages, "read_again", lambda data, handle, slowest: (len(data), "done"))
    done = CliRunner().invoke(main, ["generate", str(path), "--tokens", "1,2", "-n", "3"])
    assert "m.gguf: 25% " in done.stderr and " read again in " in done.stderr
    for pages in ("small", "copied"):
        done = CliRunner().invoke(main, ["generate", str(path), "--tokens", "1,2", "-n", "3", "--pages", pages])
        assert done.exit_code == 0 and "read again" not in done.stderr


def test_a_slow_disk_is_left_alone(path):
    file = MappedFile(path)
    read(file)
    with open(path, "rb", buffering=0) as handle:
        done, why = large_pages.read_again(file.data, handle, slowest=1e18)
    assert done == large_pages.PIECE and ("slower than" in why or "cannot" in why)


def test_a_file_that_becomes_shorter_ends_the_reading(path):
    file = MappedFile(path)
    os.truncate(path, SIZE // 2)
    with open(path, "rb", buffering=0) as handle:
        assert large_pages.read_again(file.data, handle) == (0, "this system cannot, or the file has become shorter")


@pytest.mark.parametrize("why", ["small", "closed", "little", "not in memory"])
def test_what_gains_nothing_is_left_alone(path, why, monkeypatch):
    if why == "little":
        monkeypatch.setattr(large_pages, "LEAST", SIZE + 1)
    if why == "not in memory":
        monkeypatch.setattr(large_pages, "resident", lambda data: 0.5)
    began = []
    monkeypatch.setattr(large_pages, "read_again", lambda *given: began.append(given) or (0, ""))
    model = path.with_name("model.gguf")
    writer = GGUFWriter(model, "llama")
    writer.add_tensor("a", np.fromfile(path, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = kit.open(model, pages="small" if why == "small" else "large")
    read_all = int(file.raw("a").view(np.uint64).sum())
    if why == "closed":
        file.close()
    file.enlarge_pages(kit.Trace())
    assert began == [] and read_all >= 0


def test_a_file_may_be_closed_meanwhile(path):
    file, trace = MappedFile(path), kit.Trace()
    read(file)
    thread = large_pages.begin([file], trace)
    file.close()
    if thread:
        thread.join()
        assert "cannot" not in trace.spans[0].outcome


def test_a_transformer_asks_after_its_first_pass(tmp_path, monkeypatch):
    path, asked = synthesize(tmp_path / "m.gguf", "tiny-llama"), []
    for pages in kit.gguf.reader.PAGES:
        with kit.open(path, pages=pages) as file:
            monkeypatch.setattr(file, "enlarge_pages", lambda trace, pages=pages: asked.append(pages))
            model = kit.Transformer(kit.Weights(file))
            logits = model.logits([1, 2, 3])
            model.logits([1])
            asked.append(logits)
    assert asked[::2] == [*kit.gguf.reader.PAGES] and all((one == asked[1]).all() for one in asked[1::2])


def test_a_copy_stays_when_the_file_goes(tmp_path, monkeypatch):
    path = shutil.copy(synthesize(tmp_path / "m.gguf", "tiny-llama"), tmp_path / "copied.gguf")
    with kit.open(path, pages="copied") as file:
        before = file.raw("token_embd.weight").copy()
        with pytest.raises(ValueError, match="read-only"):
            file.raw("token_embd.weight")[0] = 0
        view = file.raw("token_embd.weight")
        os.truncate(path, 100)
        assert (view == before).all()  # a map would have killed the process
        with pytest.raises(GGUFError, match="was changed"):
            file.raw("token_embd.weight")
    with pytest.raises(GGUFError, match=r"pages 'big' is not known; choose one of large, small, copied"):
        kit.open(path, pages="big")
    monkeypatch.setattr("kit.gguf.mapped.memory_available", lambda: 10)
    with pytest.raises(GGUFError, match=r'copied\.gguf: a copy takes .* 10 B are free; leave out pages="copied"'):
        kit.open(path, pages="copied")
