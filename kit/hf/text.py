"""generate: text from a transformers model over the kit's weights, with the result of kit.generate."""

from collections.abc import Callable, Sequence

import torch
from transformers import TextStreamer

from kit.errors import ModelError, TokenizerError
from kit.gguf.reader import GGUFFile
from kit.gguf.reader import open as open_file
from kit.hf.model import load
from kit.model.generate import Generation, bytes_read
from kit.trace import Trace


def generate(
    file,
    prompt: str | Sequence[int],
    max_tokens: int = 16,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    on_text: Callable[[str], None] | None = None,
    stop_at_end: bool = True,
    **ways,
) -> Generation:
    """Continue ``prompt`` with the model of ``file`` (a path or an open file).

    For the arguments see kit.generate, and kit.hf.load for ``ways``. ``on_text`` is called with whole words.
    """
    if max_tokens < 1:
        raise ModelError(f"max_tokens is {max_tokens}, expected at least 1")
    trace, file = Trace(), file if isinstance(file, GGUFFile) else open_file(file)
    model, tokenizer = load(file, trace=trace, **ways)
    if tokenizer is None and isinstance(prompt, str):
        raise TokenizerError(f"{file.path}: the file has no tokenizer; give the prompt as token ids")
    answer = Generation(tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt))
    torch.manual_seed(seed)
    options: dict = {"do_sample": temperature > 0}
    if temperature:
        options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if not stop_at_end:
        model.generation_config.eos_token_id = None
    if on_text and tokenizer is not None:
        options["streamer"] = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        options["streamer"].on_finalized_text = lambda text, stream_end=False: on_text(text) if text else None
    ids = torch.tensor([answer.prompt], dtype=torch.int64, device="cpu")
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, **options)[0].tolist()
    answer.tokens = out[1:] if model.config.is_encoder_decoder else out[len(answer.prompt) :]
    frame = trace.frame()
    answer.seconds = frame.loc[frame.what == "token", "seconds"].tolist()
    answer.nbytes = bytes_read(file, trace.spans, [len(answer.prompt)] + [1] * len(answer.tokens))
    answer.text = tokenizer.decode(answer.tokens, skip_special_tokens=True) if tokenizer is not None else ""
    answer.stopped = "max_tokens" if len(answer.tokens) == max_tokens else "end of text"
    return answer
