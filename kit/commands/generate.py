"""kit generate: text from a GGUF file as it comes, and what it cost."""

import click

from kit.units import to_json


@click.command("generate")
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="The same, as an option.")
@click.option("-p", "--prompt", help="Text to go on from.")
@click.option("--tokens", metavar="IDS", help="Token ids to go on from, such as 1,450,7483, instead of a text.")
@click.option("-n", "--max-tokens", default=64, show_default=True, type=click.IntRange(1), help="How many tokens to generate.")
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the most likely token; more draws.")
@click.option("--top-k", default=0, show_default=True, help="Draw from this many of the most likely tokens (0: all).")
@click.option("--top-p", default=1.0, show_default=True, help="Draw from the fewest that hold this probability.")
@click.option("--seed", default=0, show_default=True, help="The same seed draws the same tokens.")
@click.option("--attention", default="fused", show_default=True, help="A variant of kit.attention.")
@click.option("--linear", default="auto", show_default=True, help="A variant of kit.linear; see above.")
@click.option("--cache", default="auto", show_default=True, help="Which dequantized weights to keep; see above.")
@click.option("--backend", default="cpu", show_default=True, help="The dequantizer.")
@click.option("--kv", default="float32", show_default=True, help="KV cache type: float32, float16 or q8_0.")
@click.option("--context", type=int, help="Most positions to hold.  [default: what the model was trained for]")
@click.option("--routes", type=click.Path(dir_okay=False), metavar="FILE", help="Write the experts in use, for kit experts.")
@click.option("--ignore-end", is_flag=True, help="Go on after the model's end-of-text token.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON when done, and no text on the way.")
def command(
    file,
    model,
    prompt,
    tokens,
    max_tokens,
    routes,
    ignore_end,
    as_json,
    cache,
    backend,
    attention,
    linear,
    kv,
    context,
    **sampling,
):
    """Generate text from a model, and say what it cost.

    FILE is a GGUF file, a trained model of kit fetch, or hf://owner/repo/file.gguf. The text goes to standard output,
    the speeds to standard error: time to first token; prefill and decode in tokens a second, with the GB/s of weights
    and KV cache that they read; peak memory.

    \b
    --linear auto         fused, straight from the file's blocks; dequantized where a --cache or --backend is asked for
             fused-int8   activations rounded to eight bits, as llama.cpp does: faster, not the same numbers

    \b
    --cache none          dequantize at every use
            all           keep every dequantized weight
            lru:4GiB      keep the most recently used
            pinned:4GiB   keep the first that fit, and never let go
            auto          all when they fit in 70% of the free memory, else pinned with that much

    \b
    kit generate model.gguf -p "The capital of France is" -n 5
    kit generate model.gguf --tokens 1,450,7483 --cache lru:4GiB --json
    kit generate mixture.gguf -p "Once upon a time" --routes routes.jsonl.gz

    An architecture that the kit has no forward pass for runs through transformers, if `gguf-kit[hf]` is installed.

    Exit code: 0 generated, 2 not.
    """  # fmt: skip
    import functools

    import kit
    from kit.cache.routes import geometry_of, of_spans, write
    from kit.errors import ModelError
    from kit.gguf.summary import NO_WEIGHTS
    from kit.lab.machine import peak_memory
    from kit.model.config import ARCHITECTURES

    if (file is None) == (model is None):
        raise click.UsageError("name one model: FILE, or --model FILE")
    file = file or model
    if (prompt is None) == (tokens is None):
        raise click.UsageError("give a text by -p or token ids by --tokens, one of the two")
    opened = kit.open(file)
    if not any(info.elements for info in opened.tensors.values()):
        raise ModelError(f"{opened.path}: {NO_WEIGHTS}")
    if routes:
        geometry_of(opened)  # what is no mixture is said before anything is generated
    if linear == "auto":
        linear = "fused" if (cache, backend) == ("auto", "cpu") else "dequantized"
    policy = _policy(cache, kit.Weights(opened).working_set)
    if opened.architecture in ARCHITECTURES or not kit.hf.installed():
        start, via = kit.generate, "the kit's own pass"
        model = kit.Transformer(kit.Weights(opened, policy, backend), attention, linear, context, kv)
    elif routes:
        raise ModelError(f"{opened.path}: --routes needs the kit's own pass, which has no {opened.architecture}")
    else:
        blocks = {"fused": "blocks", "fused-int8": "blocks-int8"}.get(linear)
        ways = {"weights": blocks} if blocks else {"cache": policy}
        start, via, model = functools.partial(kit.hf.generate, **ways), "transformers", opened
    answer = start(
        model,
        _ids(tokens) if prompt is None else prompt,
        max_tokens,
        on_text=None if as_json or prompt is None else lambda text: click.echo(text, nl=False),
        stop_at_end=not ignore_end,
        **sampling,
    )
    if routes:
        written = of_spans(model.trace.spans, opened)
        write(written, routes)
        click.echo(f"{routes}: {len(written.expert):,} uses of experts in {len(written.decoded)} tokens and a prompt", err=True)
    speed = answer.speed() | {"peak_memory_bytes": peak_memory(), "linear": linear, "cache": repr(policy), "via": via}
    if as_json:
        click.echo(to_json({"text": answer.text, "prompt": answer.prompt, "tokens": answer.tokens} | speed))
    else:
        click.echo("" if prompt is not None else answer.text or " ".join(map(str, answer.tokens)))
        click.echo("\n".join(_lines(answer, speed)), err=True)


def _ids(text):
    try:
        return [int(token) for token in text.replace(",", " ").split()]
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of token ids such as 1,450,7483", param_hint="--tokens") from None


def _policy(text, working_set):
    import kit
    from kit.lab.machine import memory_available

    name, _, capacity = text.partition(":")
    room = int(0.7 * memory_available())
    if name == "auto":
        return kit.HashMap() if working_set <= room else kit.Pinned(room)
    plain, limited = {"none": kit.NoCache, "all": kit.HashMap}, {"lru": kit.LRU, "pinned": kit.Pinned}
    if name in plain and not capacity:
        return plain[name]()
    if name in limited and capacity:
        return limited[name](capacity)
    message = f"{text!r} is none of none, all, auto, lru:SIZE, pinned:SIZE (a size such as 4GiB)"
    raise click.BadParameter(message, param_hint="--cache")


def _lines(answer, speed):
    from kit.units import format_bytes, format_seconds

    def rate(name):
        return f"{speed[f'{name}_tokens_per_second']:10.2f} tok/s {speed[f'{name}_gb_per_second']:8.1f} GB/s read"

    yield ""
    yield f"first token  {format_seconds(answer.ttft):>10}"
    yield f"prefill    {rate('prefill')}   {len(answer.prompt)} tokens"
    if len(answer.tokens) > 1:
        yield f"decode     {rate('decode')}   {len(answer.tokens) - 1} tokens"
    yield f"peak memory  {format_bytes(speed['peak_memory_bytes']):>10}"
    yield f"weights      {speed['linear']}, {speed['cache']}"
    yield f"forward pass {speed['via']}"
    yield f"stopped      {answer.stopped}"
