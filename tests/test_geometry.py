"""Geometries against the figures that the models' publishers and the field reports state."""

import math
from collections import Counter

import pytest

from kit.errors import ModelError
from kit.gguf.formats import FORMATS
from kit.lab.synthetic.geometry import GEOMETRIES, MIXES, geometry, use_more_bits


def total(name, mix="Q4_K_M"):
    return sum(spec.elements for spec in GEOMETRIES[name].tensors(mix))


def test_granite_8b_is_the_model_of_the_reports():
    specs = GEOMETRIES["granite-3.3-8b"].tensors("Q4_K_M")
    types = Counter(spec.qtype for spec in specs)
    assert len(specs) == 362 and types["F32"] == 81 and types["Q4_K"] + types["Q6_K"] == 281
    assert sum(spec.elements for spec in specs) == 8_170_864_640
    assert round(sum(spec.nbytes for spec in specs) / 1e9, 2) == 4.94
    assert round(4 * sum(spec.elements for spec in specs) / 2**30, 2) == 30.44
    by_family = Counter((spec.name.split(".")[-2], spec.qtype, spec.shape) for spec in specs)
    assert by_family == {
        ("token_embd", "Q6_K", (49159, 4096)): 1,
        ("attn_q", "Q4_K", (4096, 4096)): 40,
        ("attn_output", "Q4_K", (4096, 4096)): 40,
        ("attn_k", "Q4_K", (1024, 4096)): 40,
        ("attn_v", "Q6_K", (1024, 4096)): 20,
        ("attn_v", "Q4_K", (1024, 4096)): 20,
        ("ffn_gate", "Q4_K", (12800, 4096)): 40,
        ("ffn_up", "Q4_K", (12800, 4096)): 40,
        ("ffn_down", "Q6_K", (4096, 12800)): 20,
        ("ffn_down", "Q4_K", (4096, 12800)): 20,
        ("attn_norm", "F32", (4096,)): 40,
        ("ffn_norm", "F32", (4096,)): 40,
        ("output_norm", "F32", (4096,)): 1,
    }


@pytest.mark.parametrize(
    "name, parameters, tensors",
    [  # as the model cards and llama.cpp state them
        ("granite-3.3-2b", 2_533_539_840, 362),
        ("tinyllama-1.1b", 1_100_048_384, 201),
        ("llama-3.1-8b", 8_030_261_248 + 64, 292),  # and rope_freqs
        ("qwen2.5-0.5b", 494_032_768, 290),
        ("qwen3-0.6b", 596_049_920, 310),
    ],
)
def test_parameters_and_tensors_of_the_published_models(name, parameters, tensors):
    assert total(name) == parameters and len(GEOMETRIES[name].tensors()) == tensors


@pytest.mark.parametrize("layers", (1, 2, 7, 8, 22, 28, 40))
def test_more_bits_for_the_first_and_last_eighth_and_every_third_between(layers):
    eighth = layers // 8
    expected = set(range(eighth)) | set(range(7 * layers // 8, layers)) | set(range(eighth + 2, 7 * layers // 8, 3))
    assert {layer for layer in range(layers) if use_more_bits(layer, layers)} == expected


def test_rows_that_are_no_whole_super_blocks_take_the_types_that_llama_cpp_falls_back_to():
    specs = {spec.name: spec.qtype for spec in GEOMETRIES["qwen2.5-0.5b"].tensors("Q4_K_M")}
    assert specs["token_embd.weight"] == "Q8_0" and specs["blk.0.attn_q.weight"] == "Q5_0"  # rows of 896
    assert specs["blk.0.attn_v.weight"] == "Q8_0" and specs["blk.3.attn_v.weight"] == "Q5_0"
    assert specs["blk.0.ffn_down.weight"] == "Q6_K" and specs["blk.3.ffn_down.weight"] == "Q4_K"  # rows of 4864


@pytest.mark.parametrize("mix, matrix, head", [("F32", "F32", "F32"), ("F16", "F16", "F16"), ("BF16", "BF16", "BF16"),
                                               ("Q8_0", "Q8_0", "Q8_0"), ("Q4_0", "Q4_0", "Q6_K")])  # fmt: skip
def test_plain_mixes(mix, matrix, head):
    specs = {spec.name: spec.qtype for spec in GEOMETRIES["tinyllama-1.1b"].tensors(mix)}
    assert specs.pop("output.weight") == head
    assert {qtype for name, qtype in specs.items() if "norm" not in name} == {matrix}
    assert {qtype for name, qtype in specs.items() if "norm" in name} == {"F32"}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("mix", MIXES)
def test_every_row_is_whole_blocks_whatever_the_number_of_layers(name, mix):
    row = GEOMETRIES[name]
    one, three = row.tensors(mix, layers=1), row.tensors(mix, layers=3)
    further = [spec.name for spec in three if spec.name.startswith(("blk.1.", "blk.2."))]
    assert len(three) - len(one) == len(further) and further
    for spec in three:
        assert spec.shape[-1] % FORMATS[spec.qtype].block_elements == 0
        assert spec.nbytes * FORMATS[spec.qtype].block_elements == spec.elements * FORMATS[spec.qtype].block_bytes


def test_llama_31_stretches_long_wavelengths_alone():
    """The published rule, written out frequency by frequency (llama-models, apply_scaling)."""
    row = GEOMETRIES["llama-3.1-8b"]
    factors = row.rope_scaling.factors(row.rope_base, row.head_dim)
    for index, factor in enumerate(factors):
        wavelength = 2 * math.pi * 500_000 ** (2 * index / 128)
        if wavelength < 8192 / 4:
            expected = 1
        elif wavelength > 8192 / 1:
            expected = 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = 1 / ((1 - smooth) / 8 + smooth)
        assert factor == pytest.approx(expected, rel=1e-6)
    assert factors[0] == 1 and factors[-1] == 8 and 1 < sorted(set(factors.tolist()))[1] < 8


def test_unknown_names_list_the_known():
    with pytest.raises(ModelError, match=r"'gpt-5'.*granite-3\.3-8b"):
        geometry("gpt-5")
    with pytest.raises(ModelError, match=r"'Q4_K_X'.*Q4_K_M"):
        geometry("tiny-llama").tensors("Q4_K_X")
    for layers in (0, -1, 10**12):
        with pytest.raises(ModelError, match=f"tiny-llama: {layers} layers are not possible: give 1 to 9999"):
            geometry("tiny-llama").tensors(layers=layers)
