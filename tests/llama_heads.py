"""llama.cpp's own MTP head of a file, in a process of its own, because a file that it cannot run ends the process.

Run as a program it writes an archive of numpy: ``state`` that the model gives for each token, the head's ``logits`` after each,
and its own ``after``; tokens are the arguments after the file and the archive.
"""

import ctypes
import os
import subprocess
import sys

import numpy as np

_LOAD, _KIND, _OTHER = 77, 36, 160  # bytes of load_mtp in a model's parameters, of ctx_type and ctx_other in a context's
_SET, _GET = "_Z26llama_set_embeddings_nextnP13llama_contextbb", "_Z26llama_get_embeddings_nextnP13llama_context"


def outputs(path, tokens, target) -> dict | None:
    """The archive as a dict, or None where llama.cpp ends."""
    words = [sys.executable, __file__, str(path), str(target), *map(str, tokens)]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(words, capture_output=True, env=environment, check=False)
    return dict(np.load(target)) if done.returncode == 0 else None


class _State(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("rows", ctypes.c_size_t), ("n", ctypes.c_size_t))


def _context(lib, model, other=None):
    parameters = lib.llama_context_default_params()
    fields = {0: 256, 4: 256, 8: 256, 28: 1, 32: 1, _KIND: int(other is not None), 52: 0, 104: 0, 108: 0}
    for offset, value in fields.items():  # context, batches, threads, kind, no flash attention, float32 keys and values
        ctypes.c_int32.from_buffer(parameters, offset).value = value
    if other is not None:
        ctypes.c_void_p.from_buffer(parameters, _OTHER).value = other
    return lib.llama_init_from_model(ctypes.c_void_p(model), parameters)


def _rows(address, count, width):
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count, width)).copy()


def main(path, target, *tokens):
    from kit.lab.engines import llama_cpp

    tokens, lib, pointer = [int(token) for token in tokens], llama_cpp.library(), ctypes.c_void_p
    for name in ("llama_batch_ext_init", _GET, "llama_get_logits", "llama_model_get_vocab"):
        getattr(lib, name).restype = pointer
    parameters = lib.llama_model_default_params()
    ctypes.c_bool.from_buffer(parameters, _LOAD).value = True
    model = lib.llama_model_load_from_file(path.encode(), parameters)
    width = lib.llama_model_n_embd_out(pointer(model))
    vocabulary = lib.llama_vocab_n_tokens(pointer(lib.llama_model_get_vocab(pointer(model))))

    trunk, n = _context(lib, model), len(tokens)
    getattr(lib, _SET)(pointer(trunk), ctypes.c_bool(True), ctypes.c_bool(False))
    ints, sequence = ctypes.c_int32 * n, (ctypes.c_int32 * 1)(0)
    sequences = (ctypes.POINTER(ctypes.c_int32) * n)(*[sequence] * n)
    batch = llama_cpp._Batch(n, ints(*tokens), None, ints(*range(n)), ints(*[1] * n), sequences, (ctypes.c_int8 * n)(*[1] * n))
    failed = lib.llama_decode(pointer(trunk), batch)
    state = _rows(getattr(lib, _GET)(pointer(trunk)), n, width)

    head = _context(lib, model, trunk)
    getattr(lib, _SET)(pointer(head), ctypes.c_bool(True), ctypes.c_bool(True))
    batch = pointer(lib.llama_batch_ext_init(pointer(head)))
    lib.llama_batch_ext_set_embd_state.argtypes = (pointer, ctypes.c_int32, _State)
    before = np.concatenate([np.zeros((1, width), np.float32), state[:-1]])
    for position, (token, row) in enumerate(zip(tokens, before, strict=True)):
        index = lib.llama_batch_ext_add_token(batch, 0, token)
        lib.llama_batch_ext_set_pos(batch, index, (ctypes.c_int32 * 1)(position))
        lib.llama_batch_ext_set_embd_state(batch, index, _State(row.ctypes.data, 1, width))
        lib.llama_batch_ext_set_output_logits(batch, index, ctypes.c_bool(True))
    if failed or lib.llama_process(pointer(head), ctypes.c_int(1), batch):
        sys.exit(3)
    logits = _rows(lib.llama_get_logits(pointer(head)), n, vocabulary)
    after = _rows(getattr(lib, _GET)(pointer(head)), n, width)
    np.savez(target, state=state, logits=logits, after=after)


if __name__ == "__main__":
    main(*sys.argv[1:])
