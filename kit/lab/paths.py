"""Where the kit's own files lie: the checkout when there is one, else the user's folders."""

import os
from pathlib import Path

from kit.errors import ReportError

ROOT = Path(__file__).resolve().parents[2]


def data_file(name: str) -> Path:
    """A file of data/ in the checkout; ReportError when the package was installed without it."""
    path = ROOT / "data" / name
    if not path.exists():
        raise ReportError(f"{path} is missing: kit runs from a checkout (pip install --editable .), not from a wheel")
    return path


def models_folder() -> Path:
    """Where generated models are kept: ``KIT_MODELS``, else data/models of the checkout."""
    return Path(os.environ.get("KIT_MODELS") or ROOT / "data" / "models")


def results_folder() -> Path:
    """Where runs go unless told otherwise: ``KIT_RESULTS``, else results/ of the checkout."""
    return Path(os.environ.get("KIT_RESULTS") or ROOT / "results")
