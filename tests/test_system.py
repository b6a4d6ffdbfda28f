"""What the kit asks of the operating system: in one package, a row a system, each tested by fakes of its calls."""

import ast
import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import kit
from kit import system
from kit.gguf import pagecache
from kit.lab.measuring import disk
from kit.lab.synthetic.write import cached_model
from kit.system import groups, rows
from kit.system.paths import ROOT

ASKS = re.compile(
    r"sys\.platform|platform\.(?!python_)\w+|os\.(sched_\w+|posix_\w+|O_DIRECT|p?readv|pread|pwrite|cpu_count|process_cpu_count"
    r"|sysconf|register_at_fork|fork|geteuid|uname|name|getloadavg)|fcntl|resource|ctypes\.(CDLL|cdll|util)"
    r"|mmap\.(MAP_|PROT_|PAGESIZE|ALLOC)\w*|multiprocessing\.(get_context|set_start_method)"
)
NAMES = re.compile(r"/proc\b|/sys\b|cgroup|\.so\b|\.dylib\b")  # in texts that are no docstrings
OUTSIDE = {  # file -> what it asks by itself, and why that is the same on every system or its own matter
    "cpu/simd/atomics.py": {"platform.machine"},  # the instruction set, of any system
    "cpu/tasks.py": {"platform.machine"},
    "lab/findings/pressure.py": {"os.preadv", "os.pwrite"},
    "lab/measuring/group.py": {"os.geteuid", "cgroup"},  # swap and groups: root on Linux, or it refuses
    "lab/engines/llama_cpp.py": {"ctypes.CDLL", ".so"},  # another library; Python's extensions end in .so on macOS too
    "lab/measuring/conditions.py": {".so", ".dylib", "/sys"},  # how a peer was built; files that are missing elsewhere
    "lab/measuring/machine.py": {"platform.platform"},  # told, not asked for a decision
    "model/readers.py": {"os.preadv"},
    "model/pinned.py": {"os.preadv"},
}
MAC = {  # what sysctl tells on an M4, whose caches and cores are public
    "machdep.cpu.brand_string": "Apple M4", "hw.perflevel0.logicalcpu": 4, "hw.perflevel1.logicalcpu": 6,
    "hw.perflevel0.l1dcachesize": 131072, "hw.perflevel0.l2cachesize": 16777216, "hw.perflevel0.cpusperl2": 4,
    "hw.optional.arm64": 1,
}  # fmt: skip


def asked(source: str) -> set[str]:
    """What of ASKS and NAMES a module's code has; docstrings and comments may say anything."""
    tree, found = ast.parse(source), set()
    words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            texts, pattern = [f"{node.value.id}.{node.attr}"], ASKS
        elif isinstance(node, ast.Import):
            texts, pattern = [alias.name for alias in node.names], ASKS
        elif isinstance(node, ast.ImportFrom):
            texts, pattern = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)], ASKS
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            found |= set(NAMES.findall(node.value))
            continue
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            texts, pattern = [f"{ast.unparse(node.args[0])}.{getattr(node.args[1], 'value', '')}"], ASKS
        else:
            continue
        found |= {text for text in texts if pattern.fullmatch(text)}
    return found


