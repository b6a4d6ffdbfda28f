"""Blocks of which some are held and the others read past the page cache: the same products, in the memory asked."""

import json

import pytest
import torch
from click.testing import CliRunner

import kit
from kit.errors import GGUFError
from kit.lab.commands.cli import main
from kit.lab.synthetic.write import synthesize
from kit.model.pinned import PinnedBlocks


@pytest.fixture(scope="module", params=["tiny-granite", "tiny-llama", "tiny-qwen3moe"])
def path(request, tmp_path_factory):
    path = synthesize(tmp_path_factory.mktemp("pinned") / f"{request.param}.gguf", request.param)
    try:
        with kit.open(path) as file:
            PinnedBlocks(file, 0)
    except GGUFError as error:
        if "past the page cache" not in str(error):  # a file system in memory has no way past it
            raise
        pytest.skip(str(error))
    return path


@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
@pytest.mark.parametrize("share", [0, 0.3, 0.6, 2])
def test_logits_are_those_of_the_mapped_file_whatever_is_held(path, share, linear):
    with kit.open(path) as file:
        room = int(share * path.stat().st_size)
        weights, plain = PinnedBlocks(file, room), kit.Weights(file)
        ours, theirs = kit.Transformer(weights, linear=linear), kit.Transformer(plain, linear=linear)
        theirs.unplanned = "products one by one, as ours are"
        mine, right = ours.new_cache(24), theirs.new_cache(24)
        for tokens in ([3, 4, 5], [6], [7]):
            weights.trace.clear()
            assert torch.equal(ours.step(tokens, mine), theirs.step(tokens, right))
        held = {name: blocks.nbytes for name, blocks in weights.held.items() if len(file.tensors[name].shape) > 1}
        assert sum(held.values()) <= room
        assert "every use" in ours.unplanned
        read = [span.tensor for span in weights.trace.spans if span.what == "read" and "norm" not in span.tensor]
        matrices = {span.tensor for span in weights.trace.spans if span.what == "linear"}
        assert sorted(read) == sorted(name for name in matrices if name.partition("[")[0] not in held)
        assert bool(read) == (share < 1)


def test_nothing_is_read_of_a_file_that_became_shorter(path, tmp_path):
    own = tmp_path / "own.gguf"
    own.write_bytes(path.read_bytes())
    with kit.open(own) as file:
        weights = PinnedBlocks(file, 0)
        with open(own, "r+b") as handle:
            handle.truncate(4096)
        with pytest.raises(GGUFError, match="4,096 bytes while it was open"):
            weights.blocks("blk.0.attn_q.weight")


def test_a_system_without_a_way_past_the_page_cache_is_one_clear_error(tmp_path, monkeypatch):
    path = synthesize(tmp_path / "tiny.gguf", "tiny-granite")
    refuse = lambda path: (_ for _ in ()).throw(OSError(22, "Invalid argument"))  # noqa: E731
    monkeypatch.setattr("kit.model.pinned.open_past", refuse)
    with kit.open(path) as file, pytest.raises(GGUFError, match=r"direct reads .past the page cache. fail: Invalid argument"):
        PinnedBlocks(file, 0)


@pytest.mark.parametrize("linear", [["--linear", "fused"], ["--linear", "fused-int8"], []])
def test_generate_holds_blocks(path, linear):
    """Also without --linear: pinned blocks, not float32, which would be another way and four times as large."""
    plain = ["generate", str(path), "--tokens", "5,6,7", "-n", "4", "--ignore-end", "--json", *linear]
    values = [json.loads(CliRunner().invoke(main, [*plain, *more]).stdout) for more in ([], ["--cache", "pinned:64KiB"])]
    assert values[0]["tokens"] == values[1]["tokens"]
    assert [value["cache"] for value in values] == ["straight from the file", "Pinned('64KiB')"]
    assert {value["linear"] for value in values} == {linear[1] if linear else "fused"}
