"""Chats: templates render to transformers' text, tokens that end an answer are llama.cpp's, a broken template is one line."""

import json
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import model_files
import pytest
from click.testing import CliRunner
from vocabularies import listed_file

import kit
from kit.errors import KitWarning, ModelError
from kit.lab import chat
from kit.lab.commands.cli import main
from kit.model.special_tokens import _ENDS, _FILL
from kit.model.tokenizer import tokenizer_of

TEMPLATES = {path.stem: path.read_text() for path in sorted(Path(__file__).with_name("chat_templates").glob("*.jinja"))}
NAMED = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>", "padding": "<pad>", "seperator": "<sep>"}  # no cls, no mask
THEIRS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "sep_token": "<sep>"}

SYSTEM = {"role": "system", "content": "Be short.  /no_think"}
USER = {"role": "user", "content": " Wo liegt Zürich?\n\n“Genau”, <b>bitte</b> & 漢字 "}
ANSWER = {"role": "assistant", "content": "<think>\nA city.\n</think>\n\nIn Switzerland.\n"}
THOUGHT = {"role": "assistant", "content": "In Switzerland.", "reasoning_content": "\nA city, so a land.\n"}
CALL = {
    "role": "assistant", "content": None, "thinking": "Ask the weather.",
    "tool_calls": [{"type": "function", "id": "a1b2c3d4e", "function": {
        "name": "weather", "arguments": {"city": "Zürich", "days": 2, "exact": True, "at": {"lat": 47.4}, "units": ["°C"]}}}],
}  # fmt: skip
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "a1b2c3d4e", "content": '{"°C": 21.5}'}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather <now> at a place, in °C.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Its name"}, "days": {"type": "integer"},
        "units": {"type": "array", "items": {"type": "string"}}, "exact": {"type": "boolean", "nullable": True}}},
}}]  # fmt: skip
PARTS = {"role": "user", "content": [{"type": "text", "text": "What is this? "}, {"type": "image"}]}
CHATS = {  # name: (messages, what else is given)
    "a question": ([USER], {}),
    "with a system's message": ([SYSTEM, USER], {"enable_thinking": True, "date": "today"}),
    "a second question": ([USER, ANSWER, USER], {}),
    "no thought": ([SYSTEM, USER, ANSWER, USER], {"enable_thinking": False}),
    "a thought of its own": ([USER, THOUGHT], {"keep_past_thinking": True, "reasoning_effort": "high"}),
    "tools": ([SYSTEM, USER], {"tools": TOOLS}),
    "a call of a tool": ([USER, CALL, RESULT], {"tools": TOOLS}),
    "an answer by a tool": ([USER, CALL, RESULT, RESULT, THOUGHT, USER], {"tools": TOOLS}),
    "an image": ([PARTS], {}),
    "an answer first": ([ANSWER, USER], {}),
}


def file_with(template, **keys):
    """A file as far as a template sees it."""
    words = list(NAMED.values())
    ids = {f"tokenizer.ggml.{name}_token_id": words.index(text) for name, text in NAMED.items()}
    metadata = {"tokenizer.ggml.tokens": words, "tokenizer.chat_template": template} | ids | keys
    return SimpleNamespace(path="chat.gguf", metadata=metadata)


@pytest.fixture(scope="module")
def theirs():
    """transformers' tokenizer with the same special tokens."""
    import transformers
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({text: number for number, text in enumerate(NAMED.values())}, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **THEIRS)


def outcome(render, *given, **more):
    try:
        return render(*given, **more)
    except Exception:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(theirs, name):
    """Every conversation: the same text, or both refuse it. Most are not refused."""
    template, rendered = TEMPLATES[name], 0
    options = {"chat_template": template, "tokenize": False, "add_generation_prompt": True}
    for what, (messages, given) in CHATS.items():
        ours = outcome(chat.render, file_with(template), messages, **given)
        right = outcome(theirs.apply_chat_template, messages, **options | given)
        if right is None:  # a message without content then has an empty one
            full = [each | {"content": ""} if each["content"] is None else each for each in messages]
            right = outcome(theirs.apply_chat_template, full, **options | given)
        assert ours == right, what
        rendered += right is not None
    assert rendered >= 3 and chat.render(file_with(template), [USER])


def test_a_template_of_its_own_for_tools():
    file = file_with("plain", **{"tokenizer.chat_template.tool_use": "tools"})
    assert [chat.render(file, [USER]), chat.render(file, [USER], tools=TOOLS)] == ["plain", "tools"]


