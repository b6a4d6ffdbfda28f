"""What objects say of themselves, and what the constructors take."""

from html.parser import HTMLParser

import pytest
from model_files import rewrite

import kit
from kit.cache.stats import Stats
from kit.errors import KitError
from kit.lab.compressor import compress
from kit.lab.synthetic.write import synthesize


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("shown") / "tiny.gguf", "tiny-qwen3moe")


@pytest.fixture(scope="module")
def model(path):
    model = kit.Transformer(kit.Weights(path, kit.LRU("8 MiB")))
    kit.generate(model, [1, 2, 3], max_tokens=2, stop_at_end=False)
    return model


class _Cells(HTMLParser):
    """The text of a table's cells; every tag is closed, and no other markup comes in."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in ("table", "caption", "tbody", "tr", "th", "td") and not attrs
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def test_each_object_says_what_a_person_wants_to_see(path, model):
    """The same facts in a shell and in a notebook."""
    stats = kit.replay(model.trace, kit.LRU("8 MiB"))
    assert stats.hits == model.weights.store.stats.hits > 0
    said = [
        (model.file, [str(path), "qwen3moe", "layers 2", "3.676 M", "2.16 MiB", "Q4_K Q6_K F32"]),
        (model.weights, ["Weights of", str(path), "tensors 26", "2.16 MiB", "14.02 MiB", "LRU('8 MiB')", f"{stats.hits} of"]),
        (model, ["Transformer of", str(path), "experts 2 of 8", "vocabulary 512", "context 2,048", "linear dequantized"]),
        (model.trace, ["Trace", f"spans {len(model.trace):,} in", "token 2 in", "dequantize"]),
        (stats, ["Stats", f"hits {stats.hits} of {stats.gets} gets ({stats.hit_rate:.0%})", "misses", "held"]),
    ]
    for shown, words in said:
        line, cells = repr(shown), _Cells(shown._repr_html_()).cells
        assert all(word in line for word in words) and "\n" not in line and len(line) < 600, line
        assert line == f"<{cells[0]}: {', '.join(map(' '.join, zip(cells[1::2], cells[2::2], strict=True)))}>"


def test_a_compressed_model_says_the_same(tmp_path):
    packed = tmp_path / "tiles.gguf"
    compress(synthesize(tmp_path / "plain.gguf", "tiny-llama"), packed)
    weights = kit.codec.CompressedWeights(kit.codec.CompressedFile(packed))
    assert repr(weights.file).startswith(f"<CompressedFile {packed}: architecture llama, layers 2,")
    assert repr(weights).startswith(f"<CompressedWeights of {packed}: tensors 21,") and "linear" not in repr(weights)
    assert "linear that of the weights" in repr(kit.Transformer(weights))


def test_empty_objects_say_so():
    assert repr(kit.Trace()) == "<Trace: spans 0 in 0 s>"
    assert repr(Stats()).startswith("<Stats: hits 0 of 0 gets (0%)") and "misses" not in repr(Stats())


def test_texts_of_a_file_are_harmless(path, tmp_path):
    named = {"general.architecture": "\x1b<i>"}
    file = kit.open(rewrite(path, tmp_path / "<b>.gguf", lambda metadata, tensors: metadata.update(named)))
    assert "\x1b" not in repr(file) and _Cells(file._repr_html_()).cells[2] == "\\x1b<i>"


@pytest.mark.parametrize("way", [str, lambda path: path, kit.open, lambda path: kit.Weights(path)])
def test_a_model_is_made_of_a_path_a_file_or_weights(path, way, model):
    given = way(path)
    made = kit.Transformer(given, linear="dequantized")
    assert made.logits([1, 2]).equal(model.logits([1, 2]))
    if not isinstance(given, kit.Weights):
        assert kit.Weights(given)["output_norm.weight"].equal(model.weights["output_norm.weight"])


@pytest.mark.parametrize("call", [
    lambda path: kit.Weights(None), lambda path: kit.Transformer(3), lambda path: kit.Transformer({"token_embd.weight": 1}),
    lambda path: kit.generate(kit.open(path), "a"), lambda path: kit.generate(str(path), "a"),
    lambda path: kit.generate(kit.Weights(path), "a"),
])  # fmt: skip
def test_what_is_no_model_says_what_to_write(path, call):
    with pytest.raises(KitError, match=r"give (its path or )?kit\.(open|Transformer)\(path\), not a \w+$"):
        call(path)