def test_one_package_asks_the_system():
    package = Path(kit.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        if not name.startswith("system/") and (calls := asked(path.read_text(encoding="utf-8"))):
            found[name] = calls
    assert found == OUTSIDE


ON_MACOS = {  # every call in kit/system -> what asks macOS in its place; "same": that call; "": nothing does
    "sys.platform": "same", "ctypes.CDLL": "same", "resource": "same", "fcntl": "same", "os.register_at_fork": "same",
    "os.cpu_count": "same", "libc().sched_yield": "same", "platform.processor": "same", "platform.machine": "same",
    "mmap.PAGESIZE": "same", "mmap.MAP_ANONYMOUS": "same", "mmap.MAP_PRIVATE": "same", "mmap.MAP_NORESERVE": "same",
    "mmap.MAP_SHARED": "same", "mmap.PROT_READ": "same", "libc().madvise": "same", "libc().mincore": "same",
    "libc().mlock": "same", "libc().msync": "same", "libc().signal": "same", "libc().execve": "same", "libc()._exit": "same",
    "libc().sysctlbyname": "same", "libc().proc_pid_rusage": "same",
    "psutil.virtual_memory": "same", "psutil.cpu_count": "same",
    ".dylib": "same", ".so": ".dylib", "/proc": "libc().sysctlbyname",
    "/sys": "libc().sysctlbyname", "os.sched_getaffinity": "libc().sysctlbyname", "os.O_DIRECT": "fcntl",
    "os.posix_fadvise": "libc().msync", "psutil.Process().io_counters": "libc().proc_pid_rusage",
    "psutil.Process().memory_info": "same", "os.sched_setaffinity": "", "cgroup": "", "libc().syscall": "", "libc().prctl": "",
    "os.sched_getscheduler": "",
}  # fmt: skip


def test_every_call_has_its_row_for_macos():
    sources = [path.read_text(encoding="utf-8") for path in Path(system.__file__).parent.glob("*.py")]
    calls = set().union(*map(asked, sources))
    calls |= set(re.findall(r"libc\(\)\.\w+|psutil\.(?:Process\(\)\.)?\w+(?=\()", "\n".join(sources))) - {"psutil.Process"}
    assert calls == set(ON_MACOS)
    assert {there for there in ON_MACOS.values() if there not in ("same", "")} <= calls
    source = Path(rows.__file__).read_text(encoding="utf-8")
    own = source[source.index("# ---- macOS") : source.index("# ---- the rows")]  # what only macOS's row reaches
    assert not [call for call, there in ON_MACOS.items() if there != "same" and call in own]


@pytest.mark.parametrize("code, call", [
    ("import os\nos.sched_getaffinity(0)", "os.sched_getaffinity"), ("from os import O_DIRECT", "os.O_DIRECT"),
    ("hasattr(os, 'posix_fadvise')", "os.posix_fadvise"), ("open('/proc/self/status')", "/proc"), ("import fcntl", "fcntl"),
    ("def f():\n    import resource", "resource"), ("x = f'lib{name}.dylib'", ".dylib"),
    ("sys.platform == 'darwin'", "sys.platform"),
    ("ctypes.CDLL(None).madvise(0)", "ctypes.CDLL"), ("getattr(mmap, 'MAP_NORESERVE', 0)", "mmap.MAP_NORESERVE"),
])  # fmt: skip
def test_a_new_call_is_seen(code, call):
    assert asked(code) == {call} and asked(f'"""{code}"""') == set()


class Calls:
    """A libc of macOS that answers from MAC and notes what else it is asked."""

    def __init__(self, in_memory=1):
        self.noted, self._in_memory = [], in_memory

    def sysctlbyname(self, name, value, size, new, new_size):
        known = MAC.get(name.decode())
        if known is None:
            return -1
        raw = known.encode() + b"\0" if isinstance(known, str) else known.to_bytes(4, "little")
        if value is not None:
            ctypes.memmove(value, raw, len(raw))
        size._obj.value = len(raw)
        return 0

    def proc_pid_rusage(self, pid, flavor, words):
        assert (pid, flavor) == (os.getpid(), 2)
        words._obj[18] = 5 << 30
        return 0

    def mincore(self, address, nbytes, found):
        ctypes.memset(found, self._in_memory, nbytes.value // rows.PAGE)
        return 0

    def __getattr__(self, name):
        return lambda address, nbytes, *how: self.noted.append((name, nbytes.value, *how)) or 0


@pytest.fixture
def there(monkeypatch):
    """Run as the system of a row: ``there("darwin", **what the C library does)``; ends with the test."""

    def be(row, libc=None):
        monkeypatch.setattr(rows, "HERE", rows.SYSTEMS.get(row, rows.System()))
        monkeypatch.setattr(rows, "libc", lambda: libc)
        for fact in (system.cpu_name, system.cpu_facts, system.last_level_cache):
            fact.cache_clear()
        return libc

    yield be
    for fact in (system.cpu_name, system.cpu_facts, system.last_level_cache):
        fact.cache_clear()


def test_macos_has_an_answer_of_its_own_to_every_question_but_one():
    fields = {field for field, default in zip(rows.System._fields, rows.System(), strict=True)
              if getattr(rows.SYSTEMS["darwin"], field) == default}  # fmt: skip
    assert fields == {"groups", "limits", "page_sizes", "peak"}  # no limit for groups; pages of 16 KiB; ru_maxrss says it


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_stopped_child_ends_with_a_parent_that_is_killed():
    """Engines are stopped between questions; those of a kernel that the system killed stayed behind."""
    child = "import os, signal; from kit.system import end_with_parent; end_with_parent(); print(os.getpid(), flush=True); "
    child += "os.kill(os.getpid(), signal.SIGSTOP)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    number = int(process.stdout.readline())
    process.kill()
    process.wait()
    for _ in range(100):
        if not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    os.kill(number, 9)
    raise AssertionError("the child stayed behind")


def test_the_peak_of_a_process_is_not_that_of_its_parent():
    """ru_maxrss of a new process begins with the memory of the one that started it."""
    held = np.ones(300 << 20, np.uint8)
    told = subprocess.run(
        [sys.executable, "-c", "from kit.system import peak_memory; print(peak_memory())"], capture_output=True
    )
    assert 0 < int(told.stdout) < held.nbytes or sys.platform != "linux"


def test_macos_tells_its_cpu_cores_caches_and_memory(there, monkeypatch):
    there("darwin", Calls())
    assert (system.cpu_name(), system.usable_cores(), system.last_level_cache()) == ("Apple M4", 4, 16 << 20)
    assert system.cpu_facts() == {
        "performance cores": "4", "efficiency cores": "6", "L1 data": "131072", "L2 unified": "16777216", "memory": "unified",
    }  # fmt: skip
    assert system.counters()[1] == 5 << 30
    used = SimpleNamespace(ru_maxrss=7 << 20)
    monkeypatch.setattr(system.resource, "getrusage", lambda who: used)
    assert system.peak_memory() == 7 << 20  # bytes, where Linux tells KiB
    assert system.memory_limit() == system.psutil.virtual_memory().total and system.group_root() is None
    assert system.join_group(1 << 30) == "" and not system.permit_tiles()
    assert system.library_file("llama") == "libllama.dylib"


def test_an_ultra_has_a_cache_for_every_cluster_and_an_intel_mac_one(there, monkeypatch):
    monkeypatch.setitem(MAC, "hw.perflevel0.logicalcpu", 20)
    monkeypatch.setitem(MAC, "hw.perflevel0.cpusperl2", 5)
    there("darwin", Calls())
    assert system.last_level_cache() == 4 * 16 << 20
    for name in [name for name in MAC if "perflevel" in name or "arm64" in name]:
        monkeypatch.delitem(MAC, name)
    monkeypatch.setitem(MAC, "hw.l3cachesize", 12 << 20)
    there("darwin", Calls())
    assert system.last_level_cache() == 12 << 20 and system.usable_cores() == os.cpu_count()
    assert system.cpu_facts() == {"L3 unified": str(12 << 20)}


def test_macos_drops_reads_past_and_advises(there, monkeypatch, tmp_path):
    path, asked = tmp_path / "a", []
    path.write_bytes(bytes(3 * rows.PAGE))
    calls = there("darwin", Calls(in_memory=0))
    monkeypatch.setattr(rows.fcntl, "F_NOCACHE", 48, raising=False)
    monkeypatch.setattr(rows.fcntl, "fcntl", lambda *how: asked.append(how[1:]))
    assert pagecache.drop(path)  # msync of all pages, MS_INVALIDATE; mincore says that none is left
    assert calls.noted == [("msync", 3 * rows.PAGE, 2)]
    os.close(system.open_past(path))  # what is cached would still be taken
    assert asked == [(48, 1)] and calls.noted[1:] == [("msync", 3 * rows.PAGE, 2)]
    assert disk.speed(path).gbps > 0
    calls.noted.clear()
    data = np.memmap(path, np.uint8, "r")
    assert [system.advise(data, how) for how in ("random", "ahead", "lock", "populate")] == [True, True, True, False]
    assert calls.noted == [("madvise", len(data), 1), ("madvise", len(data), 3), ("mlock", len(data))]
    there("darwin", Calls(in_memory=1))
    assert not pagecache.drop(path)  # what it was asked is no proof


V2 = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def v1(controller: str, root: str = "/") -> str:
    return f"35 31 0:32 {root} /sys/fs/cgroup/{controller} rw,relatime - cgroup cgroup rw,{controller}"


@pytest.fixture
def told(there, monkeypatch):
    """Run as Linux with these files alone: ``told({path: text})``, the libc that ``there`` takes second."""

    def be(files, libc=None):
        monkeypatch.setattr(groups, "text_of", lambda path: files.get(str(path), ""))
        monkeypatch.setattr(rows, "text_of", groups.text_of)
        return there("linux", libc)

    return be


def test_linux_tells_its_cpu_and_its_cores(there, told, monkeypatch):
    files = {"/proc/cpuinfo": "processor : 0\nmodel name\t: AMD  EPYC\ncpu family : 25\n\nprocessor : 1\n"}
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    calls = told(files, SimpleNamespace(syscall=lambda *how: how != (158, 0x1023, 18)))
    assert (system.cpu_name(), system.usable_cores()) == ("AMD EPYC", 3)
    assert system.cpu_facts()["cpu family"] == "25"
    assert system.library_file("llama") == "libllama.so"
    assert calls.syscall(1) and system.permit_tiles()
    files["/proc/cpuinfo"] = "processor : 0\nCPU implementer : 0x61\nCPU part : 0x022\n"
    there("linux", calls)
    assert system.cpu_name() == system.platform.machine() and system.cpu_facts()["CPU part"] == "0x022"


def test_a_thread_that_wakes_at_once_keeps_its_priority(there):
    """Asked of Linux as it is, which tells a thread's turns from 6.12 on, and of others, which are asked nothing."""
    if sys.platform == "linux" and tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 12):

        def turns():
            attributes = ctypes.create_string_buffer(48)
            number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
            assert rows.libc().syscall(number, 0, attributes, 48, 0) == 0
            return struct.unpack("IIQiIQQQ", attributes.raw)[3:6:2]

        with ThreadPoolExecutor(1) as pool:
            before, _, after = (pool.submit(call).result() for call in (turns, system.wake_at_once, turns))
        assert after == (before[0], 100_000) != before
    for other in ("darwin", "other"):
        there(other)
        system.wake_at_once()


@pytest.mark.parametrize(
    "quota, cores", [("50000 100000", 1), ("120000 100000", 1), ("150000 100000", 2), ("900000 100000", 3), ("max 100000", 3)]
)
def test_threads_are_no_more_than_every_group_gives_time_to(told, monkeypatch, quota, cores):
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    for place in ("", "/a", "/a/b"):  # its own group, the root, and one between them
        told({"/proc/self/mountinfo": V2, "/proc/self/cgroup": "0::/a/b\n", f"/sys/fs/cgroup{place}/cpu.max": quota})
        assert system.usable_cores() == cores
        words = quota.replace("max", "-1").split()
        folder = f"/sys/fs/cgroup/cpu,cpuacct{place}"
        told({
            "/proc/self/mountinfo": v1("cpu,cpuacct"), "/proc/self/cgroup": "2:cpu,cpuacct:/a/b\n0::/\n",
            f"{folder}/cpu.cfs_quota_us": words[0], f"{folder}/cpu.cfs_period_us": words[1],
        })  # fmt: skip
        assert system.usable_cores() == cores


MIB = 1 << 20
UNLIMITED = str(2**63 - 4096)  # of version 1
STAT_V1 = f"inactive_file 1\nhierarchical_memory_limit {400 * MIB}\n"
STAT_V1 += f"total_inactive_file {20 * MIB}\ntotal_active_file {10 * MIB}\n"
STAT_V2 = f"anon {50 * MIB}\nfile {90 * MIB}\ninactive_anon 5\nactive_file {10 * MIB}\ninactive_file {20 * MIB}\n"


def group_v1(folder, limit, used=0, stat=STAT_V1):
    return {f"{folder}/memory.limit_in_bytes": f"{limit}\n", f"{folder}/memory.usage_in_bytes": f"{used}\n",
            f"{folder}/memory.stat": stat}  # fmt: skip


def group_v2(folder, limit, used=0, stat=STAT_V2):
    return {f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.current": f"{used}\n", f"{folder}/memory.stat": stat}


M1, M2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
SLICES = "/user.slice/user-1000.slice/run-u7.scope"
JOB = "/slurm/uid_1000/job_7/step_0/task_0"
GROUPS = {  # name -> (mounts, /proc/self/cgroup, files of groups, limit in MiB, free in MiB: used 170 with 30 inactive)
    "a container's root, version 2": (V2, "0::/", group_v2(M2, 600 * MIB, 170 * MIB), 600, 460),
    "a container's root, version 1": (v1("memory"), "4:memory:/\n", group_v1(M1, 600 * MIB, 170 * MIB), 600, 460),
    "a container that sees the host's path": (
        v1("memory", "/docker/f00"), "4:memory:/docker/f00\n", group_v1(M1, 600 * MIB, 170 * MIB), 600, 460,
    ),
    "a child of a container's group": (
        v1("memory", "/docker/f00"), "4:memory:/docker/f00/b\n",
        group_v1(f"{M1}/b", 600 * MIB, 170 * MIB) | group_v1(M1, 700 * MIB, 170 * MIB), 600, 460,
    ),
    "the host's path, and the root mounted": (V2, "0::/docker/f00", group_v2(M2, 600 * MIB, 170 * MIB), 600, 460),
    "outside the namespace": (V2, "0::/../b", group_v2(M2, 600 * MIB, 170 * MIB), 600, 460),
    "SLURM: the job limits, its tasks do not": (
        v1("memory"), f"9:cpuset:{JOB}\n4:memory:{JOB}\n0::/\n",
        group_v1(M1, UNLIMITED) | group_v1(f"{M1}/slurm/uid_1000/job_7", 600 * MIB, 170 * MIB) | group_v1(M1 + JOB, UNLIMITED),
        600, 460,
    ),
    "systemd: the slice limits, the scope says max": (
        V2, f"0::{SLICES}", group_v2(M2 + SLICES, "max") | group_v2(f"{M2}/user.slice", 600 * MIB, 170 * MIB), 600, 460,
    ),
    "a low limit that is empty below one that is full": (
        V2, f"0::{SLICES}",
        group_v2(M2 + SLICES, 500 * MIB, 40 * MIB) | group_v2(f"{M2}/user.slice", 600 * MIB, 530 * MIB), 500, 100,
    ),
    "memory.high below memory.max": (
        V2, f"0::{SLICES}",
        group_v2(M2 + SLICES, 900 * MIB, 170 * MIB) | {f"{M2}{SLICES}/memory.high": f"{600 * MIB}\n"}, 600, 460,
    ),
    "hybrid: memory by version 1": (
        "\n".join((v1("memory"), V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))), "4:memory:/a\n0::/b\n",
        group_v1(f"{M1}/a", 600 * MIB, 170 * MIB), 600, 460,
    ),
    "hybrid: memory by version 2": (
        "\n".join((v1("cpu"), V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))), "1:cpu:/c\n0::/b\n",
        group_v2(f"{M2}/unified/b", 600 * MIB, 170 * MIB), 600, 460,
    ),
    "a space in the folder": (
        v1("memory").replace("/sys/fs/cgroup", "/my\\040cgroup"), "4:memory:/\n",
        group_v1("/my cgroup/memory", 600 * MIB, 170 * MIB), 600, 460,
    ),
    "more in use than is allowed": (V2, "0::/", group_v2(M2, 600 * MIB, 900 * MIB), 600, 0),
    "no memory.stat": (V2, "0::/", group_v2(M2, 600 * MIB, 170 * MIB, ""), 600, 430),
    "max": (V2, "0::/", group_v2(M2, "max"), None, None),
    "no limit, version 1": (v1("memory"), "4:memory:/\n", group_v1(M1, UNLIMITED), None, None),
    "no groups": ("", "", {}, None, None),
    "no sense": (
        f"a - b\n{V2}", "::\nx\n0::/\n", group_v2(M2, "much", "x", "inactive_file\n\ninactive_file x y\n"), None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_memory_is_what_the_least_of_the_groups_leaves(name, told, monkeypatch):
    mounts, own, files, limit, free = GROUPS[name]
    machine = SimpleNamespace(total=10_000 * MIB, available=5_000 * MIB)
    monkeypatch.setattr(system.psutil, "virtual_memory", lambda: machine)
    told({"/proc/self/mountinfo": mounts, "/proc/self/cgroup": own} | files)
    assert system.memory_limit() == (limit or 10_000) * MIB
    assert system.memory_available() == (5_000 if free is None else free) * MIB
    machine.available = 50 * MIB  # the machine's own memory counts too
    assert system.memory_available() == min(50, 50 if free is None else free) * MIB


def test_linux_drops_and_reads_past(there, monkeypatch, tmp_path):
    path, asked, opened = tmp_path / "a", [], os.open
    path.write_bytes(bytes(rows.PAGE))
    there("linux", Calls(in_memory=0))
    monkeypatch.setattr(system.os, "posix_fadvise", lambda *how: asked.append(how[1:]), raising=False)
    monkeypatch.setattr(system.os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(system.os, "O_DIRECT", 1 << 14, raising=False)
    assert pagecache.drop(path) and asked == [(0, 0, 4)]
    monkeypatch.setattr(system.os, "open", lambda path, flags: asked.append(flags) or opened(path, os.O_RDONLY))
    os.close(system.open_past(path, os.O_RDWR))
    assert asked[-1] == os.O_RDWR | 1 << 14


@pytest.mark.parametrize("row", ["win32", "plan9"])
def test_another_system_claims_nothing(there, monkeypatch, tmp_path, row):
    path = tmp_path / "a"
    path.write_bytes(bytes(3 << 20))
    there(row)
    monkeypatch.setattr(system, "resource", None)
    monkeypatch.setattr(system, "fcntl", None)
    assert system.cpu_name() and system.cpu_facts() == {} and system.usable_cores() == os.cpu_count()
    assert system.last_level_cache() == 64 << 20 and system.peak_memory() >= system.own_memory() > 1 << 20
    assert not pagecache.drop(path) and pagecache.resident_fraction(path) == 1.0
    assert disk.read_gbps(path) is None and "not known" in str(disk.speed(path))
    data = np.memmap(path, np.uint8, "r")
    assert not any(system.advise(data, how) for how in ("random", "willneed", "ahead", "lock"))
    assert system.lock(None) is None and system.group_root() is None and system.join_group(1) == ""
    system.allow_files(10**6)
    system.limit_memory(1)
    assert bytes(system.reserve(5)) == bytes(5)


def test_the_makefile_asks_for_nothing_that_a_mac_lacks():
    """BSD's tools and make 3.81: no flags of GNU's alone, no features of make 4."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    gnu = r"nproc|readlink -f|sed -i(?!\.)|sed -r|grep -P|xargs -r|tar --|cp --|date -d|stat -c|sha256sum|\$\(file|\$\(let|!="
    assert re.findall(gnu, text) == [] and re.findall(gnu, "sed -i s/a/b/; tar --directory x; JOBS != nproc")


def pretend() -> None:
    """Make this process ask as on a Mac: macOS's row, its calls faked, and nothing of ``os`` that only Linux has."""
    real = rows.libc()

    class There(Calls):
        def __getattr__(self, name):
            return super().__getattr__(name) if name in ("madvise", "mlock", "msync") else getattr(real, name)

    calls = There()
    rows.HERE, rows.libc, rows.fcntl.F_NOCACHE, rows.fcntl.fcntl = rows.SYSTEMS["darwin"], lambda: calls, 48, print
    for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "POSIX_FADV_DONTNEED", "O_DIRECT"):
        vars(os).pop(name, None)


@pytest.mark.parametrize("command, says", [
    (["doctor"], "4 usable (Apple M4)"), (["generate", "MODEL", "--tokens", "1,2,3", "-n", "4"], "kit's own pass"),
])  # fmt: skip
def test_commands_run_where_macos_is_asked(command, says):
    path = str(cached_model("tiny-llama", "Q4_K_M"))
    code = (
        "import sys, test_system; from kit.lab.commands.cli import main; test_system.pretend(); sys.argv = sys.argv[1:]; main()"
    )
    there = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    arguments = [sys.executable, "-c", code, "kit", *(path if word == "MODEL" else word for word in command)]
    ran = subprocess.run(arguments, env=there, capture_output=True, text=True)
    assert ran.returncode == 0 and says in ran.stdout + ran.stderr, ran.stderr
