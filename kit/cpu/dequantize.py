"""The cpu backend: dequantizes chunks of blocks on all threads of kit, directly into the result."""

import numpy as np

from kit.cpu import threads
from kit.cpu.simd.tiers import tier
from kit.cpu.tasks import Static, Step, address_of, task
from kit.gguf.formats import Format, described
from kit.system import last_level_cache

DEVICE, knows = "cpu", described
_CHUNK = 2**17  # weights that a thread takes at a time
_SHARED = 2**24  # bytes of a last-level cache on which to count, however large: others use it, too


def run(blocks: np.ndarray, format: Format, out) -> None:
    """Dequantize C-contiguous ``blocks`` into ``out``, a tensor or an array. Several Python threads may call this at the same
    time."""
    threads.run(*step(blocks, format, out))


def step(blocks: np.ndarray, format: Format, out) -> Step:
    """``run`` as a step."""
    count, share = out.nbytes // out.itemsize // format.block_elements, max(1, _CHUNK // format.block_elements)
    streams = out.nbytes > min(_SHARED, last_level_cache()) and address_of(out) % 64 == 0
    sizes = dict(block_bytes=format.block_bytes, out_bytes=format.block_elements * out.itemsize)
    kernel = _kernel(format, str(out.dtype).removeprefix("torch."), tier())
    arguments = dict(blocks=blocks, out=out, count=count, share=share, streams=streams) | sizes
    return kernel, arguments, -(-count // share)


@task
def _kernel(format: Static, dtype: Static, tier: Static):
    """The task that dequantizes ``share`` of ``count`` blocks to ``out``; if it ``streams``, with stores that bypass the
    caches."""
    from kit.cpu.kernels import dequantize_blocks  # and Numba
    from kit.cpu.simd.memory import fence, stack

    scratch = stack(256)

    def chunk(task, blocks, out, count, share, block_bytes, out_bytes, streams):
        first = task * share
        blocks += first * block_bytes
        out += first * out_bytes
        dequantize_blocks(format, dtype, tier, streams != 0, blocks, min(share, count - first), out, scratch())
        fence()

    return chunk
