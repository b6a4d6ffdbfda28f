"""A sweep's spec: a strict YAML file in, the cells of its grid out."""

import hashlib
import itertools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

import kit
from kit.errors import CacheError, ModelError, ReportError, known
from kit.lab import profiles
from kit.lab.report import parameters, sources
from kit.lab.report.planning import RESERVED
from kit.lab.report.sweep import decode
from kit.lab.synthetic.geometry import GEOMETRIES, MIXES
from kit.lab.synthetic.write import REVISION
from kit.system.files import read_yaml

OWN = {"decode": Path(__file__).parent / "decode.ipynb"}  # beside those of notebooks/
AXES = {"policies": "policy", "capacities": "capacity"}  # list of the spec -> the notebook parameter that it sets
KEYS = ("profile", "notebooks", "models", "quantizations", *AXES, "parameters")
STANDS_FOR = "granite-3.3-8b"  # the model when the spec names quantizations alone


@dataclass(frozen=True)
class Model:
    """A GGUF file (``source``: a path or hf://...), or one to generate: a geometry with a mix of block formats.

    Neither: each notebook's own model of the profile.
    """

    source: str = ""
    geometry: str = ""
    mix: str = ""
    layers: int | None = None
    seed: int = 0

    @property
    def label(self) -> str:
        """As the spec names it, with the quantization."""
        return f"{self.geometry} {self.mix}" if self.geometry else self.source

    def digest(self) -> str:
        """What distinguishes its contents: SHA-256 of the file's bytes, or all that a generated one follows from."""
        if self.geometry:
            return f"{self.geometry}-{self.mix}-{self.layers}layers-seed{self.seed}-r{REVISION}"
        if not self.source:
            return f"profile-r{REVISION}"
        with kit.open(self.source) as file:
            paths = file.paths
        total = hashlib.sha256()
        for path in paths:
            with open(path, "rb") as part:
                total.update(hashlib.file_digest(part, "sha256").digest())
        return total.hexdigest()


@dataclass(frozen=True)
class Cell:
    """One notebook with one choice of everything. ``source``: the notebook's text; ``settings``: parameter -> value, as text;
    ``kind`` of machine."""

    notebook: str
    source: str = field(repr=False)
    profile: str
    model: Model
    model_digest: str
    settings: dict[str, str] = field(default_factory=dict)
    kind: str = ""

    @property
    def key(self) -> str:
        """A digest of all that the cell's numbers follow from: notebook, the kit's code, data and libraries that it uses,
        parameters, model, kind of machine and version of the kit."""
        settings = sorted(self.settings.items())
        facts = [self.notebook, self.profile, settings, self.model_digest, self.kind, kit.__version__]
        facts.append(_follows_from(self.source))
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def name(self) -> str:
        """Name of its folder: the label and the first digits of its key."""
        text = "".join(c if c.isalnum() or c in "._" else "-" for c in self.label)
        return f"{text[:80]}-{self.key[:8]}"

    @property
    def label(self) -> str:
        """In words: the notebook, the model and the settings."""
        return " ".join(filter(None, [self.notebook, self.model.label, *self.settings.values()]))

    @property
    def facts(self) -> dict[str, str]:
        """What distinguishes the cell from the others of its notebook."""
        return {"model": self.model.label or f"of the profile {self.profile}"} | self.settings | {"machine": self.kind}


def _follows_from(source: str) -> str:
    """A digest of a notebook's text and of what its code follows from (kit.lab.report.sources)."""
    cells = nbformat.reads(source, as_version=4).cells
    return sources.digest([cell.source for cell in cells if cell.cell_type == "code"], source)


def read(path: Path, notebooks: Path) -> list[Cell]:
    """The cells of a spec file, without a kind of machine. ReportError names the file, the key, the value and what is known."""
    spec = read_yaml(path)
    try:
        return _cells(_checked(spec), path.parent, notebooks)
    except (ReportError, CacheError, ModelError) as error:
        raise ReportError(f"{path}: {error}") from None


