"""What a table of tensors says of its parts and of a token, of files that nobody has: names, layers that are cut, uses."""

import re
from types import SimpleNamespace

import pytest

from kit.cache.policies.partitioned import ByLayer
from kit.cache.policies.pinned import Pinned
from kit.errors import ModelError
from kit.gguf import cut, names, uses
from kit.gguf.metadata import MetadataArray
from kit.gguf.reader import TensorInfo
from kit.gguf.uses import Use


def file_of(metadata=None, **shapes):
    """``blk_0_a`` is ``blk.0.a.weight``, ``output`` is ``output.weight``; float32."""
    given = {f"{'blk.' + name[4:].replace('_', '.', 1) if name.startswith('blk_') else name}.weight": name for name in shapes}
    tensors = {name: TensorInfo.new(name, "F32", shapes[short]) for name, short in given.items()}
    more = {f"a.{key}": value for key, value in (metadata or {}).items()}
    return SimpleNamespace(path="m.gguf", architecture="a", metadata=more, tensors=tensors)


def test_a_name_is_a_tensor_an_expert_or_equal_rows():
    file = file_of(blk_0_x=(8, 4), blk_1_y_exps=(3, 2, 4))
    whole, stack = file.tensors
    found = [names.find_tensor(file, name) for name in (whole, f"{stack}[0]", f"{stack}[2]", f"{whole}[3/4]", f"{whole}[0/3]")]
    assert found == [(whole, None), (stack, 0), (stack, 2), (whole, slice(6, 8)), (whole, slice(0, 2))]
    for wrong in ("z", f"{stack}[3]", f"{stack}[-1]", f"{whole}[4/4]", f"{whole}[1/x]", f"{whole}[x/2]", "z[1]", "z[1/2]"):
        with pytest.raises(ModelError, match="no tensor"):
            names.find_tensor(file, wrong)
    assert [names.layer_of(name) for name in ("blk.12.z", "blk.z.12", "of_no_layer")] == [12, -1, -1]
    file.blocks = {whole: "all", stack: ["first", "second", "third"]}.get
    assert [names.blocks_of(file, name) for name in (whole, f"{stack}[1]")] == ["all", "second"]


def test_a_cut_renumbers_layers_and_what_is_listed_for_each():
    shapes = {f"blk_{number}_x": (number + 1,) for number in range(4)} | {"output": (2,), "blk_0_y": (9,)}
    file = file_of({"block_count": 4, "nextn_predict_layers": 1, "leading_dense_block_count": 2, "heads": 3}, **shapes)
    lists = {"each": [1, 2, 3, 4], "of the model": [5, 6, 7], "other": [8, 9]}
    file.metadata |= {key: type("Listed", (list, MetadataArray), {})(value) for key, value in lists.items()}
    part = cut.cut(file, [1, 2])
    assert {name: info.shape for name, info in part.tensors.items()} == {
        "blk.0.x.weight": (2,), "blk.1.x.weight": (3,), "output.weight": (2,),
    }  # fmt: skip
    assert [info.name for info in part.tensors.values()] == [*part.tensors]
    told = {"a.block_count": 2, "a.nextn_predict_layers": 0, "a.leading_dense_block_count": 1, "a.heads": 3}
    assert part.metadata.items() >= told.items() and list(part.metadata["other"]) == [8, 9]
    assert (part.metadata["each"], part.metadata["of the model"]) == ([2, 3], [6, 7])
    assert cut.parts_of(part, 2) == ([1, 2], 3) and cut.parts_of(file, 3) == ([0, 1, 2], 3)
    again = cut.cut(part, [1])
    assert cut.parts_of(again, 1) == ([2], 3) and again.metadata["a.leading_dense_block_count"] == 0
    last = cut.cut(file, [0, 3])
    assert (last.metadata["each"], last.metadata["of the model"]) == ([1, 4], [5])
    plain, bare = (cut.cut(file_of(said, blk_0_x=(1,)), [0]) for said in ({"block_count": 1}, None))
    assert "a.leading_dense_block_count" not in plain.metadata and cut.parts_of(plain, 1) == ([0], 1)
    assert cut.parts_of(bare, 1) == ([], 0)


