"""Live controls of a notebook."""

import os
from inspect import signature


def play(draw, **choices):
    """``draw()``; in JupyterLab, where a kernel answers, under a control for each of ``choices`` and anew when one moves.

    ``choices``: parameter of ``draw`` -> its values, or (label, value) each; the parameter's default is the first shown. More
    than five make a slider, fewer a list."""
    if "JPY_SESSION_NAME" not in os.environ:  # Jupyter's server names the notebook to its kernel, a batch does not
        return draw()
    import ipywidgets
    import matplotlib.pyplot as plt

    def again(**chosen):
        draw(**chosen)
        plt.show()

    made = {}
    for name, options in choices.items():
        value, slide = signature(draw).parameters[name].default, len(options) > 5
        kind = ipywidgets.SelectionSlider if slide else ipywidgets.Dropdown
        made[name] = kind(options=options, value=value, description=name, **{"continuous_update": False} if slide else {})
    ipywidgets.interact(again, **made)
