"""kit perplexity: how well a model predicts a text, with weights or activations rounded."""

import warnings

import click
from click.core import ParameterSource

from kit.lab.commands.generate import LINEAR
from kit.units import to_json, with_error

DTYPES = click.Choice(["float32", "float16", "bfloat16", "int8"])


@click.command("perplexity")
@click.argument("file")
@click.option("--text", metavar="FILE", help="A text; - reads standard input.  [default: Python's help on itself]")
@click.option(
    "--tokens", default=4096, show_default=True, type=click.IntRange(2), help="Number of tokens of the text to score, at most."
)
@click.option("--context", type=click.IntRange(2), help="Tokens per window.  [default: 512, or the model's context if smaller]")
@click.option("--stride", type=click.IntRange(1), help="Tokens between the starts of two windows.  [default: half a window]")
@click.option("--linear", default="auto", show_default=True, help=f"{LINEAR}.")
@click.option(
    "--dtype", type=DTYPES, default="float32", show_default=True, help="Round weights to this; int8 as kit compress does."
)
@click.option("--memory", metavar="SIZE", help="Memory for the whole program; see kit generate --help.")
@click.option("--policy", default="LRU", show_default=True, help="Which experts --memory keeps.")
@click.option("--kv", default="float32", show_default=True, help="KV cache type: float32, float16 or q8_0.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_context
def command(ctx, file, text, tokens, context, stride, linear, dtype, memory, policy, kv, as_json):
    """Perplexity of a model on a text.

    FILE is a GGUF file, a trained model of kit fetch, a compressed model, or hf://owner/repo/file.gguf.
    --linear auto multiplies with the file's own blocks (fused), or with rounded weights (matmul) if --dtype is given.
    Windows overlap by half, so every token after the first window is scored with at least half a window before it.
    Every window begins with the file's begin-of-text token, if the file asks for one. The error is one standard
    error, if tokens are independent. If kit has no forward pass for the architecture, the model runs through
    transformers, if the extra `hf` is installed.

    \b
    kit perplexity smollm2-135m
    kit perplexity model.gguf --text book.txt --context 2048 --linear fused-int8
    kit perplexity model.gguf --dtype bfloat16 --json
    kit perplexity mixture.gguf --memory 8GiB

    Exit code: 0 success, 2 error.
    """  # fmt: skip
    from kit.errors import KitWarning, ModelError
    from kit.lab.measuring.busy import watching
    from kit.lab.predicting import perplexity
    from kit.lab.predicting.opening import Options, asked_of, open_model
    from kit.model.hyperparameters import read_config
    from kit.system.files import read_text

    if stride and context and stride >= context:
        raise click.UsageError(f"--stride {stride}: give at most {context - 1}, because windows have {context} tokens")
    words = read_text(text, ModelError) if text else perplexity.english()

    def within(opened):
        length = context or min(512, read_config(opened).context)
        return {"context": length, "rows": length}

    asked = asked_of(ctx) - {"context"}  # here of a window, and every pass has those
    ran = open_model(file, Options(linear, None, memory, policy, kv=kv, dtype=dtype, asked=asked), within)
    with ran.file as opened:
        model = ran.model()
        tokenizer, most = model.tokenizer, model.max_context
        if context and context > most:
            raise ModelError(f"{opened.path}: --context {context} is too large: the model's windows have 2 to {most} tokens")
        context = context or min(512, most)
        ids = perplexity.encode(tokenizer, words, tokens)
        if len(ids) < tokens and ctx.get_parameter_source("tokens") is ParameterSource.COMMANDLINE:
            told = f"{text or 'the text'} has {len(ids):,} tokens, fewer than --tokens {tokens}: all of them are scored"
            warnings.warn(told, KitWarning, stacklevel=2)
        with watching(before=False) as busy:
            result = perplexity.perplexity(model, ids, tokenizer.bos, context, stride, progress=not as_json)
    facts = {
        "perplexity": result.value, "error": result.error, "tokens": len(result.surprisal), "context": context,
        "stride": stride or context // 2, "text": text or "pydoc_data.topics", "linear": ran.linear, "dtype": dtype,
        "kv": kv, "memory": ran.budget and str(ran.budget), "seconds": result.seconds,
        "tokens_per_second": result.passed / result.seconds,
        **busy.facts,
    }  # fmt: skip
    if as_json:
        click.echo(to_json(facts))
        return
    if busy:
        click.echo(busy.line, err=True)
    click.echo(with_error(result.value, result.error, ".3f"))
    click.echo(
        f"{facts['tokens']} tokens of {facts['text']}, windows of {context} every {facts['stride']}; "
        f"{facts['tokens_per_second']:.0f} tok/s through the model",
        err=True,
    )