BROKEN = {
    "the sandbox lets nothing be changed": "{{ messages.append(1) }}",
    "nor looked through": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "not finished": "{% for x in %}",
    "two lines of message": "a\n{% nonsense %}\n",
    "refused": "{{ raise_exception('roles must alternate') }}",
    "arithmetic": "{{ 1 / 0 }}",
    "undefined": "{{ messages[9].content.strip() }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep lists": "{{ " + "[" * 150 + "]" * 150 + " }}",
    "deep blocks": "{% if messages %}" * 400 + "{% endif %}" * 400,
    "deep loops": "{% for x in [1] %}" * 30 + "{% endfor %}" * 30,
    "no end of generation": "{% generation %}",
    "not for JSON": "{{ raise_exception | tojson }}",
    "an argument of tojson": "{{ messages | tojson(width=3) }}",
    "an empty message": "{{ raise_exception('') }}",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_template_that_refuses_or_breaks_is_one_line(theirs, what):
    with pytest.raises(ModelError, match=r"^chat\.gguf: the chat template rejects this conversation: \S") as caught:
        chat.render(file_with(BROKEN[what]), [USER])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_no_template():
    with pytest.raises(ModelError, match="has no chat template"):
        chat.render(SimpleNamespace(path="x.gguf", metadata={}), [USER])


@pytest.mark.parametrize("begins", [True, False])
def test_a_chat_begins_with_one_begin_token(folder, begins):
    path = listed_file(folder / "begin.gguf", ["<|user|>"], add_bos_token=True)
    file = kit.open(path)
    file.metadata = dict(file.metadata) | {
        "tokenizer.chat_template": "{{ bos_token }}" * begins + "<|user|>{{ messages[0].content }}"
    }
    tokenizer = tokenizer_of(file)
    ids = chat.chat(file, tokenizer, [{"role": "user", "content": "abc"}])
    assert ids[:1] == [tokenizer.bos] and ids.count(tokenizer.bos) == 1 and tokenizer.decode(ids).endswith("abc")


def test_a_second_begin_token_is_a_warning(tmp_path, recwarn):
    """llama.cpp #7332; in Python, of kit.hf too, and by the command as one line."""
    path = model_files.write(tmp_path, "tiny-llama")
    tokenizer = tokenizer_of(kit.open(path))
    begin = tokenizer.text(tokenizer.bos)
    ids = [tokenizer.encode(f"a{begin}"), tokenizer.encode(begin, special=False), tokenizer.encode(begin, ends=False)]
    assert not recwarn.list and ids[0][0] == tokenizer.bos
    for encode in (tokenizer.encode, kit.hf.load(path)[1].encode):
        with pytest.warns(KitWarning, match=rf"tiny-llama.*begins with '{begin}', and the tokenizer adds another"):
            assert encode(f"{begin}a")[:2] == [tokenizer.bos] * 2
    result = CliRunner().invoke(main, ["generate", str(path), "-p", f"{begin}a", "-n", "1"])
    assert result.exit_code == 0 and result.stderr.startswith(f"kit: warning: {path}: the text begins with '{begin}', and")
    assert result.stderr.count("adds another") == 1


def test_a_broken_template_is_one_line_of_the_command(tmp_path):
    def change(metadata, tensors):
        metadata["tokenizer.chat_template"] = BROKEN["a macro without end"]

    path = model_files.rewrite(model_files.write(tmp_path, "tiny-llama"), tmp_path / "broken.gguf", change)
    result = CliRunner().invoke(main, ["generate", str(path), "--chat", "-p", "a"])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"kit: error: {path}: the chat template rejects")


THINKING = (
    "{% if enable_thinking is defined and not enable_thinking %}short {% endif %}{{ messages[0].content }}{{ bos_token }}"
)


@pytest.fixture(scope="module")
def thinking(folder):
    """A file whose template reads enable_thinking, as Qwen3's does."""

    def change(metadata, tensors):
        metadata["tokenizer.chat_template"] = THINKING

    return model_files.rewrite(model_files.write(folder, "tiny-llama"), folder / "thinking.gguf", change)


