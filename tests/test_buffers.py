"""Buffers: memory is used again, but never while anybody can see it."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.cpu.buffers import ARENA, Buffers, PassBuffers
from kit.lab.synthetic.write import synthesize
from kit.trace import Trace


def test_memory_is_used_again_only_when_every_view_is_gone():
    buffers = Buffers(least=1)
    tensor = buffers.empty((4, 8), torch.float32)
    address, view = tensor.data_ptr(), tensor[1].t()
    del tensor
    assert buffers.free_bytes == 0
    other = buffers.empty((32,), torch.float32)
    assert other.data_ptr() != address
    del view
    assert buffers.free_bytes == 128
    assert buffers.empty((2, 32), torch.float16).data_ptr() == address


def test_the_limit_and_as_much_as_the_largest_are_kept():
    buffers, trace = Buffers(limit=1000, least=1), Trace()
    sizes = (400, 3000, 300, 200)  # of a decode, each let go before the next
    for _ in range(3):
        for nbytes in sizes:
            buffers.empty((nbytes,), torch.uint8, trace)
    assert [span.nbytes for span in trace.spans] == [*sizes] and buffers.free_bytes == 3900  # never fresh twice
    buffers.empty((500,), torch.uint8)
    assert buffers.free_bytes == 4000  # the longest unused one, 400, went


def test_a_huge_piece_is_kept_for_a_steady_loop_and_let_go_after_it():
    buffers, trace, others = Buffers(limit=1000, least=1, recent=10), Trace(), [100, 300, 400] * 3
    for nbytes in (100, *[5000, *others] * 7):  # the huge one comes once in ten, and not at the counter's own turns
        buffers.empty((nbytes,), torch.uint8, trace)
    assert [span.nbytes for span in trace.spans] == [100, 5000, 300, 400] and buffers.free_bytes == 5800
    for nbytes in others * 2:
        buffers.empty((nbytes,), torch.uint8, trace)
    assert buffers.free_bytes == 800 and len(trace.spans) == 4  # the huge one went, the others did not


def test_what_is_free_goes_back_where_a_new_piece_does_not_fit(monkeypatch):
    room, made = 1000, np.empty
    buffers = Buffers(limit=1000, least=1)

    def empty(nbytes, dtype):
        if nbytes + buffers.free_bytes > room:
            raise MemoryError
        return made(nbytes, dtype)

    monkeypatch.setattr(np, "empty", empty)
    buffers.empty((600,), torch.uint8)
    assert buffers.empty((700,), torch.uint8).numel() == 700 and buffers.free_bytes == 0
    with pytest.raises(MemoryError):
        buffers.empty((2000,), torch.uint8)


def test_what_is_small_is_left_to_the_allocator():
    buffers = Buffers()
    assert buffers.empty((4, 8), torch.float32).shape == (4, 8) and buffers.empty((3,), np.dtype("f4")).dtype == np.float32
    assert buffers.free_bytes == 0
    buffers.empty((2**15,), torch.float32)
    assert buffers.free_bytes == 2**17


def test_a_trace_counts_the_bytes_of_fresh_memory():
    buffers, trace = Buffers(limit=1000, least=1), Trace()
    tensor = buffers.empty((10, 10), torch.float32, trace)
    del tensor
    again, other = (buffers.empty((n,), torch.float32, trace) for n in (100, 99))
    assert [(span.what, span.nbytes) for span in trace.spans] == [("fresh", 400), ("fresh", 396)]
    assert again.numel() != other.numel()


def test_misses_use_the_memory_of_what_was_let_go(tmp_path):
    with kit.open(synthesize(tmp_path / "tiny.gguf", "tiny-granite", "Q4_K_M")) as file:
        weights = kit.Weights(file, kit.LRU(2**18))
        model = kit.Transformer(weights, linear="dequantized")
        cache, fresh = model.new_cache(8), []
        for _ in range(4):
            model.step([1], cache)
            fresh.append(sum(span.nbytes for span in weights.trace.spans if span.what == "fresh"))
            assert sum(span.what == "dequantize" and span.nbytes >= 2**17 for span in weights.trace.spans)
            weights.trace.clear()
    assert fresh[2:] == [0, 0], fresh


def test_a_tensor_outlives_its_pool():
    tensor = Buffers(least=1).empty((3,), torch.float32).fill_(7)
    assert tensor.tolist() == [7, 7, 7]


@given(st.lists(st.tuples(st.sampled_from([16, 32, 48]), st.booleans()), max_size=40))
def test_no_two_living_tensors_share_memory(steps):
    buffers, living = Buffers(limit=100, least=1), []
    for number, (size, drop) in enumerate(steps):
        living.append((number, buffers.empty((size,), torch.uint8).fill_(number)))
        if drop:
            living.pop(len(living) // 2)
        assert all((tensor == value).all() for value, tensor in living)
        assert buffers.free_bytes <= 100 + 48


def test_threads_never_get_the_same_memory():
    buffers, wrong = Buffers(least=1), []

    def work(value):
        for _ in range(300):
            tensor = buffers.empty((256,), torch.uint8).fill_(value)
            if not (tensor == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_pass_uses_memory_again_and_leaves_none():
    """Of sizes within an eighth, while it or another pass runs; what outlives both goes back to the system."""
    results = PassBuffers(least=1)
    results.empty((100,), torch.uint8)
    assert results.free_bytes == 0  # no pass runs
    with results.kept():
        result = results.empty((10, 10), torch.float32)
        address = result.data_ptr()
        del result
        with results.kept():
            again = results.empty((1, 101), torch.float32)
            assert (again.data_ptr(), again.shape, results.free_bytes) == (address, (1, 101), 0)
            del again
        assert results.empty((105,), torch.float32).data_ptr() != address and results.free_bytes > 400
        last = results.empty((7,), torch.float32).fill_(3)
    assert results.free_bytes == 0 and (last == 3).all()
    del last
    assert results.free_bytes == 0


def test_layers_of_a_prompt_share_memory(monkeypatch, tmp_path):
    """What products, norms and attention give of a second layer is no fresh memory."""
    fresh, made, each = [], Buffers._fresh, []
    monkeypatch.setattr(ARENA.results, "least", 1)
    monkeypatch.setattr(PassBuffers, "_fresh", lambda *given: fresh.append(given) or made(*given))
    for layers in (2, 4):
        with kit.open(synthesize(tmp_path / f"{layers}.gguf", "tiny-llama", layers=layers)) as file:
            model = kit.Transformer(file, linear="dequantized")
            fresh.clear()
            model.logits([1, 2, 3], -1)
            each.append(len(fresh))
    assert each[0] == each[1] > 0 and ARENA.results.free_bytes == 0
