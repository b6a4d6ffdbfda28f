"""Live controls in JupyterLab; the same call is a static figure in a batch."""

import os

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from kit.costs.measured import DTYPES
from kit.findings.n09_your_model import figures
from kit.units import format_bytes


def explore(study) -> None:
    """Hits by policy and predicted seconds a token for a memory and a dtype: to be chosen by hand when there is one.

    Without anybody to choose, the figure is drawn once, for the memory that was given and float32.
    """
    if "JPY_SESSION_NAME" not in os.environ:  # Jupyter's server names the notebook to its kernel, a batch does not
        figures.at(study, study.memory, DTYPES[0])
        return
    import ipywidgets

    largest = study.accesses.working_set
    sizes = sorted({study.memory, *np.linspace(largest / 24, largest, 24).astype(int).tolist()})
    memory = ipywidgets.SelectionSlider(
        options=[(format_bytes(size), size) for size in sizes], value=study.memory, description="memory",
        continuous_update=False,
    )  # fmt: skip
    dtype = ipywidgets.Dropdown(options=DTYPES, description="dtype")

    def draw(memory, dtype):
        figures.at(study, memory, dtype)
        plt.show()

    display(ipywidgets.HBox([memory, dtype]), ipywidgets.interactive_output(draw, {"memory": memory, "dtype": dtype}))
