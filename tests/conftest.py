"""What every test shares."""

import sys

import pytest


@pytest.fixture(autouse=True)
def close_figures():
    """Figures drawn by a test go with it."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
