"""kit generate: prints text from a GGUF file as it is generated, then its speed."""

import click

from kit.model.architectures import ARCHITECTURES
from kit.products import PRODUCTS
from kit.units import to_json

BLOCKS = tuple(row.linear for row in PRODUCTS.values())
LINEAR = f"auto, {', '.join(BLOCKS)}, dequantized, matmul, loop or strided"
_WARM = 32  # tokens of the warm-up prompt: short prompts run other kernels


@click.command("generate")
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="The same as FILE.")
@click.option("-p", "--prompt", help="Text to continue; - reads standard input.")
@click.option("--prompt-file", metavar="FILE", help="File with the text to continue; one newline at its end is dropped.")
@click.option("--tokens", metavar="IDS", help="Token ids to continue, such as 1,450,7483, instead of a text.")
@click.option("--chat", is_flag=True, help="Format the text as a user's message with the file's chat template.")
@click.option("--system", metavar="TEXT", help="System message of the chat.")
@click.option(
    "--chat-template-kwargs", metavar="JSON", help="Variables of the chat template, such as '{\"enable_thinking\": false}'."
)
@click.option("-n", "--max-tokens", default=64, show_default=True, type=click.IntRange(1), help="Number of tokens to generate.")
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the most likely token; above 0 tokens are drawn.")
@click.option("--top-k", default=0, show_default=True, help="Draw from the K most likely tokens (0: all).")
@click.option("--top-p", default=1.0, show_default=True, help="Draw from the fewest tokens with this total probability.")
@click.option("--seed", default=0, show_default=True, help="Seed of the draws: the same seed gives the same tokens.")
@click.option("--attention", default="fused", show_default=True, help="fused, blas, chunked, sdpa, strided, loop or python.")
@click.option("--linear", default="auto", show_default=True, help=f"{LINEAR}; see above.")
@click.option("--cache", help="none, all, auto, lru:SIZE or pinned:SIZE; see above.  [default: none with fused; else auto]")
@click.option("--memory", metavar="SIZE", help="Memory for the whole program, such as 8GiB; see above.")
@click.option("--policy", default="LRU", show_default=True, help="Cache policy of the experts with --memory, or auto.")
@click.option("--backend", default="cpu", show_default=True, help="Dequantizer: cpu, plain, reference or triton.")
@click.option("--kv", default="float32", show_default=True, help="KV cache type: float32, float16 or q8_0.")
@click.option("--context", type=int, help="Maximum number of positions.  [default: the model's training context]")
@click.option("--pages", default="large", show_default=True, help="How the file is mapped: large, small, or copied; see above.")
@click.option(
    "--routes", type=click.Path(dir_okay=False), metavar="FILE", help="Record which experts are used, for kit experts."
)
@click.option("--draft", metavar="FILE", help="ngram, mtp, or the file of a smaller model or a gemma4-assistant; see above.")
@click.option("--draft-max", default=4, show_default=True, type=click.IntRange(1, 8), help="The most tokens of a draft.")
@click.option("--by-depth", is_flag=True, help="Then time a token after 64 to 128K positions, by kind of layer.")
@click.option("--ignore-end", is_flag=True, help="Continue after the model's end-of-text token.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON at the end, and no text before.")
@click.pass_context
def command(
    ctx, file, model, prompt, prompt_file, tokens, chat, system, chat_template_kwargs, max_tokens, routes, by_depth, ignore_end,
    pages, as_json, cache, memory, policy, backend, attention, linear, kv, context, draft, draft_max, **sampling,
):  # fmt: skip
    """Generate text from a model, and show its speed.

    FILE is a GGUF file, a trained model of kit fetch, a compressed model of kit compress, or hf://owner/repo/file.gguf.
    The text goes to standard output. The speeds go to standard error: time to first token; tokens per second of prefill
    and decode, with the GB/s of weights and KV cache that they read; the limit of this machine's memory for the decode; peak
    memory. A warm-up pass before compiles or loads the kernels and reads the file; its time is a separate line. On a
    terminal, a long prompt has a progress bar.

    \b
    --linear auto         fused; dequantized if you give --backend or a --cache other than pinned
             PRODUCTS
             dequantized  multiply with float32 weights, from the cache or dequantized at each use

    \b
    --cache none          dequantize (or unpack) weights at every use
            all           keep every dequantized weight
            lru:4GiB      keep the most recently used weights
            pinned:4GiB   keep the first weights that fit, and never replace them
            auto          all if they fit in 70% of the free memory; else pinned with that size
    Without --linear, or with a fused one, pinned:4GiB is for a file larger than memory. It keeps 4 GiB of the
    file's blocks, including the matrix in use, and reads the others from the disk for every token, with direct reads.

    \b
    --memory 8GiB         for a file larger than memory. Process, context and the weights that every token uses come
                          first. The rest holds experts, in fixed buffers (slots) that threads fill with direct reads;
                          for a dense model it holds the first matrices, as pinned does. A file that fits is mapped.
    --policy LFU          keep the experts that are used most often. kit experts compares policies. auto starts with
                          LRU, then takes the policy that hits most when the first 24 tokens are replayed

    \b
    --draft small.gguf    let a smaller model with the same vocabulary propose tokens, which this model verifies several at a
                          time. Greedy answers stay the same, drawn ones have the same distribution
            ngram         propose what followed the last tokens when the prompt or the answer had them before
            mtp           let the MTP head of the file propose tokens (HEADS)
    The last line says how many tokens were accepted, and the speed with and without. A draft that loses is switched off.

    \b
    --pages large         map the file with 2 MiB pages; if it is cached in small pages, it is read once more
            small         map the file with the pages of the page cache
            copied        copy the file into the memory of the process

    \b
    kit generate model.gguf -p "The capital of France is" -n 5
    kit generate model.gguf --chat --system "Answer in French." -p "Where is Paris?"
    kit generate qwen3.gguf --chat --chat-template-kwargs '{"enable_thinking": false}' -p "Where is Paris?"
    git diff | kit generate model.gguf -p -
    kit generate model.gguf --tokens 1,450,7483 --cache lru:4GiB --json
    kit generate large.gguf -p "Once upon a time" --linear fused --cache pinned:4GiB
    kit generate mixture.gguf -p "Once upon a time" --memory 8GiB
    kit generate qwen2.5-coder-1.5b --prompt-file edit.txt --draft ngram
    kit generate mixture.gguf -p "Once upon a time" --routes routes.jsonl.gz

    If kit has no forward pass for the architecture, the model runs through transformers, if the extra `hf` is
    installed.
    An option that has no effect is an error.

    Exit code: 0 success, 2 error.
    """  # fmt: skip
    import time
    from dataclasses import asdict

    import kit
    from kit.errors import CacheError
    from kit.lab.measuring.busy import watching
    from kit.lab.measuring.process import process_bytes
    from kit.lab.predicting.opening import Options, asked_of, open_model, refuse
    from kit.lab.predicting.routes import geometry_of, of_spans, write_routes
    from kit.lab.progress import PromptTrace, waiting
    from kit.lab.prompts import chat_ids, ids_of, text_of
    from kit.model.generate import Sampler
    from kit.model.hyperparameters import read_config
    from kit.model.tokenizer import tokenizer_of
    from kit.system import peak_memory
    from kit.system.files import check_writable

    asked = asked_of(ctx)
    if (file is None) == (model is None):
        raise click.UsageError("give one model: FILE or --model FILE")
    if sum(given is not None for given in (prompt, prompt_file, tokens)) != 1:
        raise click.UsageError("give exactly one of -p, --prompt-file and --tokens")
    refuse(_idle(asked, sampling["temperature"]), asked)
    prompt = ids_of(tokens) if tokens is not None else text_of(prompt, prompt_file)
    Sampler(**sampling)  # a value out of range is said before any work
    if routes:
        check_writable("--routes", routes, CacheError)
    trace = PromptTrace()

    def words(opened):
        if not chat:
            return prompt
        messages = [{"role": "system", "content": system}] * (system is not None) + [{"role": "user", "content": prompt}]
        return chat_ids(opened, messages, chat_template_kwargs)

    def within(opened):
        said = words(opened)
        length = len(tokenizer_of(opened).encode(said) if isinstance(said, str) else said)
        positions = context or min(read_config(opened).context, length + max_tokens)
        return {"context": positions, "process": process_bytes(opened)}

    how = Options(linear, cache, memory, policy, backend, attention, context, kv, pages, asked=asked)
    ran = open_model(file or model, how, within, trace)
    opened, budget, slots = ran.file, ran.budget, ran.slots
    if routes:
        geometry_of(opened)  # raises for a dense model before anything is generated
    if not ran.straight:
        why = "here: it works with the kit's own pass from the blocks of a file that fits"
        refuse(dict.fromkeys(("by_depth", "draft"), why), asked)
    drafting = {"draft": draft, "draft_max": draft_max} if draft else {}
    prompt = words(opened)
    begun = time.perf_counter()
    some = prompt[: 4 * _WARM if isinstance(prompt, str) else _WARM]
    some = some[:1] * len(some) if slots else some  # one token uses few experts, so few are read for the warm-up
    first = min(max_tokens, 3 + 2 * draft_max) if draft else min(max_tokens, 3)
    with waiting("compiling kernels, once, and reading the file"):
        ran.generate(ran.kept if ran.pins else kit.NoCache(), some, first, stop_at_end=False, trace=trace, **drafting)
    warm = time.perf_counter() - begun
    trace.clear()
    if slots:
        slots.forget()
    if not as_json:
        trace.begin()
    try:
        with watching(before=False) as busy:
            answer = ran.generate(
                ran.kept,
                prompt,
                max_tokens,
                on_text=None if as_json or tokens is not None else lambda text: click.echo(text, nl=False),
                stop_at_end=not ignore_end,
                trace=trace,
                **drafting,
                **sampling,
            )
    finally:
        trace.end()
    if routes:
        written = of_spans(trace.spans, opened)
        write_routes(written, routes)
        uses, decoded = len(written.expert), len(written.decoded)
        click.echo(f"{routes}: {uses:,} uses of experts in the prompt and {decoded} tokens", err=True)
    peak = peak_memory()
    from kit.lab.measuring.speeds import bound_of, lines_of  # here, because nothing before needs the laboratory's memory

    speed = answer.speed() | {
        "peak_memory_bytes": peak,
        **bound_of(answer, bool(memory), busy),
        **busy.facts,
        "linear": ran.linear,
        "cache": ran.told,
        "via": ran.via,
        "kernels_seconds": warm,
        "memory": budget and str(budget),
        "plan_bytes": budget and budget.held,
        "experts": slots and asdict(slots.stats) | {"hit_rate": slots.stats.hit_rate, "waited_seconds": slots.waited},
        "depths": _depths(opened, ran.linear, kv) if by_depth else [],
        "pages": opened.reading_again.told if opened.reading_again else [],
        "draft": asdict(answer.draft) | {"told": answer.draft.told()} if draft else None,
        "faster": _faster(opened) if ran.straight and ran.linear == "fused" and not busy else "",
    }
    if as_json:
        click.echo(to_json({"text": answer.text, "prompt": answer.prompt, "tokens": answer.tokens} | speed))
    else:
        click.echo("" if tokens is None else answer.text or " ".join(map(str, answer.tokens)))
        click.echo("\n".join(lines_of(answer, speed, busy.line)), err=True)


