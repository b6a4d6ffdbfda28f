"""kit models: lists the models on this machine, of all programs that keep any, by their headers."""

import click


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(as_json):
    """List the models on this machine.

    Looks in the folders of kit, Ollama, LM Studio, Jan, llama.cpp and Hugging Face, and reads the header of each file. Every
    command takes the names that it prints. The last column is the limit of this machine: bytes that a token reads, at the
    speed at which memory reads now; a busy machine has none. A file that cannot be opened is a row that says why.

    OLLAMA_MODELS, LLAMA_CACHE, HF_HUB_CACHE, HF_HOME and JAN_DATA_FOLDER name other folders.

    \b
    kit models
    kit explain ollama:qwen2.5-coder:1.5b

    Exit code: 0 success, 2 error.
    """
    from kit.lab.explaining import quick
    from kit.lab.predicting import listed
    from kit.units import to_json

    busy, memory = quick.now()
    rows = listed.rows(memory)
    if as_json:
        click.echo(to_json({**busy.facts, "rows": rows}))
    else:
        click.echo("\n".join([*([busy.line] if busy else []), *listed.table(rows)]))