def test_bytes_of_a_token_and_of_several():
    """A matrix, a stack of four experts of which a token uses two, and a row of an embedding of ten."""
    all_ = [Use("m.weight", 10, 40), Use("blk.0.x_exps.weight", 80, 320, 2, 4), Use("token_embd.weight", 50, 200, 1, 10)]
    assert [use.is_rows for use in all_] == [False, False, True]
    assert uses.bytes_used(all_) == 40 + 160 + 20 and uses.bytes_used(all_, 2) == 20 + 80 + 10
    assert uses.bytes_used(all_, tokens=3) == pytest.approx(40 + 320 * (1 - 0.5**3) + 200 * (1 - 0.9**3))
    assert uses.bytes_used(all_, tokens=2) == pytest.approx(40 + 320 * (1 - 0.5**2) + 200 * (1 - 0.9**2))
    missing = {0: 200.0, 30: 170.0, 40: 160.0, 200: 80.0, 360: 0.0, 999: 0.0, -5: 200.0}
    assert {room: uses.beyond(all_, room) for room in missing} == missing


def used(metadata=None, **shapes):
    return {use.name.removesuffix(".weight"): (use.used, use.of) for use in uses.uses_of(file_of(metadata, **shapes))}


def test_what_a_token_uses_of_each_tensor_and_when():
    mixture = {"blk_1_ffn_up_exps": (8, 2, 4), "blk_1_ffn_gate_inp": (8, 4), "output": (9, 4), "output_norm": (4,)}
    mixture |= {"blk_0_attn_q": (4, 4), "blk_0_attn_norm": (4,), "blk_0_odd": (3, 2, 2), "token_embd": (9, 4),
        "rope_freqs": (4,)}  # fmt: skip
    found = used({"block_count": 2, "expert_used_count": 3}, **mixture)
    assert [*found] == [
        "token_embd", "blk.0.attn_norm", "blk.0.attn_q", "blk.0.odd", "blk.1.ffn_gate_inp", "blk.1.ffn_up_exps", "output_norm",
        "output",
    ]  # fmt: skip
    assert (found["token_embd"], found["blk.1.ffn_up_exps"], found["blk.0.odd"]) == ((1, 9), (3, 8), (3, 3))
    assert used(**mixture)["blk.1.ffn_up_exps"] == (8, 8), "a file that does not say"
    assert used({"expert_used_count": 9}, **mixture)["blk.1.ffn_up_exps"] == (8, 8)
    assert used(token_embd=(9, 4)) == {"token_embd": (1, 1)}, "tied: the head reads all"
    assert used({"attention.causal": False}, token_embd=(9, 4)) == {"token_embd": (1, 9)}
    grams = {"ple.ngram_size": 4, "ple.heads_per_ngram": 3}
    assert used(grams, per_layer_token_embd=(50, 4), output=(9, 4))["per_layer_token_embd"] == (9, 50)
    assert used(per_layer_token_embd=(50, 4), output=(9, 4))["per_layer_token_embd"] == (1, 50)
    flat = used({"expert_used_count": 3}, blk_1_a_exps=(8,), blk_1_b_exps=(8, 4))
    assert flat == {"blk.1.a_exps": (1, 1), "blk.1.b_exps": (3, 8)}
    assert used(empty=(0, 4)) == {} and used(rope_freqs=(4,)) == {"rope_freqs": (1, 1)}, "unread only beside an embedding"


