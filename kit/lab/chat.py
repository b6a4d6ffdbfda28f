"""chat: a conversation as token ids, by the template that the file carries (Jinja, run in jinja2's sandbox).

A template sees what transformers' apply_chat_template shows it and renders to the same text. transformers is not needed.
"""

import datetime
import json
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache

from kit.errors import ModelError
from kit.gguf.keys import Keys
from kit.model.special_tokens import named

_KEY = "tokenizer.chat_template"
_TOOLS = f"{_KEY}.tool_use"  # a second template, which some files have for conversations with tools
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names of the text that a model wrote before its answer


def chat(file, tokenizer, messages: Sequence[dict], **variables) -> list[int]:
    """Token ids of ``messages`` ({"role": ..., "content": ...}) and of the head of the answer, to go on from.

    ``tokenizer``: the file's (kit.model.tokenizer.tokenizer_of). The ids begin with one begin token where the tokenizer adds
    it, whether the template writes it or not. Arguments and errors are those of ``render``.
    """
    ids = tokenizer.encode(render(file, messages, **variables), ends=False)
    return ids if tokenizer.bos is None or ids[:1] == [tokenizer.bos] else [tokenizer.bos, *ids]


def render(file, messages: Sequence[dict], tools: Sequence[dict] | None = None, **variables) -> str:
    """The conversation as text, with the marks of its turns.

    ``tools``: JSON schemas of functions. ``variables``: what else the template reads (enable_thinking=False).
    A content that is None, or a list of texts, is one text for templates that know no other.
    Raises ModelError for a file without a template, for a template that refuses this conversation, and for what is none.
    """
    template = _template(file, tools)
    given = {"tools": tools, "documents": None, "add_generation_prompt": True} | named(file) | variables

    def rendered(messages):
        return _environment().from_string(template).render({"messages": [_message(each) for each in messages]} | given)

    messages = _checked(file, messages)
    if (plain := [message | _plain(message) for message in messages]) != messages:
        with suppress(Exception):
            if _says(text := rendered(messages), messages):
                return text
        messages = plain
    with _refusals(file):
        return rendered(messages)


def variables_of(file) -> set[str]:
    """Names of the variables that the file's template reads and does not set itself: ``messages``, ``enable_thinking``...

    Raises ModelError for a file without a template, and for one that is not Jinja.
    """
    from jinja2 import meta

    with _refusals(file):
        return meta.find_undeclared_variables(_environment().parse(_template(file))) - _environment().globals.keys()


def _template(file, tools=None) -> str:
    keys = Keys(file, error=ModelError)
    template = keys.text(_TOOLS if tools and _TOOLS in keys else _KEY, None)
    if template is None:
        raise ModelError(
            f"{file.path}: has no chat template ({_KEY}): leave out --chat, or write the special tokens into the prompt"
        )
    return template


@contextmanager
def _refusals(file):
    """A template is a program of the file's author: whatever it raises is its refusal, one ModelError."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        remedy = "write the marks of the turns into the prompt"
        raise ModelError(f"{file.path}: the chat template rejects this conversation: {reason}; {remedy}") from None


def _checked(file, messages) -> list[dict]:
    """The messages as a list; ModelError for one that no program takes, which some templates would leave out in silence."""
    if isinstance(messages, dict | str | bytes) or not isinstance(messages, Iterable):
        raise ModelError(f"{file.path}: messages is a list of dicts with role and content, not {type(messages).__name__}")
    messages = list(messages)
    for number, message in enumerate(messages, 1):
        wrong = f"{file.path}: message {number} of the conversation"
        if not isinstance(message, dict):
            raise ModelError(f"{wrong} is no dict with role and content, but {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ModelError(f"{wrong} has no role: system, user, assistant or tool")
        if not isinstance(content := message.get("content"), str | list | tuple | dict | None):
            raise ModelError(f"{wrong}: content is a text or a list of parts, not {type(content).__name__}")
    return messages


def _plain(message: dict) -> dict:
    """The content as one text: none is empty, as in a call of a tool; of a list of texts the lines, as llama.cpp has them."""
    if message.get("content", "") is None:
        return {"content": ""}
    return {"content": "\n".join(texts)} if (texts := _texts(message)) else {}


def _texts(message: dict) -> list[str]:
    """The texts of a content that is a list of nothing else."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else []
    texts = [each["text"] for each in parts if isinstance(each, dict) and each.get("type") == "text" and "text" in each]
    return [str(text) for text in texts] if len(texts) == len(parts) else []


def _says(text: str, messages) -> bool:
    """Whether a template wrote the texts of lists: neither left them out nor wrote the list as Python or JSON has it."""
    lists = [(each["content"], texts) for each in messages if (texts := _texts(each))]
    return all(part.strip() in text for _, texts in lists for part in texts) and not any(
        form in text for content, _ in lists for form in (str(content), json.dumps(content, ensure_ascii=False))
    )


def _message(message: dict) -> dict:
    """The message without keys that are None, and its thought by both names that templates read."""
    given = {key: value for key, value in message.items() if value is not None}
    thought = next((given[name] for name in _THOUGHTS if name in given), None)
    return given if thought is None else {"thinking": thought} | given | {"reasoning_content": thought}


@lru_cache(1)
def _environment():
    """What templates run in: jinja2's sandbox with the blocks, filters and functions that transformers adds."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}``: marks the assistant's text for training and renders to its body."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)  # a scope of its own, as theirs

        def _body(self, caller):
            return caller()

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(message):
        raise TemplateError(message)

    extensions = ["jinja2.ext.loopcontrols", Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda pattern: datetime.datetime.now().strftime(pattern),
    }
    return environment
