"""The server inside the wheel ``xllamacpp`` as a program, with the flags of llama-server; it ends when its input does."""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

from kit import system
from kit.errors import ServerError
from kit.lab.engines.llama_cpp import LOAD_MODES

WHEEL = "xllamacpp"  # the first word of an engine that is the wheel's server
_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20}  # ggml_type
_DRAFTS = {"draft-simple": "DRAFT_SIMPLE", "ngram-simple": "NGRAM_SIMPLE"}  # its ways to speculate


class Flag(NamedTuple):
    """``names``: as typed. ``fields``: of the wheel's parameters that it sets. ``read``: text -> value; ValueError for what is
    none. ``choices``: name -> value, where it takes few. ``kind``: of the wheel's that the value is made to."""

    names: tuple[str, ...]
    fields: tuple[str, ...]
    read: Callable[[str], object] = int
    choices: dict | None = None
    kind: str = ""


FLAGS = (
    Flag(("-m", "--model"), ("model.path",), str),
    Flag(("--host",), ("hostnames",), lambda text: [text]),
    Flag(("--port",), ("port",)),
    Flag(("--api-key",), ("api_keys",), lambda text: text.split(",")),
    Flag(("-t", "--threads"), ("cpuparams.n_threads", "cpuparams_batch.n_threads")),
    Flag(("-tb", "--threads-batch"), ("cpuparams_batch.n_threads",)),
    Flag(("-c", "--ctx-size"), ("n_ctx",)),
    Flag(("-b", "--batch-size"), ("n_batch",)),
    Flag(("-ub", "--ubatch-size"), ("n_ubatch",)),
    Flag(("-np", "--parallel"), ("n_parallel",)),
    Flag(("-ctk", "--cache-type-k"), ("cache_type_k",), choices=_TYPES, kind="ggml_type"),
    Flag(("-ctv", "--cache-type-v"), ("cache_type_v",), choices=_TYPES, kind="ggml_type"),
    Flag(("-fa", "--flash-attn"), ("flash_attn_type",), choices={"on": 1, "off": 0, "auto": -1}, kind="llama_flash_attn_type"),
    Flag(("--cache-reuse",), ("n_cache_reuse",)),
    Flag(("--ctx-checkpoints",), ("n_ctx_checkpoints",)),
    Flag(("--sleep-idle-seconds",), ("sleep_idle_seconds",)),
    Flag(("--mmproj",), ("mmproj.path",), str),
    Flag(("-md", "--model-draft"), ("speculative.draft.mparams.path",), str),
    Flag(("--spec-type",), (), choices=_DRAFTS),
    Flag(("--spec-draft-n-max",), ("speculative.draft.n_max",)),
    Flag(("--spec-ngram-simple-size-n",), ("speculative.ngram_simple.size_n",)),
    Flag(("--spec-ngram-simple-size-m",), ("speculative.ngram_simple.size_m",)),
)
SWITCHES = {"--mlock": LOAD_MODES["mlock"], "--no-mmap": LOAD_MODES["none"]}
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}


def parsed(words: list[str]) -> dict[str, object]:
    """First name of a flag -> its value; ServerError for what the wheel's server does not take here."""
    given, left = {}, list(words)
    while left:
        word = left.pop(0)
        if word in SWITCHES:
            given["load"] = SWITCHES[word]
        elif word in _BY_NAME and left:
            given[_BY_NAME[word].names[0]] = _value(word, left.pop(0))
        else:
            takes = ", ".join([*SWITCHES, *(flag.names[0] for flag in FLAGS)])
            raise ServerError(f"{WHEEL}: does not take {word!r} here; it takes {takes}, and a llama-server by its path all")
    return given


def _value(word: str, text: str) -> object:
    flag = _BY_NAME[word]
    if flag.choices is not None and text not in flag.choices:
        raise ServerError(f"{WHEEL}: does not take {word} {text} here; it takes {', '.join(flag.choices)}")
    try:
        return flag.choices[text] if flag.choices else flag.read(text)
    except ValueError:
        raise ServerError(f"{WHEEL}: {word} {text}: give a whole number") from None


def parameters(given: dict[str, object]):
    """What the wheel's server is made with."""
    import xllamacpp

    made = xllamacpp.CommonParams()
    made.n_parallel, made.endpoint_slots = 1, True
    for flag in FLAGS:
        if flag.names[0] in given:
            value = given[flag.names[0]]
            for field in flag.fields:
                _set(made, field, getattr(xllamacpp, flag.kind)(value) if flag.kind else value)
    if "load" in given:
        made.load_mode = xllamacpp.llama_load_mode(given["load"])
    if kind := given.get("--spec-type", _DRAFTS["draft-simple"] if "-md" in given else ""):
        made.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    if "-md" in given and "-t" in given:
        for field in ("cpuparams", "cpuparams_batch"):
            _set(made, f"speculative.draft.{field}.n_threads", given["-t"])
    return made


def _set(made, field: str, value) -> None:
    *places, name = field.split(".")
    for place in places:
        made = getattr(made, place)
    if not hasattr(made, name):  # a name that another build calls otherwise would be set, and do nothing
        raise ServerError(f"{WHEEL}: this version has no {field}")
    setattr(made, name, value)


def main(words: list[str]) -> None:
    """The program. It ends when its standard input does, so that it never stays behind."""
    system.end_with_parent()
    import xllamacpp

    server = xllamacpp.Server(parameters(parsed(words)))
    print(json.dumps({"listening": server.listening_address}), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
