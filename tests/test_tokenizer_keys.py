"""Every key of a tokenizer that the kit reads, with each wrong type, length and range: one line that names file and key."""

from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_files import rewrite
from vocabularies import byte_pair_file, sentence_piece_file, unigram_file

import kit
from fuzz.targets import TARGETS
from kit.errors import KitError
from kit.hf.tokenizer import tokenizer_of as hf_tokenizer_of
from kit.lab.chat import render
from kit.lab.commands.cli import main
from kit.lab.synthetic.write import synthesize
from kit.model.tokenizer import tokenizer_of

MAKERS = {
    "llama": sentence_piece_file,
    "gpt2": lambda path: byte_pair_file(path, "llama-bpe"),
    "gemma4": lambda path: byte_pair_file(path, "default", raw=True, model="gemma4"),
    "t5": unigram_file,
}
EVERY = " ".join(MAKERS)


def texts(size):
    return ["word", 5, 1.5, True, np.arange(size), np.ones(size, bool)]


def text(size):
    return [5, 1.5, True, ["a", "b"], np.arange(3)]


def flag(size):
    return ["false", "", 1, 0.0, ["true"], np.ones(1, bool)]


def token(size):
    return ["2", 1.5, True, [2], np.arange(2), size, 2**40, -1]


def shown_token(size):
    return ["2", 1.5, True, [2], np.arange(2), 2**40, -2]  # one beyond the vocabulary is none, as in llama.cpp


def kinds(size):
    right = np.ones(size, np.int32)
    return ["1", 1, 1.5, True, ["1"] * size, right.astype(np.float32), right.astype(bool), right[1:], np.ones(size + 1, int),
            7 + 0 * right, -right, right[:0]]  # fmt: skip


def scores(size):
    right = np.zeros(size, np.float32)
    none = right + np.float32("nan")
    return ["1", 1, 1.5, True, ["1"] * size, right.astype(bool), right[1:], np.zeros(size + 1), none, right[:0]]


def charsmap(size):
    return ["1", 1, True, ["1"], np.zeros(8, np.float32), np.full(8, 300), np.full(8, -200), np.arange(3), np.full(8, 255),
            np.array([4, 0, 0, 0, 1, 1, 1, 1, 65, 66]), np.array([3, 0, 0, 0, 1, 1, 1, 0])]  # fmt: skip


