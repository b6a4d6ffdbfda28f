"""Drafts: tokens per second with and without, the kit and llama.cpp's own speculation, and what each accepted.

One file, one text, greedy: every round answers every text once by each side, and the servers that are not asked are stopped. A
draft that loses stays, as llama.cpp's does. The kit's exact way rounds no activation; int8 rounds them to eight bits, as
llama.cpp does: that row is the one of equal quality, and the exact one is better. "as exact": tokens at the start of an answer
that are those of the kit's exact way without a draft; where two engines differ there, each goes on alone.

"edit" repeats most of its question: text that repeats drafts for it, as much at once as the kit can, and in llama.cpp both as
many and, "of 48", as many as it takes by itself.
"""

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import httpx2 as httpx
import numpy as np
import pandas as pd

import kit
from benchmarks._files import fetch
from kit.lab.drafts import passages
from kit.lab.engines.started import WHEEL, Started
from kit.model.drafters import MOST, drafter_of
from kit.model.drafts import Drafting, passes
from kit.model.generate import Sampler
from kit.system import usable_cores

MODEL, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
TEXTS = ("code", "prose", "chat", "edit")
TOKENS = 128  # of an answer, at most: what begins a draft (its prompt, recording its passes) is a third of 48
WAYS = {"kit, exact": "fused", "kit, int8": "fused-int8"}
SMALLER, REPEATS, OWN = f"draft of {(DRAFTED := 4)}", f"n-grams, {MOST}", "n-grams, 48"
PEER = "llama.cpp"
_FLAGS = {  # what drafts -> flags of its server
    "": "", SMALLER: f"-md {{draft}} --spec-draft-n-max {DRAFTED}", OWN: "--spec-type ngram-simple",
    REPEATS: f"--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m {MOST}",
}  # fmt: skip
_CONTEXT, ROUNDS, WITHIN = 1024, 3, 230.0  # positions; rounds, of which none begins after so many seconds
HOPED = {SMALLER: (None, 1.15), REPEATS: (2.0, None)}  # times the speed without, and times llama.cpp's


class Answer(NamedTuple):
    """``ids``; how many ``tokens`` these are with the end, and ``seconds`` after the first; tokens drafted, and accepted."""

    ids: list[int]
    tokens: int
    seconds: float
    drafted: int = 0
    accepted: int = 0

    @property
    def speed(self) -> float:
        """Tokens per second, without the first, which the prompt gives."""
        return (self.tokens - 1) / self.seconds


def run(only: str = "", within: float = WITHIN) -> pd.DataFrame:
    """A row for each text, drafter and engine: medians of the rounds, ``with`` and ``without`` the draft in tokens per second,
    ``times`` as fast, ``of llama.cpp`` the speed with it over llama.cpp's (of n-grams the faster of its two), and counts.
    ``only``: texts whose name holds this; no round begins after ``within`` seconds."""
    began, path, draft = time.monotonic(), fetch(MODEL), fetch(DRAFT)
    texts = [name for name in TEXTS if only in name]
    with kit.open(path) as file, ExitStack() as stack:
        models = {name: kit.Transformer(kit.Weights(file), linear=way, max_context=_CONTEXT) for name, way in WAYS.items()}
        asked = {name: passages.ids_of(next(iter(models.values())), name) for name in texts}
        sides = _sides(models, path, draft, stack, "edit" in texts)
        found: dict[tuple[str, str, str], list[Answer]] = {}
        for number in range(ROUNDS):
            for text in texts if not number or time.monotonic() < began + within else ():
                for (engine, kind), answer in sides.items():
                    if text == "edit" or kind in ("", SMALLER):
                        found.setdefault((text, kind, engine), []).append(answer(asked[text], TOKENS))
    rows = [_row(found, *key) for key in found if key[1]]
    return pd.DataFrame(rows).set_index("what")


def _row(found: dict, text: str, kind: str, engine: str) -> dict:
    drafted, plain = found[text, kind, engine], found[text, "", engine]
    peers = [found[text, each, PEER] for each in ((SMALLER,) if kind == SMALLER else (REPEATS, OWN))]
    last, exact = drafted[-1], found[text, "", next(iter(WAYS))][-1].ids
    same = next(
        (n for n, two in enumerate(zip(last.ids, exact, strict=False)) if two[0] != two[1]), min(len(last.ids), len(exact))
    )

    def median(values):
        return float(np.median([*values]))

    times, peer = HOPED.get(kind, (None, None))
    return {
        "what": f"{text}, {kind}, {engine}", "without": median(one.speed for one in plain),
        "with": median(one.speed for one in drafted),
        "times": median(a.speed / b.speed for a, b in zip(drafted, plain, strict=True)),
        "of llama.cpp": median(a.speed / max(b.speed for b in best) for a, *best in zip(drafted, *peers, strict=True)),
        "drafted": last.drafted, "accepted": last.accepted, "tokens": last.tokens, "as exact": same, "rounds": len(drafted),
        "hoped, times": times, "hoped, of llama.cpp": peer,
    }  # fmt: skip


def _sides(models, path, draft, stack: ExitStack, repeats: bool) -> dict[tuple[str, str], Callable]:
    """(engine, what drafts) -> the Answer to ids, of so many tokens at most."""
    sides: dict[tuple[str, str], Callable] = {}
    for engine, model in models.items():
        sides[engine, ""] = lambda ids, tokens, model=model: _alone(model, ids, tokens)
        for kind, what, most in ((SMALLER, draft, DRAFTED), (REPEATS, "ngram", MOST)):
            drafter = drafter_of(model, what, most)
            sides[engine, kind] = lambda ids, tokens, how=(model, drafter, most): _drafted(*how, ids, tokens)
    for kind in _FLAGS if repeats else ("", SMALLER):
        flags = _FLAGS[kind].format(draft=draft)
        server = stack.enter_context(Started(f"{WHEEL} -t {usable_cores()} -c {_CONTEXT} {flags}", path))
        server.process.send_signal(signal.SIGSTOP)
        sides[PEER, kind] = lambda ids, tokens, server=server: _served(server, ids, tokens)
    return sides


def _alone(model, ids, tokens: int) -> Answer:
    done = kit.generate(model, ids, tokens)
    return Answer(done.tokens, len(done.tokens), sum(done.seconds[1:]))


def _drafted(model, drafter, most: int, ids, tokens: int) -> Answer:
    told, ends, answer, seconds = Drafting(drafter.name, stays=True), model.tokenizer.end_tokens, [], []
    for new, spent, _ in passes(model, model.new_cache(), ids, Sampler(), drafter, most, ends, tokens, told):
        answer, seconds = answer + new, [*seconds, spent]
        if len(answer) >= tokens or new[-1] in ends:
            break
    return Answer(answer, len(answer), sum(seconds[1:]), told.drafted, told.accepted)


def _served(server: Started, ids, tokens: int) -> Answer:
    """By a server that is stopped before and after."""
    body = {"prompt": [*ids], "n_predict": tokens, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    server.process.send_signal(signal.SIGCONT)
    try:
        told = httpx.post(f"{server.url}/completion", json=body, timeout=120.0, trust_env=False).raise_for_status().json()
    finally:
        server.process.send_signal(signal.SIGSTOP)
    times = told["timings"]
    counts = times.get("draft_n", 0), times.get("draft_n_accepted", 0)
    return Answer(told["tokens"], times["predicted_n"], times["predicted_ms"] / 1e3, *counts)
