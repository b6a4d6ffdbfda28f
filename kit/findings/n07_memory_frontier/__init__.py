"""The memory frontier: seconds a token against bytes held, for every way there is; predicted first, then measured."""

from kit.findings.n07_memory_frontier.advice import answer, best, error, record
from kit.findings.n07_memory_frontier.figures import errors, plane, rings
from kit.findings.n07_memory_frontier.sweep import (
    all_ways,
    asked,
    chosen,
    equality,
    layers_of,
    measure_all,
    pareto,
    predict,
    prepare,
    table,
)

__all__ = [
    "all_ways",
    "answer",
    "asked",
    "best",
    "chosen",
    "equality",
    "error",
    "errors",
    "layers_of",
    "measure_all",
    "pareto",
    "plane",
    "predict",
    "prepare",
    "record",
    "rings",
    "table",
]  # fmt: skip
