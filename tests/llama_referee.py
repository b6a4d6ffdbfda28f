"""llama.cpp in a process of its own, because it ends the process at some files: logits of one file after another, or none.

Run as a program it answers: a line of JSON (path, tokens, context, last) in, the bytes of the logits (after their number) out.
"""

import json
import os
import struct
import subprocess
import sys

import numpy as np


class Referee:
    """``logits(path, tokens)``: llama.cpp's of the ``last`` of the tokens (None: of all), (last, vocabulary), or None where it
    refuses the file or ends."""

    def __init__(self):
        self._process = None

    def logits(self, path, tokens, context=512, last=None) -> np.ndarray | None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # where llama.cpp ends it starts a debugger
            )
        self._process.stdin.write(json.dumps([str(path), list(tokens), context, last]).encode() + b"\n")
        self._process.stdin.flush()
        head = self._process.stdout.read(8)
        if len(head) < 8:
            self._process.wait()
            return None
        (count,) = struct.unpack("q", head)
        return (
            np.frombuffer(self._process.stdout.read(4 * count), np.float32).reshape(last or len(tokens), -1) if count else None
        )

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()


def _answer():
    from kit.errors import KitError
    from kit.lab.engines.llama_cpp import Llama

    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # llama.cpp prints there when it ends
    for line in sys.stdin:
        path, tokens, context, last = json.loads(line)
        try:
            with Llama(path, context=context, kv="float32", exact=True) as llama:
                llama._lib.llama_set_n_threads(llama._context, 1, 1)  # several wait for one another on a busy machine
                logits = llama.logits(tokens)[-(last or 0) :].astype(np.float32)  # of some alone qwen3vl dies
        except KitError:
            logits = np.zeros(0, np.float32)
        out.write(struct.pack("q", logits.size) + logits.tobytes())
        out.flush()


if __name__ == "__main__":
    _answer()