@pytest.mark.parametrize(
    "given, text", [('{"enable_thinking": false}', "short a"), ('{"enable_thinking": true}', "a"), ("{}", "a")]
)
def test_variables_of_the_template(thinking, given, text):
    """The option has llama.cpp's name, and the text is what transformers renders."""
    result = CliRunner().invoke(
        main, ["generate", str(thinking), "--chat", "--chat-template-kwargs", given, "-p", "a", "-n", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    file = kit.open(thinking)
    assert chat.render(file, [{"role": "user", "content": "a"}], **json.loads(given)).startswith(text)
    assert json.loads(result.stdout)["prompt"] == chat.chat(
        file, tokenizer_of(file), [{"role": "user", "content": "a"}], **json.loads(given)
    )


@pytest.mark.parametrize("given, says", [
    ('{"enable_thinkin": false}', "does not read 'enable_thinkin'; it reads bos_token, enable_thinking"),
    ('{"messages": []}', "does not read 'messages'"), ("enable_thinking=false", "not JSON: Expecting value"),
    ("[" * 100_000, "not JSON: "), ("[1]", "not a JSON object such as"),
])  # fmt: skip
def test_variables_that_the_template_does_not_read(thinking, given, says):
    result = CliRunner().invoke(main, ["generate", str(thinking), "--chat", "--chat-template-kwargs", given, "-p", "a"])
    assert result.exit_code == 2 and says in result.stderr and "Traceback" not in result.stderr


def test_variables_that_a_template_reads():
    found = {name: chat.variables_of(file_with(template)) for name, template in TEMPLATES.items()}
    assert all("messages" in names for names in found.values())
    assert any("enable_thinking" in names for names in found.values())


MARKS = [*_ENDS, *(text for texts in _FILL.values() for text in texts.split())]
TOGETHER = [
    "<|return|> <|call|> <|end|>", "<|calls|> <|flush|> <|end|>", "<|call|> <|flush|> <|end|>", 
    "<|return|> <|end|> <|channel|>", "<|tool_response> <eos>", "<|im_end|> <|fim_pad|> <|file_sep|>",
]  # fmt: skip


@pytest.mark.parametrize("texts", MARKS + TOGETHER)
def test_what_ends_an_answer_is_that_of_llama_cpp(folder, texts):
    """So are the tokens that a text with such a mark becomes, and the text of these tokens."""
    path = listed_file(folder / "marks.gguf", texts.split())
    ours, text = tokenizer_of(kit.open(path)), "ab".join(["", *texts.split(), ""]).encode()
    assert ours.end_tokens == llama_cpp.end_tokens(path)
    ids = [ours.encode(text), ours.encode(text, special=False)]
    assert ids == [*llama_cpp.tokenize(path, [text]), *llama_cpp.tokenize(path, [text], parse_special=False)]
    assert ours.decode(ids[0]) == llama_cpp.detokenize(path, ids[:1])[0].decode().removeprefix(" ")


@pytest.mark.parametrize("name", ["eot", "eom", "fim_pre", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle"])
def test_an_end_that_the_file_names_is_that_of_llama_cpp(folder, name):
    """The texts that mean the same are then tokens as others."""
    texts = ["<|mine|>", "<|eom_id|>", *(text.split()[0] for text in _FILL.values())]
    path = listed_file(folder / "named.gguf", texts, **{f"{name}_token_id": 3 + 256 + 27})
    ours = tokenizer_of(kit.open(path))
    assert ours.text(3 + 256 + 27) == "<|mine|>" and ours.end_tokens == llama_cpp.end_tokens(path)
    text = "ab".join(texts).encode()
    assert [ours.encode(text)] == llama_cpp.tokenize(path, [text])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_message_without_content_renders(name):
    """`content: None`, as OpenAI's servers write a call of a tool, was refused by every other template."""
    file, nothing = file_with(TEMPLATES[name]), {"role": "assistant", "content": None}
    for messages in ([USER, nothing, USER], [USER | {"content": None}], [USER, CALL, RESULT]):
        empty = [{**message, "content": message["content"] or ""} for message in messages]
        if (right := outcome(chat.render, file, empty)) is not None:
            told = chat.render(file, messages)
            assert told == right or told == outcome(chat.render, file, [*map(chat._message, messages)])
            assert "None" not in told


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_content_of_text_parts_renders(name):
    """As OpenAI's clients write it: two of three templates know texts alone, and were asked to join a text and a list."""
    file, texts = file_with(TEMPLATES[name]), ["Wo liegt Zürich?", "In Asien?"]
    parts = [{"type": "text", "text": text} for text in texts]
    told, right = (outcome(chat.render, file, [USER | {"content": content}]) for content in (parts, "\n".join(texts)))
    assert (told is None) == (right is None)
    assert told is None or all((text in told) == (text in right) for text in [*texts, "'text'", '"text"'])
    assert outcome(chat.render, file, (each for each in [USER])) == outcome(chat.render, file, [USER])


@pytest.mark.parametrize("messages, says", [
    ("hi", "a list of dicts"), (None, "a list of dicts"), (USER, "a list of dicts"), (b"hi", "a list of dicts"),
    ([USER, "hi"], "message 2 .* no dict"), ([None], "message 1 .* no dict"), ([{"content": "hi"}], "message 1 .* no role"),
    ([USER | {"role": None}], "no role"), ([USER | {"role": 1}], "no role"), ([USER | {"content": 5}], "not int"),
    ([USER | {"content": b"hi"}], "not bytes"), ([USER | {"content": {"a"}}], "not set"),
])  # fmt: skip
def test_what_is_no_conversation_is_named(messages, says):
    """A template may leave such a message out in silence, or end in a traceback."""
    with pytest.raises(ModelError, match=says) as caught:
        chat.render(file_with("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"), messages)
    assert "\n" not in str(caught.value)