command.help = command.help.replace("PRODUCTS", f"\n{'':13}".join(f"{row.linear:12} {row.help}" for row in PRODUCTS.values()))
command.help = command.help.replace("HEADS", ", ".join(name for name, row in ARCHITECTURES.items() if row.head))


def _depths(opened, linear, kv):
    from kit.lab.explaining import depth  # here, because tables need memory that a run without them does not

    return depth.measured(opened, linear, kv)


def _faster(opened):
    from kit.lab.measuring.measurements import QUALITY, shared

    if not any(row.way.startswith(QUALITY) for row in shared()):
        return ""
    from kit.lab.explaining import offer  # here, because it needs memory that most runs do not

    return offer.faster(opened)


def _idle(asked: set, temperature: float) -> dict[str, str]:
    """The options that have no effect on what is generated -> why."""
    idle = {}
    if temperature == 0:
        idle |= dict.fromkeys(("top_k", "top_p", "seed"), "at --temperature 0 (the most likely token)")
    if "draft" not in asked:
        idle["draft_max"] = "without a draft: add --draft ngram, --draft mtp or --draft FILE"
    if "chat" not in asked:
        idle |= dict.fromkeys(("system", "chat_template_kwargs"), "without a chat: add --chat")
    return idle | {"chat": "on token ids: give the text with -p"} if "tokens" in asked else idle
