"""Paths of the kit's own files: in the checkout if there is one, else in the package and the user's folders."""

import os
from pathlib import Path

import platformdirs

from kit.errors import ReportError

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # the folder of the checkout, if there is one
IN_CHECKOUT = (ROOT / "pyproject.toml").is_file() and (ROOT / "notebooks").is_dir()


def _shipped(name: str) -> Path:
    """A folder of the checkout; a wheel carries it as ``kit/_<name>`` (see pyproject.toml)."""
    return ROOT / name if IN_CHECKOUT else PACKAGE / f"_{name}"


def notebooks_folder() -> Path:
    """The folder of the kit's notebooks."""
    return _shipped("notebooks")


def data_file(name: str) -> Path:
    """A file of data/; ReportError when the installation lacks it."""
    path = _shipped("data") / name
    if not path.exists():
        raise ReportError(f"{path} is missing: the installation of kit is damaged; install it again")
    return path


def models_folder() -> Path:
    """The folder of generated models: ``KIT_MODELS``, else data/models of the checkout, else in the user's cache."""
    own = ROOT / "data" / "models" if IN_CHECKOUT else platformdirs.user_cache_path("gguf-kit") / "models"
    return Path(os.environ.get("KIT_MODELS") or own)


def shown(path) -> str:
    """A path as a command takes it, from the folder of the checkout where it is below that: a page says nothing of a home."""
    path = Path(path)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def results_folder() -> Path:
    """The default folder of runs: ``KIT_RESULTS``, else results/ of the checkout, else ./kit-results."""
    return Path(os.environ.get("KIT_RESULTS") or (ROOT / "results" if IN_CHECKOUT else Path.cwd() / "kit-results"))


def measurements_folder() -> Path:
    """The folder of the store of measurements: ``KIT_MEASURED``, else that of the models."""
    return Path(os.environ.get("KIT_MEASURED") or models_folder())
