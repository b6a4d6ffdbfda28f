"""How each kind of server is asked for tokens, and how its stream is read: one row a kind."""

from collections.abc import Callable
from typing import NamedTuple

from kit.lab.engines import said
from kit.lab.engines.meter import Report
from kit.units import from_json


class Asked(NamedTuple):
    """A request: a prompt as ``ids`` and as ``text``, ``tokens`` to make, the ``model``'s name there, and whether the server
    may take what it remembers of earlier prompts (where it can be told)."""

    ids: tuple[int, ...]
    text: str
    tokens: int
    model: str = ""
    cached: bool = True


class Piece(NamedTuple):
    """A part of an answer. ``ids``: its tokens, where the server names them. ``ended``: whether it is the last one."""

    text: str = ""
    ids: tuple[int, ...] = ()
    ended: bool = False
    stop: str = ""
    report: Report | None = None
    error: str = ""


class Protocol(NamedTuple):
    """``name``: of the engine. ``found_by``: the path that only this kind answers, and the key of that answer. ``path``: where
    tokens are asked for. ``body``: Asked -> JSON. ``piece``: JSON of an event -> Piece. ``takes_ids``: whether prompts may be
    token ids."""

    name: str
    found_by: tuple[str, str]
    path: str
    body: Callable[[Asked], dict]
    piece: Callable[[dict], Piece]
    takes_ids: bool = False


def _error(event: dict) -> str:
    told = event.get("error")
    return str(told.get("message", told)) if isinstance(told, dict) else str(told or "")


def _seconds(value, unit: float) -> float | None:
    return None if (value := said.number(value)) is None else value / unit


def _timings(event: dict) -> Report | None:
    """llama.cpp's own report."""
    told = event.get("timings")
    if not isinstance(told, dict):
        return None
    times = (_seconds(told.get(f"{name}_ms"), 1e3) for name in ("prompt", "predicted"))
    return Report(*(said.count(told.get(name)) for name in ("prompt_n", "cache_n", "predicted_n")), None, *times)


def _llama_body(asked: Asked) -> dict:
    return {
        "prompt": [*asked.ids], "n_predict": asked.tokens, "stream": True, "cache_prompt": asked.cached, "temperature": 0,
        "return_tokens": True, "ignore_eos": True,
    }  # fmt: skip


def _llama_piece(event: dict) -> Piece:
    ended = bool(event.get("stop"))
    ids = said.ids(event.get("tokens")) if not ended else ()
    return Piece(said.text(event.get("content")), ids, ended, said.text(event.get("stop_type")), _timings(event), _error(event))


def _ollama_body(asked: Asked) -> dict:
    options = {"num_predict": asked.tokens, "temperature": 0, "seed": 1}
    return {"model": asked.model, "prompt": asked.text, "raw": True, "stream": True, "options": options}


def _ollama_piece(event: dict) -> Piece:
    report, ended = None, bool(event.get("done"))
    if ended and "total_duration" in event:
        times = (_seconds(event.get(f"{name}_duration"), 1e9) for name in ("load", "prompt_eval", "eval"))
        report = Report(said.count(event.get("prompt_eval_count")), None, said.count(event.get("eval_count")), *times)
    return Piece(said.text(event.get("response")), (), ended, said.text(event.get("done_reason")), report, _error(event))


def _openai_body(asked: Asked) -> dict:
    body = {"model": asked.model, "prompt": asked.text, "max_tokens": asked.tokens, "temperature": 0, "stream": True}
    return body | {"stream_options": {"include_usage": True}}


def _openai_piece(event: dict) -> Piece:
    choice = next(iter(said.rows(event.get("choices"))), {})
    report = _timings(event)
    if report is None and isinstance(usage := event.get("usage"), dict):
        cached = said.count(said.part(usage.get("prompt_tokens_details")).get("cached_tokens"))
        prompt = said.count(usage.get("prompt_tokens"))
        computed = None if prompt is None else max(0, prompt - (cached or 0))
        report = Report(computed, cached, said.count(usage.get("completion_tokens")))
    stop = said.text(choice.get("finish_reason"))
    return Piece(said.text(choice.get("text")), (), bool(stop), stop, report, _error(event))


PROTOCOLS = (  # the first whose question is answered: llama.cpp's server answers OpenAI's as well
    Protocol("llama-server", ("/props", "default_generation_settings"), "/completion", _llama_body, _llama_piece, True),
    Protocol("Ollama", ("/api/version", "version"), "/api/generate", _ollama_body, _ollama_piece),
    Protocol("OpenAI-compatible server", ("/v1/models", "data"), "/v1/completions", _openai_body, _openai_piece),
)


def event_of(line: str) -> dict | None:
    """The JSON of a line of a stream, of events or of lines; None of a line without any."""
    text = line.removeprefix("data:").strip()
    if not text or text == "[DONE]" or text.startswith((":", "event:", "id:", "retry:")):
        return None
    event = from_json(text)
    return event if isinstance(event, dict) else None