def _cells(spec: dict, folder: Path, notebooks: Path) -> list[Cell]:
    profile = profiles.get(spec.get("profile", "quick"))
    sources = _sources(spec, notebooks)
    axes = _axes(spec)
    takes = {name: parameters.read(nbformat.reads(text, as_version=4).cells, name) for name, text in sources.items()}
    for name in axes:
        if name in RESERVED and name != "device":
            raise ReportError(f"parameters: {name} is set with its own key: profile or models")
        if not any(name in owned for owned in takes.values()):
            every = sorted({parameter for owned in takes.values() for parameter in owned})
            raise ReportError(f"no notebook of this grid has a parameter {name!r}; they have {', '.join(every)}")
    digests: dict[Model, str] = {}
    cells = []
    for notebook, text in sources.items():
        mine = {name: values for name, values in axes.items() if name in takes[notebook]}
        choices = [[_text(takes[notebook][name], value) for value in values] for name, values in mine.items()]
        for values in itertools.product(*choices):
            settings = dict(zip(mine, values, strict=True))
            if notebook in OWN:
                decode.check(*(settings.get(name, takes[notebook][name].default) for name in ("policy", "capacity", "dtype")))
            for model in _models(spec, folder, profile, int(settings.get("seed", 0))):
                digests[model] = digests.get(model) or model.digest()
                cells.append(Cell(notebook, text, profile.name, model, digests[model], settings))
    return cells


def _checked(spec) -> dict:
    if not isinstance(spec, dict):
        raise ReportError(f"expected `key: value` lines with the keys {', '.join(KEYS)}")
    if unknown := sorted(str(key) for key in spec if key not in KEYS):
        raise ReportError(f"unknown keys: {', '.join(unknown)}; choose from {', '.join(KEYS)}")
    if not isinstance(profile := spec.get("profile", ""), str):
        raise ReportError(f"profile: {profile!r} is not a text; give smoke, quick or full")
    for key in KEYS[1:-1]:
        values = spec.get(key, [""])
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            raise ReportError(f"{key}: {values!r} is not a list of texts; a number needs quotes")
    if not isinstance(spec.get("parameters", {}), dict):
        raise ReportError("parameters: expected `name: values` lines")
    return spec


def _axes(spec: dict) -> dict[str, list]:
    """Values of each parameter of a notebook that the spec sets, by its name."""
    axes = {parameter: spec[key] for key, parameter in AXES.items() if key in spec}
    for name, values in spec.get("parameters", {}).items():
        if name in axes:
            raise ReportError(f"parameters: {name} is given twice")
        axes[name] = values if isinstance(values, list) else [values]
        if not axes[name]:
            raise ReportError(f"parameters: {name} has no value")
    return axes


def _sources(spec: dict, folder: Path) -> dict[str, str]:
    wanted = spec.get("notebooks")
    if not wanted:
        raise ReportError("notebooks: name at least one, such as decode or 02")
    others = [name for name in wanted if name not in OWN]
    paths = {name: OWN[name] for name in wanted if name in OWN}
    if others:
        paths |= {name: folder / f"{name}.ipynb" for name in parameters.notebook_names(folder, others, "notebooks: ")}
    return {name: source.read_text(encoding="utf-8") for name, source in paths.items()}


def _text(parameter: parameters.Parameter, value) -> str:
    """The value as `-p name=value` takes it; of the parameter's type already here, since YAML has types, too."""
    kinds = (int, float) if parameter.type is float else (parameter.type,)
    if type(value) not in kinds:
        raise ReportError(f"{parameter.name}: {value!r} is a {type(value).__name__}, not what it takes: {parameter}")
    parameter.parse(str(value))
    return str(value)


def _models(spec: dict, folder: Path, profile: profiles.Profile, seed: int) -> list[Model]:
    """Every model in every quantization; a file has its own."""
    mixes = spec.get("quantizations")
    for mix in mixes or ():
        known("quantization", mix, MIXES, ReportError)
    if not mixes and "models" not in spec:
        return [Model()]
    models: dict[Model, None] = {}
    for name in spec.get("models", [STANDS_FOR]):
        if name in GEOMETRIES:
            geometry, layers = profile.models.get(name, (name, None))
            models |= {Model("", geometry, mix, layers, seed): None for mix in mixes or ["Q4_K_M"]}
        else:
            models[Model(_file(folder, name))] = None
    return list(models)


def _file(folder: Path, name: str) -> str:
    """The source of a model that is no geometry; a relative path starts at ``folder``, the spec's."""
    if name.startswith("hf://"):
        return name
    source = (folder / os.path.expanduser(name)).absolute()
    if not source.is_file():
        raise ReportError(f"models: {name}: is not a file and not one of {', '.join(GEOMETRIES)}")
    return str(source)
