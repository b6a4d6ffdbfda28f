"""The prompt of `kit generate`, from its options: a text, messages of a chat, or token ids."""

import os

import click

from kit.errors import ModelError
from kit.system.files import read_text
from kit.units import from_json

PROMPT = "The capital of France is"  # of commands that are printed


def text_of(prompt, path):
    """The prompt of -p or --prompt-file as valid UTF-8; one newline at the end of a file or of standard input is dropped."""
    if path is not None or prompt == "-":
        return read_text("-" if path is None else path, ModelError).removesuffix("\n")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        try:
            return os.fsencode(prompt).decode()  # what a locale without these letters (LC_ALL=C) made of UTF-8
        except UnicodeError:
            told = f"-p: not UTF-8 at character {error.start}: convert the text first, for example with iconv"
        raise ModelError(told) from None
    return prompt


def chat_ids(opened, messages, variables):
    """Token ids of the messages, by the file's template with the ``variables`` (JSON, or None)."""
    from kit.lab.chat import chat, variables_of
    from kit.model.tokenizer import tokenizer_of

    given = _variables(variables) if variables is not None else {}
    read = variables_of(opened) - {"messages"} if given else set()
    if unread := given.keys() - read:
        told = ", ".join(sorted(read)) or "none"
        raise click.UsageError(
            f"--chat-template-kwargs: the file's chat template does not read {min(unread)!r}; it reads {told}"
        )
    return chat(opened, tokenizer_of(opened), messages, **given)


def _variables(text):
    try:
        given = from_json(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--chat-template-kwargs") from None
    if not isinstance(given, dict):
        raise click.BadParameter(
            "not a JSON object such as '{\"enable_thinking\": false}'", param_hint="--chat-template-kwargs"
        )
    return given


def ids_of(text):
    """Token ids, separated by commas or spaces."""
    try:
        return [int(token) for token in text.replace(",", " ").split()]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of token ids such as 1,450,7483", param_hint="--tokens") from None
