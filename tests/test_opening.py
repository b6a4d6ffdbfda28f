"""How a command opens a model: what its options choose and refuse, by table, of files that nobody has."""

from types import SimpleNamespace

import click
import pytest

import kit
from kit.lab.predicting import opening
from kit.lab.predicting.opening import OWN, TRANSFORMERS, OpenModel, Options


def file_of(architecture="llama", order="little", compressed=False):
    return SimpleNamespace(architecture=architecture, byteorder=order, compressed=compressed)


@pytest.mark.parametrize(
    "given, file, chosen",
    [
        ({}, {}, "fused"), ({"linear": "matmul"}, {}, "matmul"), ({"dtype": "float16"}, {}, "matmul"),
        ({"asked": {"backend"}}, {}, "dequantized"), ({"cache": "lru:9", "asked": {"cache"}}, {}, "dequantized"),
        ({"cache": "pinned:9", "asked": {"cache"}}, {}, "fused"),
        ({"cache": "pinned:9", "asked": {"cache"}}, {"order": "big"}, "dequantized"),
        ({"cache": "pinned:9", "asked": {"cache"}}, {"architecture": "bloom"}, "dequantized"),
        ({"cache": "pinned:9", "asked": {"cache", "backend"}}, {}, "dequantized"),
    ],
)  # fmt: skip
def test_auto_is_the_blocks_unless_floats_are_asked_for(given, file, chosen, monkeypatch):
    monkeypatch.setattr(kit.hf, "installed", lambda: True)
    assert Options(**given).chosen(file_of(**file)) == chosen


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, ""), ({"asked": {"policy"}}, "--policy has no effect without --memory"),
        ({"memory": "1G", "asked": {"policy"}}, ""),
        ({"linear": "fused", "asked": {"backend"}}, "--backend has no effect because --linear fused multiplies"),
        ({"linear": "fused", "cache": "lru:9", "asked": {"cache"}}, "--cache has no effect because"),
        ({"linear": "fused", "cache": "pinned:9", "asked": {"cache"}}, ""),
        ({"linear": "fused", "dtype": "float16", "asked": {"dtype"}}, "--dtype has no effect because"),
        ({"linear": "fused", "asked": {"dtype"}}, ""), ({"linear": "dequantized", "asked": {"backend", "cache"}}, ""),
        ({"memory": "1G", "asked": {"memory"}}, ""), ({"memory": "1G", "linear": "fused", "asked": {"memory"}}, ""),
        ({"memory": "1G", "cache": "lru:9", "asked": {"cache"}}, "--cache has no effect with --memory"),
        ({"memory": "1G", "cache": "pinned:9", "linear": "fused", "asked": {"cache"}}, "--cache has no effect"),
        ({"memory": "1G", "linear": "matmul", "asked": {"memory"}}, "--memory has no effect with --linear matmul"),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(given, message):
    how = Options(**given | {"asked": frozenset(given.get("asked", ()))})
    if not message:
        return opening.refuse_idle(how)
    with pytest.raises(click.UsageError, match=message):
        opening.refuse_idle(how)


@pytest.mark.parametrize("installed", [True, False])
def test_transformers_runs_what_the_kit_has_no_pass_for(installed, monkeypatch):
    monkeypatch.setattr(kit.hf, "installed", lambda: installed)
    files = [file_of(), file_of("bloom"), file_of("bloom", compressed=True)]
    assert [opening.via(file) for file in files] == [OWN, TRANSFORMERS if installed else OWN, OWN]


@pytest.mark.parametrize(
    "text, room, kept",
    [
        ("none", 0, "NoCache()"), ("all", 0, "HashMap()"), ("lru:9B", 0, "LRU('9B')"), ("pinned:4KiB", 0, "Pinned('4KiB')"),
        (None, 100, "HashMap()"), ("auto", 99, "Pinned(99)"), ("auto", 0, "NoCache()"),
        *((wrong, 0, None) for wrong in ("lru", "lru:", "none:9", "all:9", "fifo:9", "auto:9")),
    ],
)  # fmt: skip
def test_a_cache_is_one_of_five(text, room, kept, monkeypatch):
    monkeypatch.setattr(opening, "room_for_kept", lambda file: room)
    if kept:
        assert repr(opening.policy_of(text, None, 100)) == kept
        return
    with pytest.raises(click.BadParameter, match="is not one of none, all, auto"):
        opening.policy_of(text, None, 100)


