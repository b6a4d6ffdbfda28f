"""Functions that the Triton tests run in another process, where TRITON_INTERPRET=1 is set before triton is imported."""

import os
from collections import Counter
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np


def interpret():
    """The first call in the process. From here on new tensors are filled with NaN, or the greatest integer."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.use_deterministic_algorithms(True)


def dequantize(blocks, qtype, dtype, offset=0):
    """Dequantized bits, from a filled tensor with a guard after it; ``offset`` changes the alignment of the blocks."""
    import torch

    import kit
    from kit.gguf.formats import FORMATS

    moved = torch.zeros(blocks.size + offset, dtype=torch.uint8)[offset:].view(blocks.shape)
    moved.copy_(torch.from_numpy(blocks))
    weights = blocks.size // FORMATS[qtype].block_bytes * FORMATS[qtype].block_elements
    memory = torch.full((weights + 64,), -12345.0, dtype=getattr(torch, dtype))
    kit.dequantize(moved.view(-1), qtype, dtype, backend="triton", out=memory[:weights])
    assert (memory[weights:] == torch.tensor(-12345.0).to(memory.dtype)).all(), "written behind the end"
    return memory[:weights].float().numpy()


def linear(blocks, qtype, x):
    """(tokens, out) float32."""
    import torch

    from kit.cuda import linear

    return linear.linear(torch.from_numpy(blocks), qtype, torch.from_numpy(x)).numpy()


def linear_as_of(rows, blocks, qtype, x):
    """(the same with as many rows a program as a matrix of ``rows`` rows has, how many those are)."""
    from kit.cuda import linear as module
    from kit.gguf.formats import FORMATS

    at_once = module.rows_of_a_program(FORMATS[qtype], rows, len(x))
    with patch.object(module, "rows_of_a_program", lambda *_: at_once):
        return linear(blocks, qtype, x), at_once


def fused(blocks, x, gate, weight, residual, factor):
    """Q8_0 blocks: of x * silu(gate), of RMSNorm(x) * weight, and residual + factor * W x."""
    import torch

    from kit.cuda.linear import apply, pack_activations, pack_norm

    blocks, x, gate, weight, residual = map(torch.from_numpy, (blocks, x, gate, weight, residual))
    gated = apply(blocks, "Q8_0", pack_activations(x, gate))
    normed = apply(blocks, "Q8_0", pack_norm(x, weight, 1e-5))
    return [y.numpy() for y in (gated, normed, apply(blocks, "Q8_0", pack_activations(x), residual.clone(), factor))]


def tiles(serial, on_device):
    """The matrix, or the text of the CodecError."""
    from kit import codec
    from kit.codec.triton import decode_on_device, upload
    from kit.cuda import tile_decoder
    from kit.errors import CodecError

    tile_decoder.TOUCHED_TILES = 256 * on_device  # one of the two ways fetches streams before it decodes, the other does not
    loaded = codec.Tiles.from_bytes(serial, "w")
    try:
        if on_device:
            return decode_on_device(upload(loaded)).numpy()
        return codec.decode(loaded, "triton", out=np.full(loaded.shape, 77, np.int8))
    except CodecError as error:
        return str(error)


def streamed(matrices, passes=1):
    """What each of ``passes`` gives while it lasts (name, values), the bytes of a pass; and the text of the CodecError.

    Tiles come in serial form. Each matrix is poisoned once it has been used.
    """
    from kit import codec
    from kit.errors import CodecError
    from kit.lab.on_device.compressed import Streamed

    seen, nbytes = [], 0
    try:
        stream = Streamed(
            {
                name: codec.Tiles.from_bytes(matrix, name) if isinstance(matrix, bytes) else matrix
                for name, matrix in matrices.items()
            }
        )
        nbytes = stream.nbytes
        for _ in range(passes):
            for name, matrix in stream:
                seen.append((name, matrix.numpy().copy()))
                matrix.fill_(77)
    except CodecError as error:
        return seen, nbytes, str(error)
    return seen, nbytes, ""


class _Stream:
    """A stand-in for a CUDA stream. ``seen``: stream -> number of its steps that have certainly ended."""

    def __init__(self):
        self.seen = Counter()

    def step(self):
        self.seen[self] += 1
        return Counter(self.seen)

    def wait_event(self, event):
        self.seen |= event.seen

    def wait_stream(self, stream):
        self.seen |= stream.seen


def order_of_a_stream(count, broken_off):
    """Three passes over ``count`` matrices on pretended streams, the last one ended after ``broken_off`` of them.

    (kind, address, step, known steps of the other stream) for each copy and each use in the order of the calls; and whether
    the computing stream knows of every copy in the end.
    """
    import torch

    from kit.lab.on_device.compressed import Streamed

    copying, computing = _Stream(), _Stream()
    current, log, copy = [computing], [], torch.Tensor.copy_

    class Event:
        def __init__(self):
            self.seen = Counter()

        def record(self, stream=None):
            self.seen = Counter((stream or current[-1]).seen)

    @contextmanager
    def stream_of(stream):
        current.append(stream)
        yield
        current.pop()

    def note(kind, tensor):
        stream = current[-1]
        step, other = stream.step(), computing if stream is copying else copying
        log.append((kind, tensor.data_ptr(), step[stream], step[other]))

    def noted_copy(target, source, non_blocking=False):
        note("copy", target)
        return copy(target, source)

    streamed = Streamed({f"{i}": np.full((2, 3), i, np.int8) for i in range(count)})
    streamed._copying = copying
    pretended = patch.multiple(torch.cuda, Event=Event, stream=stream_of, current_stream=lambda: current[-1])
    with pretended, patch.object(torch.Tensor, "copy_", noted_copy):
        for last in (count, count, broken_off):
            for number, (_, matrix) in enumerate(streamed):
                note("use", matrix)
                if number + 1 == last:
                    break
    return log, computing.seen[copying] == copying.seen[copying]


# the interpreter's time goes by programs; the patch is a decorator, a context manager, and started for a whole process
few_programs = patch("kit.cuda.linear.rows_of_a_program", lambda format, rows, tokens: 512 // tokens)


@few_programs
def generate(path, prompt, tokens, capacity, max_context=64, whole=True):
    """Logits (tokens, vocabulary) of the prompt, None unless ``whole``, generated tokens, statistics of a device cache of
    ``capacity`` and of the host's, and the accesses that a prefetch had served."""
    import kit
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    weights = DeviceWeights(kit.open(path), kit.LRU(capacity), kit.HashMap(), ahead="1 MiB")
    model = DeviceTransformer(weights, max_context=max_context)
    logits = model.logits(prompt).numpy() if whole else None
    answer = kit.generate(model, prompt, max_tokens=tokens, stop_at_end=False)
    prefetched = {span.tensor for span in weights.trace.spans if span.what == "access" and span.outcome == "prefetch"}
    return logits, answer.tokens, weights.store.stats, weights.host_store.stats, prefetched


