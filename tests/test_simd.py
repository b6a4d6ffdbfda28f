"""The vector primitives against numpy, in every tier that this CPU can run; the choice of a tier; the cache of kernels."""

import itertools
import math
import operator
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit, types
from numba.core.bytecode import FunctionIdentity
from numba.core.serialize import dumps
from numba.extending import intrinsic

from kit.cpu import simd, tasks
from kit.cpu.simd import isa, tiers, vectors
from kit.cpu.simd.emit import emits_number
from kit.cpu.simd.isa import bfloat_to_float, dot4, float_to_bfloat, half_to_float, lookup
from kit.cpu.simd.memory import load, store, stream
from kit.cpu.simd.registers import several_of, transpose
from kit.cpu.simd.vectors import (
    Static,
    bitcast,
    broadcast,
    convert,
    extract,
    f32x8,
    f32x16,
    high,
    i8x16,
    i8x32,
    i8x64,
    i32x8,
    i32x16,
    interleave,
    jit,
    join,
    low,
    mask16,
    select,
    u8x16,
    u8x32,
    u8x64,
    u16x16,
)
from kit.cpu.tiles import normalize, rans
from kit.errors import KitError

TIERS = [Static(name) for name in simd.available()]


def aligned(count, dtype):
    """An array whose address is a multiple of 64."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def call(kernel, *arguments):
    """Call a kernel with arrays as their addresses."""
    return kernel(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))


# ---- plain LLVM


@jit
def _arithmetic(a, b, out):
    x, y = load(u8x16, a), load(u8x16, b)
    p, q = bitcast(i8x16, x), bitcast(i8x16, y)
    f, g = convert(f32x16, p), convert(f32x16, y)
    store(out, convert(i32x16, x + y))
    store(out + 64, convert(i32x16, p * q))
    store(out + 128, convert(i32x16, x & y) - convert(i32x16, x | 3) + convert(i32x16, 5 ^ y))
    store(out + 192, convert(i32x16, x >> 3) + (convert(i32x16, p >> 2) << 4))
    store(out + 256, f * g - f)
    store(out + 320, select(p < q, f, g) + select(x >= y, f, g) + select(p != q, g, f))
    store(out + 384, convert(i32x16, f * np.float32(0.37)))


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_arithmetic_is_numpys(data):
    x, y = np.frombuffer(data, np.uint8).reshape(2, 16)
    out = np.zeros((7, 16), np.int32)
    call(_arithmetic, x.copy(), y.copy(), out)
    p, q = x.view(np.int8), y.view(np.int8)
    f, g = p.astype(np.float32), y.astype(np.float32)
    assert np.array_equal(out[0], x + y)
    assert np.array_equal(out[1], p * q)
    assert np.array_equal(out[2], (x & y).astype(int) - (x | 3) + (5 ^ y))
    assert np.array_equal(out[3], (x >> 3).astype(int) + ((p >> 2).astype(int) << 4))
    assert np.array_equal(out[4].view(np.float32), f * g - f)
    wanted = np.where(p < q, f, g) + np.where(x >= y, f, g) + np.where(p != q, g, f)
    assert np.array_equal(out[5].view(np.float32), wanted)
    assert np.array_equal(out[6], (f * np.float32(0.37)).astype(np.int32))


@jit
def _lanes(a, out):
    x = load(u8x16, a)
    store(out, join(high(x), low(x)))
    store(out + 16, interleave(low(x), high(x)))
    store(out + 32, broadcast(u8x16, extract(x, 5)))
    store(out + 48, select(bitcast(mask16, load(types.uint16, a)), x, x + 1))


def test_lanes():
    x, out = np.arange(100, 116, dtype=np.uint8), np.zeros((4, 16), np.uint8)
    call(_lanes, x, out)
    bits = np.unpackbits(x[:2], bitorder="little").astype(bool)
    wanted = [np.roll(x, 8), x.reshape(2, 8).T.ravel(), np.full(16, 105), np.where(bits, x, x + 1)]
    assert np.array_equal(out, wanted)


@jit
def _stream(a, out, n):
    for i in range(0, n, 16):
        stream(out + 4 * i, load(f32x16, a + 4 * i))


def test_streamed_stores_arrive():
    a, out = np.random.default_rng(0).random(1024, np.float32), aligned(1024, np.float32)
    call(_stream, a, out, 1024)
    assert np.array_equal(a, out)


def test_no_product_and_sum_is_fused():
    """(1 + e)^2 - 1 in float32 loses e^2; a fused multiply-add would keep it."""

    @jit
    def kernel(a, out):
        x = load(f32x8, a)
        store(out, x * x - np.float32(1))

    a, out = np.full(8, 1 + 2**-12, np.float32), np.zeros(8, np.float32)
    call(kernel, a, out)
    assert np.array_equal(out, a * a - np.float32(1))
    assert out[0] != np.float32((1 + 2**-12) ** 2 - 1)


@jit
def _bfloat(a, out, n):
    for i in range(0, n, 16):
        store(out + 4 * i, bfloat_to_float(float_to_bfloat(bfloat_to_float(load(u16x16, a + 2 * i)))))


def test_every_bfloat_survives():
    a, out = np.arange(2**16, dtype=np.uint16), np.zeros(2**16, np.float32)
    call(_bfloat, a, out, 2**16)
    assert np.array_equal(out, (a.astype(np.uint32) << 16).view(np.float32), equal_nan=True)


# ---- tiers


@jit
def _special(tier, halves, widened, n, table, index, picked):
    for i in range(n):
        store(widened + 4 * i, half_to_float(tier, load(types.uint16, halves + 2 * i)))
    store(picked, lookup(tier, load(u8x16, table), load(u8x16, index)))


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.value)
def test_scalar_halves_and_lookup(tier):
    halves, widened = np.arange(2**16, dtype=np.uint16), np.zeros(2**16, np.float32)
    table, index = np.arange(200, 216, dtype=np.uint8)[::-1].copy(), np.arange(16, dtype=np.uint8) * 7 % 16
    picked = np.zeros(16, np.uint8)
    call(_special, tier, halves, widened, 2**16, table, index, picked)
    assert np.array_equal(widened, halves.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(widened), np.signbit(halves.view(np.float16)))
    assert np.array_equal(picked, table[index])


@jit
def _dots(tier, a, b, out):
    store(out, dot4(tier, broadcast(i32x16, -7), load(u8x64, a), load(i8x64, b)))
    store(out + 64, dot4(tier, broadcast(i32x8, 7), load(u8x32, a), load(i8x32, b)))


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.value)
@pytest.mark.parametrize("fill", [None, (255, -128), (255, 127), (0, -128)])
def test_dot4_never_saturates(tier, fill):
    _check_dot4(_dots, tier, fill)


@pytest.mark.skipif("avx2" not in simd.available(), reason="needs a CPU with AVX2")
def test_dot4_of_avx2_without_vnni_never_saturates(monkeypatch):
    monkeypatch.setattr(isa, "VNNI", ())
    kernel = njit(_dots.py_func)
    for fill in (None, (255, -128), (255, 127), (0, -128)):
        _check_dot4(kernel, Static("avx2"), fill)


def _check_dot4(kernel, tier, fill):
    random = np.random.default_rng(0)
    a, b = random.integers(0, 256, 64, np.uint8), random.integers(-128, 128, 64, np.int8)
    if fill:
        a[:], b[:] = fill
    out = np.zeros(24, np.int32)
    call(kernel, tier, a, b, out)
    sums = (a.astype(np.int32) * b).reshape(16, 4).sum(1)
    assert np.array_equal(out, np.concatenate([sums - 7, sums[:8] + 7]))


@pytest.mark.parametrize("name", simd.available())
def test_self_test_passes_and_can_fail(name, monkeypatch):
    assert simd.self_test(name) == []
    monkeypatch.setattr(tiers, "function", lambda *_: lambda *arguments: None)
    assert simd.self_test.__wrapped__(name) == ["half_to_float", "float_to_half", "lookup", "dot4"]


@pytest.fixture
def fresh_choice():
    tiers._choose.cache_clear()
    yield
    tiers._choose.cache_clear()


@pytest.mark.skipif(len(simd.available()) == 1, reason="needs a CPU of two tiers")
def test_a_failing_tier_is_left_out_aloud(monkeypatch, fresh_choice):
    best, *others = simd.available()
    monkeypatch.setattr(tiers, "self_test", lambda name: ["lookup"] if name == best else [])
    with pytest.warns(UserWarning, match=f"'{best}' fails its self-test"):
        assert simd.tier().value == others[0]
    state, finding, remedy = simd.describe()
    assert state == "note" and f"wrong results from {best}" in finding and remedy
    with pytest.raises(KitError, match=f"'{best}' computes wrong results"):
        simd.tier(best)


def test_no_tier_at_all_is_an_error(monkeypatch, fresh_choice):
    monkeypatch.setattr(tiers, "self_test", lambda name: ["dot4"])
    with pytest.warns(UserWarning), pytest.raises(KitError, match="use backend='reference'"):
        simd.tier()


def test_a_tier_is_chosen_by_argument_then_with_then_variable(monkeypatch):
    assert simd.describe()[0] == "ok"
    monkeypatch.setenv("KIT_SIMD", "plain")
    assert simd.tier().value == "plain"
    best = simd.available()[0]
    with simd.using(best):
        assert simd.tier().value == best and simd.tier("plain").value == "plain"
        with simd.using(None):
            assert simd.tier().value == best
    monkeypatch.setenv("KIT_SIMD", "avx1024")
    with pytest.raises(KitError, match=r"this CPU cannot run the SIMD tier 'avx1024'; it can run .*plain"):
        simd.tier()


def test_a_changed_primitive_makes_cached_kernels_stale(tmp_path):
    (tmp_path / "kernel.py").write_text("1")
    vectors.source_stamp.cache_clear()
    before = vectors.source_stamp(tmp_path)
    assert vectors.source_stamp(tmp_path) == before
    (tmp_path / "kernel.py").write_text("2")
    vectors.source_stamp.cache_clear()
    assert vectors.source_stamp(tmp_path) != before
    assert normalize._cache._cache_file._source_stamp == vectors.source_stamp(Path(rans.__file__).parent)


def test_a_task_is_compiled_once_and_anew_when_its_source_or_its_file_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    compiled = []
    monkeypatch.setattr(tasks, "_compile", lambda *given: compiled.append(given) or compile_task(*given))

    def value(number: str) -> int:
        tasks._loaded.clear()  # as another process
        return tasks.function(tasks.task(adding)(number), 1)(40)

    assert (value("2"), value("2"), len(compiled)) == (42, 42, 1)
    assert (value("3"), len(compiled)) == (43, 2)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert (value("2"), len(compiled)) == (42, 3)
    monkeypatch.setattr(tasks, "source_stamp", lambda folder: "another")
    assert (value("2"), len(compiled)) == (42, 4)


def test_of_two_processes_one_compiles_and_the_other_one_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    code = """if True:
        import sys, time
        from pathlib import Path
        from kit.cpu import tasks
        compiled, here = tasks._compile, Path(sys.argv[1])
        def slowly(*given):
            print("compiled")
            while len(list(here.glob("*.here"))) < 2:
                time.sleep(0.01)
            time.sleep(0.3)  # by now the other one has seen that there is no code
            return compiled(*given)
        tasks._compile = slowly
        (here / f"{sys.argv[2]}.here").touch()
        print(tasks.function(tasks.task(lambda: lambda task: task + 2)(), 1)(40))"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    told = [process.communicate()[0] for process in both]
    assert sorted(told) == ["42\n", "compiled\n42\n"]
    assert not list(tmp_path.glob("*.lock"))