KEYS = {  # key -> (wrong values, tokenizers that read it)
    "general.name": (text, EVERY),
    "tokenizer.chat_template": (text, EVERY),
    "tokenizer.chat_template.tool_use": (text, EVERY),
    "tokenizer.ggml.model": (text, EVERY),
    "tokenizer.ggml.pre": (text, EVERY),
    "tokenizer.ggml.tokens": (texts, EVERY),
    "tokenizer.ggml.token_type": (kinds, EVERY),
    "tokenizer.ggml.scores": (scores, "llama t5"),
    "tokenizer.ggml.merges": (texts, "gpt2 gemma4"),
    "tokenizer.ggml.precompiled_charsmap": (charsmap, "t5"),
    "tokenizer.ggml.add_bos_token": (flag, EVERY),
    "tokenizer.ggml.add_eos_token": (flag, EVERY),
    "tokenizer.ggml.add_space_prefix": (flag, "llama t5"),
    "tokenizer.ggml.remove_extra_whitespaces": (flag, "t5"),
    **{f"tokenizer.ggml.{name}_token_id": (token, EVERY) for name in ("bos", "eos", "eot", "eom", "unknown")},
    **{f"tokenizer.ggml.fim_{name}_token_id": (token, EVERY) for name in ("pre", "suf", "mid", "pad", "rep", "sep")},
    **{f"tokenizer.ggml.{name}_token_id": (token, EVERY) for name in ("prefix", "suffix", "middle")},
    **{f"tokenizer.ggml.{name}_token_id": (shown_token, EVERY) for name in ("padding", "seperator", "cls", "mask")},
}  # fmt: skip
CASES = [(kind, key) for key, (_, readers) in KEYS.items() for kind in readers.split()]
ALWAYS = {  # what a file with this wrong kind of token says first
    "tokenizer.chat_template.tool_use": lambda file: render(file, [{"role": "user", "content": "a"}], tools=[{}]),
    **dict.fromkeys(
        ("tokenizer.chat_template", *(f"tokenizer.ggml.{name}_token_id" for name in ("padding", "seperator", "cls", "mask"))),
        lambda file: render(file, [{"role": "user", "content": "a"}]),
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: kit.open(make(folder / f"{kind}.gguf")) for kind, make in MAKERS.items()}


class _Recorded(dict):
    """Metadata that notes which keys are asked for."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)


def changed(file, **keys):
    return SimpleNamespace(path=file.path, architecture=file.architecture, metadata=_Recorded(file.metadata) | keys)


def read(file):
    """All that the kit makes of a file's tokenizer."""
    tokenizer_of(file).encode("Hello")
    hf_tokenizer_of(file)
    render(file, [{"role": "user", "content": "a"}])
    render(file, [{"role": "user", "content": "a"}], tools=[{}])


@pytest.mark.parametrize("kind, key", CASES)
def test_a_wrong_value_is_one_line(files, kind, key):
    size = len(files[kind].metadata["tokenizer.ggml.tokens"])
    ways = (ALWAYS[key],) if key in ALWAYS else (tokenizer_of, hf_tokenizer_of)
    for wrong in KEYS[key][0](size):
        for way in ways:
            file = changed(files[kind], **{"tokenizer.chat_template": "{{ messages }}", key: wrong})
            with pytest.raises(KitError) as caught:
                way(file)
            said = str(caught.value)
            assert said.startswith(f"{file.path}: ") and repr(key) in said, (wrong, said)
            assert "\n" not in said and len(said) < 400, (wrong, said)


def test_these_are_all_keys_that_are_read(files):
    asked = set()
    for file in files.values():
        recorded = SimpleNamespace(path=file.path, architecture=file.architecture, metadata=_Recorded(file.metadata))
        recorded.metadata |= {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
        read(recorded)
        asked |= recorded.metadata.asked
    assert asked == set(KEYS)


def test_right_values_of_other_types_are_read(files):
    """Whole numbers as scores, lists of any width, ids without sign or with it: as converters write them."""
    size = len(files["llama"].metadata["tokenizer.ggml.tokens"])
    scores = np.array(files["llama"].metadata["tokenizer.ggml.scores"])
    kinds = np.array(files["llama"].metadata["tokenizer.ggml.token_type"])
    right = tokenizer_of(files["llama"]).encode("Hello, world")
    rights = {
        "scores": scores.astype(np.int32), "token_type": kinds.astype(np.uint8), "eos_token_id": np.int32(2),
        "padding_token_id": size, "mask_token_id": -1,
    }  # fmt: skip
    for key, value in rights.items():
        file = changed(files["llama"], **{f"tokenizer.ggml.{key}": value})
        assert tokenizer_of(file).encode("Hello, world") == right, key
        assert not {"pad_token", "mask_token"} & hf_tokenizer_of(file).special_tokens_map.keys()


@pytest.mark.parametrize("kind", ["llama", "gemma4", "t5"])
def test_a_byte_token_that_is_no_byte_is_named(files, kind):
    words = list(files[kind].metadata["tokenizer.ggml.tokens"])
    types = np.array(files[kind].metadata["tokenizer.ggml.token_type"])
    for wrong in ("?0xF0>", "<0xF>", "<0xFGG>", "<0xG0>", "", "word"):
        types[9], words[9] = 6, wrong
        file = changed(files[kind], **{"tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": types})
        with pytest.raises(KitError, match=r"'tokenizer\.ggml\.tokens' should be texts such as <0x0A>.*at 9: convert"):
            tokenizer_of(file)


@given(table=st.binary(max_size=64), text=st.binary(max_size=32))
def test_any_map_of_characters_normalizes_or_is_refused(files, table, text):
    table = table[: len(table) // 4 * 4]
    blob = np.frombuffer(len(table).to_bytes(4, "little") + table + text + b"\0", np.uint8)
    file = changed(files["t5"], **{"tokenizer.ggml.precompiled_charsmap": blob})
    try:
        ids = tokenizer_of(file).encode(b"".join(bytes([byte]) for byte in range(256)))
    except KitError as error:
        assert "'tokenizer.ggml.precompiled_charsmap'" in str(error)
    else:
        assert all(isinstance(token, int) for token in ids)


def test_a_text_of_unknown_words_needs_the_unknown_token(files):
    tokenizer = tokenizer_of(changed(files["t5"]))
    tokenizer.unknown = None  # as in a file that names none and has fewer tokens than the kind's own id
    with pytest.raises(KitError, match="need an unknown token, but the file has none"):
        tokenizer.encode("\u2603")


@pytest.mark.parametrize("number", range(len(list(TARGETS["tokenizer"].seeds()))))
def test_the_seeds_of_the_fuzzer_are_tokenizers_and_their_damage_is_refused(number):
    seed = list(TARGETS["tokenizer"].seeds())[number]
    with pytest.raises(KitError, match=r"no token for the byte|unknown token") if number < 3 else nullcontext():
        TARGETS["tokenizer"].one(seed)
    random = np.random.default_rng(number)
    for _ in range(60):
        data = bytearray(seed)
        for place in random.integers(24, len(data), 3):
            data[place] = random.integers(256)
        with suppress(KitError):
            TARGETS["tokenizer"].one(bytes(data))


COMMANDS = {
    "generate": lambda path: ["generate", path, "-p", "a", "-n", "1"],
    "chat": lambda path: ["generate", path, "--chat", "-p", "a", "-n", "1"],
    "token ids": lambda path: ["generate", path, "--tokens", "1,2", "-n", "1"],  # its ends are the tokenizer's
    "perplexity": lambda path: ["perplexity", path, "--tokens", "16", "--context", "8"],
}
BAD = [  # of the issue, each by each command
    ("llama", "token_type", np.ones(9, np.int32)), ("llama", "token_type", 5), ("llama", "tokens", np.arange(512)),
    ("qwen2", "merges", np.arange(9)), ("llama", "scores", "text"), ("llama", "bos_token_id", "1"),
    ("llama", "eos_token_id", [2, 3]), ("qwen2", "add_bos_token", "false"),
]  # fmt: skip


@pytest.mark.parametrize("name, key, wrong", BAD)
def test_every_command_says_it_in_one_line(tmp_path, name, key, wrong):
    def change(metadata, tensors):
        metadata |= {f"tokenizer.ggml.{key}": wrong, "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}

    path = rewrite(synthesize(tmp_path / "right.gguf", f"tiny-{name}"), tmp_path / "wrong.gguf", change)
    for command, arguments in COMMANDS.items():
        run = CliRunner().invoke(main, arguments(str(path)))
        assert run.exit_code == 2 and run.stderr.count("\n") == 1, (command, run.output)
        assert run.stderr.startswith(f"kit: error: {path}: ") and f"'tokenizer.ggml.{key}'" in run.stderr, (command, run.stderr)
    run = CliRunner().invoke(main, ["inspect", str(path), "--metadata"])
    assert run.exit_code == 0 and f"tokenizer.ggml.{key}" in run.output  # it shows what is in the file
    with pytest.raises(KitError, match=f"'tokenizer.ggml.{key}'"):
        kit.hf.load(path)