@few_programs
def steps(path, batches):
    """Logits after each of ``batches`` of tokens, one after another."""
    import kit
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    model = DeviceTransformer(DeviceWeights(kit.open(path)), max_context=16)
    cache = model.new_cache()
    return [model.step(batch, cache).numpy() for batch in batches]


def blocks(path, name):
    """The blocks of one tensor or expert on the device and the bytes that they count as, or the text of the error."""
    import kit
    from kit.lab.on_device.device_weights import DeviceWeights

    weights = DeviceWeights(kit.open(path))
    try:
        return weights.blocks(name).numpy(), weights.nbytes(name)
    except kit.KitError as error:
        return str(error)


def refusal(path, options):
    """The text of the error of a model on a device with room for 100 KiB of blocks."""
    import kit
    from kit.lab.on_device.device_weights import DeviceWeights
    from kit.lab.on_device.on_gpu import DeviceTransformer

    try:
        DeviceTransformer(DeviceWeights(kit.open(path), kit.LRU("100 KiB")), **options)
    except kit.KitError as error:
        return str(error)


def of_new_format(format, function, *args):
    """``dequantize`` or ``linear`` above where the table has one more format."""
    from kit.gguf.formats import FORMATS

    with patch.dict(FORMATS, {format.name: format}):
        return {"dequantize": dequantize, "linear": linear}[function](*args)
