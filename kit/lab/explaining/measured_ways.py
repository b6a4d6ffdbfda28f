"""A way of holding weights, measured: in this process, or in one of its own under a limit of memory."""

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import kit
from kit.errors import KitError
from kit.gguf.cut import cut
from kit.lab.measuring import child, state
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting.order import DECODES, Decode, Order, Walk
from kit.lab.predicting.ways import Prediction, Way
from kit.model.pinned import PinnedBlocks
from kit.system import end_with_parent, limit_memory
from kit.units import format_bytes, format_seconds


@once_a_run
def measure(way: Way, file, order: Order, tokens: int, tries: int = 1) -> Reading:
    """Decode ``tokens`` tokens after a warm-up (or walk over the tensors of a file that cannot run); at most ``tries`` times,
    until other processes do not disturb it. With experts in slots the first half of the tokens warms up as well. The Reading
    is of no file yet (measurements.once); its ``row`` has "hit_rate" of these tokens, where matrices are cached, and
    "resident", bytes; its ``result`` the logits of the last token, or the products of a walk."""

    def once():
        if way.holds == "pinned":
            weights = PinnedBlocks(file, way.capacity)
        elif way.holds == "slots":
            weights = kit.Weights(file, experts=kit.Slots(way.capacity, way.policy))
        else:
            weights = kit.Weights(file, way.cache(), dtype=way.dtype)
        made = (Walk, order.tokens[0]) if order.reason else (DECODES[order.via], tokens + 1)
        steps = made[0](weights, way.linear, made[1])
        result = run(way, weights, steps, tokens)
        if way.holds == "slots":
            weights.close()
            result = replace(result, samples=result.samples[tokens // 2 :])
        return result

    measured, others = state.undisturbed(once, tries)
    return replace(measured, others=others)


def run(way: Way, weights, steps, tokens: int) -> Reading:
    """Measure ``tokens`` steps over any ``weights`` after a warm-up."""
    steps.step()
    if way.linear != "dequantized" and isinstance(steps, Decode):  # the second token records the program: dropped as well
        mark = steps.cache.mark()
        steps.step()
        steps.cache.back_to(mark)
    weights.trace.clear()
    for _ in range(tokens):
        result = steps.step()
    spans = weights.trace.frame()
    asked = spans.loc[spans["what"] == "access", "outcome"]
    row = {} if way.linear != "dequantized" else {"hit_rate": float((asked == "hit").mean())}
    row["resident"] = weights.store.stats.resident_bytes
    return Reading(way.label, "", tuple(spans.loc[spans["what"] == "token", "seconds"]), row=row, result=result)


def measure_apart(way: Way, file, order, tokens, tries, limit: int, layers=()) -> Reading | str:
    """``measure`` in a process that may allocate ``limit`` bytes, mapped files not counted (RLIMIT_DATA);
    ``layers``: of a cut file. The reason instead, where it lacks memory or dies."""
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        job = Path(folder, "job")
        job.write_bytes(pickle.dumps((file.path, way, order, tokens, tries, limit, tuple(layers))))
        try:
            reason = child.call(_apart, str(job))
        except child.Ended as ended:
            reason = f"ended the process that measured it (exit code {ended.code}) under a limit of {format_bytes(limit)}"
        return reason or pickle.loads(job.read_bytes())


def _apart(job: str) -> str:
    """``measure`` of this job, whose answer takes the job's place; the reason where there is none."""
    path, way, order, tokens, tries, limit, layers = pickle.loads(Path(job).read_bytes())
    end_with_parent()
    limit_memory(limit)
    try:
        file = kit.open(path)
        Path(job).write_bytes(pickle.dumps(measure(way, cut(file, layers) if layers else file, order, tokens, tries)))
    except KitError as error:
        return f"{error} (under a limit of {format_bytes(limit)})"
    except (MemoryError, RuntimeError) as error:  # torch: "not enough memory: you tried to allocate ..."
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return f"did not fit: an allocation failed under a limit of {format_bytes(limit)}"
    return ""


def as_record(prediction: Prediction, real: Reading | None, reason: str = "") -> dict:
    """The fields of a way's record (kit.Session.record): its samples, least and prediction, or the ``reason`` why none is."""
    if real is None:
        return {"quantity": prediction.way.quantity, "unit": "s", "status": "skipped", "reason": reason}
    told = f"predicted {format_seconds(prediction.seconds)} ({prediction.seconds / real.seconds:.2f} times), "
    told += f"{format_bytes(prediction.held)} held and {format_bytes(prediction.pages)} of the file"
    return {
        "quantity": prediction.way.quantity, "unit": "s", "samples": list(real.samples), "lower": prediction.least,
        "lower_source": "its bytes at the measured bandwidth", "tolerance": "predictions within a factor of 1.25",
        "reason": told,
    }  # fmt: skip