def test_what_predicts_and_what_another_layer_keeps_is_not_read():
    block = {f"blk_{layer}_{role}": (4, 4) for layer in range(3) for role in ("attn_q", "attn_k", "attn_v")}
    more = {"token_embd": (9, 4), "blk_2_nextn.eh_proj": (4, 8)}
    found = used({"block_count": 3, "nextn_predict_layers": 2, "attention.shared_kv_layers": 1}, **block, **more)
    assert {name for name in found if name.startswith("blk")} == {f"blk.0.attn_{role}" for role in "qkv"} | {"blk.1.attn_q"}
    file = file_of({"block_count": 3, "nextn_predict_layers": 2}, **block, **more)
    assert uses.predicting_layers(file) == 1 and uses.count(file, "block_count") == 3 and uses.count(file, "none", 7) == 7
    file.metadata["a.block_count"] = [1, 2]
    assert uses.count(file, "block_count", 5) == 5
    head = uses.head_uses(file)
    assert [use.name for use in head] == [f"blk.2.attn_{role}.weight" for role in "qkv"] + [
        "blk.2.nextn.eh_proj.weight", "token_embd.weight",
    ]  # fmt: skip
    assert head[-1] == Use("token_embd.weight", 36, 144)
    own = {"blk_2_nextn.embed_tokens": (9, 4), "blk_2_nextn.shared_head_head": (9, 4)}
    file = file_of({"block_count": 3, "nextn_predict_layers": 2}, **block, **more, **own)
    assert {use.name: (use.used, use.of) for use in uses.uses_of_layer(file, 2)}["blk.2.nextn.embed_tokens.weight"] == (1, 9)
    assert [use.name for use in uses.head_uses(file)][-2:] == [
        "blk.2.nextn.eh_proj.weight",
        "blk.2.nextn.shared_head_head.weight",
    ]
    every = used({"block_count": 3, "attention.shared_kv_layers": 3}, **block)
    assert [*every] == [f"blk.{layer}.attn_q" for layer in range(3)]


def test_what_is_assumed_is_said():
    said = lambda metadata=None, **shapes: uses.assumed(file := file_of(metadata, **shapes), uses.uses_of(file))  # noqa: E731
    counts = lambda *given, **shapes: [int(number) for number in re.findall(r"\d+", said(*given, **shapes))]  # noqa: E731
    stack, shared = {"blk_1_ffn_up_exps": (8, 2, 4)}, {"blk_1_ffn_up_shexp": (2, 4)}
    assert said({"block_count": 2}, blk_0_attn_q=(4, 4)) == ""
    assert counts({"expert_used_count": 2}, **stack) == [2, 8]
    dense = {"expert_used_count": 2, "leading_dense_block_count": 1}
    assert counts(dense, **stack, **shared) == [2, 8, 1] and " layer first, and the shared" in said(dense, **stack, **shared)
    two = dense | {"leading_dense_block_count": 2}
    assert counts(two, **stack) == [2, 8, 2] and said(two, **stack).endswith(" layers first")
    assert said(**stack).startswith("all experts")
    assert said(blk_1_ffn_up_exps=(2, 2, 4)) == said(**stack) and said(blk_1_ffn_up_exps=(1, 2, 4)) == ""
    assert said(blk_0_attn_q=(3, 2, 4)) == ""
    odd = {f"blk_0_odd{number}": (4,) for number in range(4)}
    assert counts(**odd) == [0, 1, 2, 3] and counts(**odd, blk_0_z=(1,)) == [0, 1, 2, 3, 1]
    ahead = {"block_count": 2, "nextn_predict_layers": 1, "token_embd": 0}
    assert said(ahead, token_embd=(9, 4), **{"blk_1_nextn.x": (4,)}).partition(",")[0].endswith(" 1 layer")


def test_small_policies_by_hand():
    parts = ByLayer(7, layers=2)
    for key, evicted in (("blk.0.a", []), ("blk.1.a", []), ("blk.0.b", ["blk.0.a"]), ("blk.2.c", ["blk.0.b"])):
        assert not parts.request(key, 2) and parts.insert(key, 2) == evicted
    assert parts.resident_bytes == 4 and parts.insert("blk.0.d", 4) is None
    assert (small := ByLayer(1, layers=5)).insert("blk.0.a", 1) == []
    assert small.insert("blk.0.b", 1) == ["blk.0.a"]
    pinned = Pinned(3, names="ab")
    assert [pinned.insert(key, size) for key, size in (("c", 1), ("a", 2), ("b", 2), ("b", 1))] == [None, [], None, []]
