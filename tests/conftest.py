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
