"""What a shell completes after the `kit` command: names of models, and the values of options, from the tables themselves.

click writes the scripts for bash, zsh and fish (docs/cli.md).
"""

import importlib
from functools import partial
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_MODELS = ("kit.gguf.trained:TRAINED", "kit.gguf.stores:names")
_VALUES = {  # parameter of a command -> tables or functions ("module:name") of its values; imported when somebody asks
    "file": _MODELS,
    "model": _MODELS,
    "names": ("kit.gguf.trained:TRAINED",),
    "routes": (*_MODELS, "kit.lab.predicting.routes:CAPTURES"),
    "name": ("kit.lab.synthetic.geometry:GEOMETRIES",),
    "mix": ("kit.lab.synthetic.geometry:MIXES",),
    "attention": ("kit.model.attention:ATTENTION",),
    "linear": ("kit.model.linear:LINEAR",),
    "kv": ("kit.model.kvcache:KV_TYPES",),
    "backend": ("kit.quants.registry:BACKENDS",),
    "backends": ("kit.quants.registry:BACKENDS",),
    "tiers": ("kit.cpu.simd.tiers:TIERS",),
    "machine": ("kit.lab.explaining.elsewhere:machines",),
    "only": ("kit.lab.completion:notebooks",),
    "pages": ("kit.gguf.reader:PAGES",),
    "policy": ("kit.model.slots:NAMES",),
    "coding": ("kit.lab.compressor:CODINGS",),
    "decoder": ("kit.codec.decoders:DECODERS",),
}
_WORDS = {  # values beyond those of the tables
    "cache": ("none", "all", "auto", "lru:", "pinned:"), "linear": ("auto",), "tiers": ("all",), "backends": ("fused",),
}  # fmt: skip
_FILES = ("file", "model", "routes")  # parameters that also take the path of a GGUF file


def complete(group: click.Group) -> None:
    """Let the shell complete the parameters of every command of ``group`` that have a table."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            complete(command)
        for param in command.params:
            if (param.name in _VALUES or param.name in _WORDS) and not isinstance(param.type, (click.Choice, click.Path)):
                if not getattr(param, "is_flag", False):
                    param.shell_complete = partial(_items, param.name)


def notebooks() -> list[str]:
    """Names of the kit's notebooks."""
    from kit.system.paths import notebooks_folder  # here, because it takes a while

    return sorted(path.stem for path in notebooks_folder().glob("[!.]*.ipynb"))


def values(name: str) -> list[str]:
    """All values of the parameter ``name``."""
    words = list(_WORDS.get(name, ()))
    for table in _VALUES.get(name, ()):
        module, _, attribute = table.partition(":")
        listed = getattr(importlib.import_module(module), attribute)
        words += listed() if callable(listed) else listed
    return words


def _items(name, ctx, incomplete) -> list[CompletionItem]:
    matching = [value for value in values(name) if value.startswith(incomplete)]
    if name in _FILES and not matching:
        return [CompletionItem(incomplete, type="file")]
    if name in _FILES:  # a shell completes words or files: of the files, these come as words
        matching += sorted(path.name for path in Path().glob("*.gguf") if path.name.startswith(incomplete))
    return [CompletionItem(value) for value in matching]
