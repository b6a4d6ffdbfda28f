"""What every test shares."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest


@pytest.fixture(autouse=True)
def close_figures():
    """Figures drawn by a test go with it."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="module")
def call():
    """``call(function, *args)`` runs a function of triton_worker in a process that interprets Triton's kernels."""
    from triton_worker import interpret

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=interpret) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.fixture(scope="session")
def gemma():
    """The path of Gemma 3 270M, a trained model; without the extra ``real`` a skip that says how to get it."""
    from kit.errors import GGUFError
    from kit.gguf.trained import fetch

    try:
        return fetch("gemma-3-270m")
    except GGUFError as error:
        pytest.skip(str(error))
