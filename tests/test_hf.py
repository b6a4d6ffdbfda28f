"""kit.hf: transformers' models over the kit's weights, against transformers' own load of the same file in float32."""

import hf_files
import pytest
import torch

import kit
import kit.hf

TOKENS = torch.tensor([[5, 17, 99, 3, 64, 21, 7, 8, 120, 1, 33, 90]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def files(folder):
    made = {}
    return lambda name: made.setdefault(name, hf_files.write(folder, name)) if name not in made else made[name]


def inputs(model):
    return {"input_ids": TOKENS} | ({"decoder_input_ids": TOKENS[:, :5]} if model.config.is_encoder_decoder else {})


@pytest.mark.parametrize("name", hf_files.MODELS)
def test_logits_and_weights_equal_transformers_own(files, name):
    path = files(name)
    model, _ = kit.hf.load(path)
    theirs = type(model).from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with torch.no_grad():
        expected, got = theirs(**inputs(theirs)).logits, model(**inputs(model)).logits
    assert (got - expected).abs().max() <= 1e-4 * expected.std()
    ours = dict(model.named_parameters())
    for key, weight in theirs.named_parameters():
        assert torch.equal(ours[key] + 0, weight), key
