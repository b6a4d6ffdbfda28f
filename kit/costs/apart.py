"""Measuring a way in a process of its own under a limit of memory, so that a lack of memory is a reason and not an end."""

import multiprocessing
import signal
from dataclasses import replace

import torch

from kit.costs.ways import Measured, Way, measure
from kit.errors import KitError
from kit.lab.system import limit_memory
from kit.units import format_bytes


def measure_apart(way: Way, file, order, tokens, tries, limit: int, layers=()) -> Measured | str:
    """kit.costs.ways.measure in a process that may allocate ``limit`` bytes, mapped files not counted (RLIMIT_DATA);
    ``layers``: of a cut file. The reason instead, where it lacks memory or dies."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads and locks of torch
    ours, theirs = context.Pipe(duplex=False)
    job = theirs, file.path, way, order, tokens, tries, limit, tuple(layers)
    child = context.Process(target=_child, args=job, daemon=True)
    child.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        child.join()
        found = f"ended the process that measured it (exit code {child.exitcode}) under a limit of {format_bytes(limit)}"
    finally:
        child.terminate()
    return found if isinstance(found, str) else replace(found, result=torch.from_numpy(found.result))


def _child(pipe, path, way, order, tokens, tries, limit, layers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    import kit
    from kit.gguf.cut import cut

    limit_memory(limit)
    try:
        file = kit.open(path)
        found = measure(way, cut(file, layers) if layers else file, order, tokens, tries)
        pipe.send(replace(found, result=found.result.numpy()))
    except KitError as error:
        pipe.send(str(error))
    except (MemoryError, RuntimeError) as error:  # torch: "not enough memory: you tried to allocate ..."
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        pipe.send(f"did not fit: an allocation failed under a limit of {format_bytes(limit)}")