def test_a_process_that_is_stopped_while_it_compiles_holds_up_nobody_for_good(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_PATIENCE", 0.05)
    with tasks._one_process(tmp_path / "kernel.o"):
        with tasks._one_process(tmp_path / "kernel.o"):
            pass
    (tmp_path / "kernel.lock").touch()  # of one that was killed
    monkeypatch.setattr(tasks, "_PATIENCE", 1e6)
    with tasks._one_process(tmp_path / "kernel.o"):
        pass
    (tmp_path / "file").touch()
    with tasks._one_process(tmp_path / "file" / "kernel.o"):  # where no folder can be made
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


compile_task = tasks._compile


def adding(number):
    more = int(number.value)
    return lambda task: task + more


def test_tasks_compiled_in_different_processes_keep_their_own_closures(monkeypatch):
    """Numba numbers the functions of a process: closures of one source compiled first in two processes have the same name."""
    values = []
    for number in (1, 2):
        monkeypatch.setattr(FunctionIdentity, "_unique_ids", itertools.count(10**7))
        symbol, out = f"closures.{number}", np.zeros(256, np.float32)
        tasks._load(symbol, tasks._compile(transposing(number), symbol), ("address",))
        tasks.function(tasks._loaded[symbol], 2)(0, out.ctypes.data)
        values.append(out[0])
    assert values == [1, 2]


def transposing(number):
    @njit
    def too_long_to_be_inlined(address):
        for _ in range(2):
            store16(address, 64, transpose(load16(address, 64)))
        store16(address, 64, transpose(load16(address, 64)))
        store(address, np.float32(number))

    return lambda task, address: too_long_to_be_inlined(address)


load16, store16 = several_of(16)


def test_a_task_that_needs_this_process_is_refused():
    with pytest.raises(TypeError, match=r"needs numba_.* of this process"):
        tasks.task(lambda: lambda task: math.frexp(float(task))[1])()


def test_what_a_call_that_is_left_out_needs_too_is_linked():
    """A linker takes only what is called already: nothing calls the leaf when it comes to what ``left_out`` needs."""
    never = intrinsic(lambda _: emits_number(False))
    leaf = vectors.inner(lambda x: 2 * x)
    left_out, deep = vectors.inner(lambda x: leaf(x)), vectors.inner(lambda x: leaf(x))
    middle = vectors.inner(lambda x: deep(x) + 1)

    def build():
        def product(task):
            if never():
                return left_out(task)
            return middle(task)

        return product

    assert tasks.function(tasks.task(build)(), 1)(20) == 41


def test_what_kernels_call_may_be_called_from_python():
    """Without a wrapper for Python such a call ends the process: so it is made in another one; after a kernel has it, too."""
    code = """if True:
        from kit.cpu import tasks
        from kit.cpu.simd.vectors import inner
        add = inner(lambda a, b: a + b)
        twice = inner(lambda a: add(a, a))
        task = tasks.task(lambda: lambda task, a: twice(a))()
        print(tasks.function(task, 2)(0, 4), twice(4), add(2, 3), add(2.5, 3))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "8 8 5 5.5\n", done.stderr


def test_kernels_compile_where_no_cache_can_be_written(monkeypatch):
    def njit(function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return options | {"function": function}

    monkeypatch.setattr(vectors, "njit", njit)
    assert vectors.jit(operator.add) == {"nogil": True, "error_model": "numpy", "function": operator.add}


def test_the_key_of_a_cached_kernel_does_not_depend_on_what_was_compiled_before():
    """Numba hashes what a kernel closes over; a type's number (_code) is the next free one of the process."""
    key = dumps(Static("invented"))
    assert b"StaticType" not in key and b"_code" not in key and b"invented" in key
