"""chat: a conversation as token ids, by the template that the file carries (Jinja, run in jinja2's sandbox)."""

import datetime
import json
from collections.abc import Sequence

from kit.errors import ModelError

_KEY = "tokenizer.chat_template"


def chat(file, tokenizer, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of ``messages`` ({"role": ..., "content": ...}) and of the head of the answer, to go on from.

    ``tokenizer``: the file's (kit.model.tokenizer.tokenizer_of). The template gets what transformers gives it
    (apply_chat_template). ModelError for a file without a template, or with one that refuses these messages.
    """
    # The template writes the begin token, or leaves it to the tokenizer.
    ids = tokenizer.encode(render(file, messages), ends=False)
    return ids if tokenizer.bos is None or ids[:1] == [tokenizer.bos] else [tokenizer.bos, *ids]


def render(file, messages: Sequence[dict[str, str]]) -> str:
    """The conversation as text, with the marks of its turns."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    template = file.metadata.get(_KEY)
    if not isinstance(template, str):
        raise ModelError(f"{file.path}: has no chat template ({_KEY}): leave out --chat, or write the marks into the prompt")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    words = file.metadata.get("tokenizer.ggml.tokens", ())
    marks = {f"{name}_token": _word(file, words, name) for name in ("bos", "eos", "padding", "unknown")}
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=True, tools=None, documents=None,
            raise_exception=_refuse, strftime_now=lambda pattern: datetime.datetime.now().strftime(pattern), **marks,
        )  # fmt: skip
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ModelError(f"{file.path}: its chat template refuses this conversation: {error}") from None


def _refuse(message):
    raise ValueError(message)


def _word(file, words, name: str) -> str:
    token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return str(words[token]) if token is not None and 0 <= token < len(words) else ""
