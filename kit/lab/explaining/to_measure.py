"""Measuring the ways of a study: which of them, how often, in which process, unless it was measured before."""

import time
from collections.abc import Callable
from dataclasses import replace

from kit.lab.engines.table import OURS
from kit.lab.explaining.measured_ways import measure, measure_apart
from kit.lab.measuring.measurements import Reading, Readings, digest_of, once
from kit.lab.predicting.room import SCRATCH
from kit.lab.predicting.ways import BLOCK_WAYS, Prediction, Way
from kit.system import memory_available, memory_limit
from kit.units import format_bytes, format_seconds

ENGINE_WAYS = dict(zip(OURS, BLOCK_WAYS, strict=True))  # engine -> its way
_TRIES = 3  # of a measurement that other processes disturb
_WORTH = 1.5  # times the seconds of the first row: a slower way is not measured
_EACH = 4.0  # seconds that measuring a way should take


def measure_engines(study) -> None:
    """Take the ways that the engines of a kit.lab.explaining.study.Study measured as measured."""
    for name, way in ENGINE_WAYS.items():
        if reading := study.engines.get(name):
            study.measured.setdefault(way, reading)


def measure_best(study, best: int = 2) -> dict[Way, Reading]:
    """Measure what `kit generate` does and the ``best`` fastest of the others that stay within the memory, but those that
    engines ran or the store has; again where other processes disturbed it. All that is measured."""
    measure_engines(study)
    if study.part is not None:
        if not study.engines:
            measure_best(study.part, best)
        return study.measured
    predictions = study.predictions
    some = [each for each in predictions if study.room.stays(each)] or predictions  # a walk, where none stays
    for prediction in [each for each in some[: best + 1] if each.seconds <= _WORTH * some[0].seconds]:
        if prediction.way not in study.measured:
            _take(study, prediction)
    return study.measured


def known(measured: dict[Way, Reading]) -> Callable[[Prediction], Reading | Prediction]:
    """What a page says of a prediction: what was measured of its way, else what is predicted."""
    return lambda each: measured.get(each.way, each)


def in_store(measured: dict[Way, Reading], file, store: Readings, by: str) -> dict[Way, Reading]:
    """The ways that a page of a run measured on an open file, each with the one value that the run shows: the engines' reading
    of a way that they ran, each in a process of its own and in turn, or another page's; else what was measured, which the run's
    ``store`` keeps for the other pages."""
    digest, told = digest_of(file), {}
    for way, one in measured.items():
        known = store.known(way.label, digest, busy=True)
        again = known is not None and known.by == by and way not in ENGINE_WAYS.values()
        reading = once(store, way.label, digest, lambda one=one: one, by, busy=True, again=again)
        told[way] = replace(reading, result=one.result)
    return told


def earlier(study) -> dict[Way, Reading]:
    """The ways of a study's file that another page of its run measured, from the run's store."""
    digest, taken = digest_of(study.file), {}
    for way in (each.way for each in study.predictions):
        reading = study.store.known(_label(study, way), digest, busy=True)
        if reading and reading.by != study.by:
            taken[way] = reading
    study.busy.seen(max((each.others for each in taken.values()), default=0.0))  # what was busy then is no comparison now
    return taken


def left(study) -> float:
    """Seconds of the minute that are left; the compiling of kernels does not count."""
    return study.minute + sum(study.compiled) - (time.perf_counter() - study.began)


def _measure(study, prediction: Prediction) -> Reading | str:
    """A way measured, or why it is not."""
    way, free = prediction.way, memory_available()
    needed, room = prediction.held + SCRATCH, free - max(1 << 30, memory_limit() // 20)  # some is the system's
    tokens = max(3, min(study.tokens, 5, int(_EACH / prediction.seconds)))  # of two the median is a mean
    if way.holds == "slots":
        tokens = max(6, min(study.tokens, int(_EACH / prediction.seconds)))
    study.say(f"measuring {way.label}: {format_seconds(prediction.seconds)} per token predicted")
    if left(study) < 3 * prediction.seconds:
        return "was not measured: a minute had passed (`--thorough` takes more)"
    if needed > room:
        return f"did not fit: needed {format_bytes(needed)}, {format_bytes(room)} are free"
    study.settle()
    for _ in range(_TRIES):  # again while other processes disturb it and the minute has room for as long a try
        start = time.perf_counter()
        if needed > room / 4:
            result = measure_apart(way, study.file, study.order, tokens, 1, room, study.cut)
        else:
            result = measure(way, study.file, study.order, tokens)
        took = time.perf_counter() - start
        if isinstance(result, str) or not result.busy or left(study) < 2 * took:
            break
    return result


def _label(study, way: Way) -> str:
    """A way's name in the store: of a sample of layers another than of the whole model."""
    return f"{way.label}, layers {study.cut}" if study.cut else way.label


class _NotMeasured(Exception):
    """Why a way was not."""


def _take(study, prediction: Prediction) -> None:
    """Add a way to those of a study: by the store's quiet value, else measured now, or the reason why it is not."""
    way = prediction.way

    def measured() -> Reading:
        result = _measure(study, prediction)
        if isinstance(result, str):
            raise _NotMeasured(result)
        return result

    try:
        reading = once(study.store, _label(study, way), digest_of(study.file), measured, study.by, again=study.again)
    except _NotMeasured as reason:
        study.unmeasured[way] = str(reason)
    else:
        study.measured[way] = reading
        study.busy.seen(reading.others)