@pytest.mark.parametrize(
    "given, how, facts",
    [  # pins, straight, told
        ({}, {}, (False, True, "straight from the file")),
        ({}, {"cache": "pinned:9", "asked": {"cache"}}, (True, True, "Pinned(9)")),
        ({"linear": "dequantized"}, {"cache": "pinned:9", "asked": {"cache"}}, (False, False, "Pinned(9)")),
        ({"via": TRANSFORMERS}, {}, (False, False, "straight from the file")),
        ({"budget": (False, 2048)}, {"memory": "1G"}, (False, False, "2.00 KiB of blocks pinned")),
        ({"budget": (False, 0)}, {"memory": "1G"}, (False, False, "straight from the file")),
        ({"budget": (True, 2048)}, {"memory": "1G"}, (False, False, "straight from the file")),
        ({"budget": (False, 0), "slots": SimpleNamespace(how="in slots")}, {"memory": "1G"}, (False, False, "in slots")),
    ],
)  # fmt: skip
def test_where_the_weights_of_a_token_are_is_said(given, how, facts):
    made = {"file": None, "how": Options(**how), "linear": "fused", "via": OWN, "kept": kit.Pinned(9), "make": None} | given
    if "budget" in given:
        made["budget"] = SimpleNamespace(**dict(zip(("whole", "pinned"), given["budget"], strict=True)))
    model = OpenModel(**made)
    assert (model.pins, model.straight, model.told) == facts


@pytest.mark.parametrize("cache, through", [(None, "Weights"), ("pinned:9KiB", "PinnedBlocks"), ("lru:9KiB", "Weights")])
def test_blocks_are_pinned_where_blocks_are_read(cache, through, monkeypatch):
    for name in ("PinnedBlocks", "kit.Weights"):
        home, _, leaf = name.rpartition(".")
        monkeypatch.setattr(kit if home else opening, leaf, lambda *given, leaf=leaf, **more: leaf)
    policy = opening.policy_of(cache, None, 0) if cache else kit.NoCache()
    assert opening._weights(None, Options(cache=cache), "fused", policy, None) == through
    assert opening._weights(None, Options(cache=cache), "dequantized", policy, None) == "Weights"
    monkeypatch.setattr("kit.lab.predicting.quality.Rounded", lambda file, rounding: rounding)
    assert callable(opening._weights(None, Options(dtype="float16"), "matmul", policy, None))


def test_what_was_asked_for_is_what_the_command_line_has():
    command = click.Command("c", params=[click.Option([name], default="x") for name in ("--a", "--b")])
    with command.make_context("c", ["--a", "x"]) as ctx:
        assert opening.asked_of(ctx) == {"a"}


@pytest.mark.parametrize(
    "file, given, pages, by",
    [
        ({"compressed": True}, {}, "large", "_of_tiles"), ({"compressed": True}, {"pages": "small"}, "small", "_of_tiles"),
        ({"compressed": True}, {"memory": "1G"}, "small", "_of_tiles"),
        ({"architecture": "bloom"}, {}, "large", "_of_transformers"),
        ({"compressed": True}, {"memory": "1G", "asked": frozenset({"pages"})}, "large", "_of_tiles"),
    ],
)  # fmt: skip
def test_who_opens_a_file_and_with_which_pages(file, given, pages, by, monkeypatch):
    opened = []
    monkeypatch.setattr(kit.hf, "installed", lambda: True)
    monkeypatch.setattr(opening, "open_file", lambda path, pages: opened.append(pages) or file_of(**file))
    for name in ("_of_tiles", "_of_transformers"):
        monkeypatch.setattr(opening, name, lambda *given, name=name: name)
    assert (opening.open_model("m", Options(**given)), opened) == (by, [pages])


def test_transformers_takes_floats_by_a_cache_and_blocks_as_they_are(monkeypatch):
    monkeypatch.setattr("kit.lab.predicting.perplexity.Through", lambda file, **how: how)
    monkeypatch.setattr(kit, "Weights", lambda file: SimpleNamespace(working_set=100))
    monkeypatch.setattr(opening, "room_for_kept", lambda file: 100)
    cached = Options(cache="lru:9B", asked=frozenset({"cache"}))
    for how, linear, kept in (
        (cached, "dequantized", "LRU('9B')"),
        (Options(), "dequantized", "HashMap()"),
        (Options(), "fused", "NoCache()"),
    ):
        model = opening._of_transformers(file_of("bloom"), how, linear)
        through = {"weights": opening.THROUGH[linear]} if linear == "fused" else {"cache": model.kept}
        assert repr(model.kept) == kept and model.model() == through and model.via == TRANSFORMERS
    assert repr(opening._kept(None, cached, "fused")) == "LRU('9B')"
    with pytest.raises(click.UsageError, match="--cache has no effect on bloom"):
        opening._of_transformers(file_of("bloom"), cached, "fused")
    monkeypatch.setattr(kit, "generate", lambda *given, **more: ("kit", *given))
    monkeypatch.setattr(kit.hf, "generate", lambda *given, **more: ("transformers", *given, more))
    own = OpenModel("file", Options(), "fused", OWN, kit.NoCache(), lambda policy, trace: (policy, trace))
    assert own.generate(1, "text", trace=2) == ("kit", (1, 2), "text")
    assert model.generate(1, "text", trace=2)[::2] == ("transformers", "text")
