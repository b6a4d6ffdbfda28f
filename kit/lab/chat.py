"""chat: a conversation as token ids, by the template that the file carries (Jinja, run in jinja2's sandbox).

A template sees what transformers' apply_chat_template shows it and renders to the same text. transformers is not needed.
"""

import datetime
import json
from collections.abc import Sequence
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
    Raises ModelError for a file without a template, and for a template that refuses this conversation.
    """
    template = _template(file, tools)
    given = {"tools": tools, "documents": None, "add_generation_prompt": True} | named(file) | variables

    def rendered(messages):
        return _environment().from_string(template).render({"messages": [_message(each) for each in messages]} | given)

    if any(message.get("content", "") is None for message in messages):  # a call of a tool has none, as OpenAI's servers say
        with suppress(Exception):
            return rendered(messages)
        messages = [message | {"content": ""} if message.get("content") is None else message for message in messages]
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
