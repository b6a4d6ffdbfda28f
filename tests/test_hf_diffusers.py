"""kit.nn.replace_linears under transformers of diffusers' own classes: SD3, Flux and Wan, tiny, their layers in a GGUF file."""

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize

import kit

Q8_0 = gguf.GGMLQuantizationType.Q8_0
HEADS = dict(num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=4)
TEXT = dict(joint_attention_dim=32, pooled_projection_dim=64)
STEP, POOLED, WORDS = torch.tensor([3]), torch.ones(1, 64), torch.linspace(-1, 1, 5 * 32).view(1, 5, 32)

# class -> (its sizes, what a pass takes)
MODELS = {
    "SD3Transformer2DModel": (
        HEADS | TEXT | dict(num_layers=2, caption_projection_dim=32, sample_size=8, patch_size=1),
        dict(hidden_states=torch.ones(1, 4, 8, 8), encoder_hidden_states=WORDS, pooled_projections=POOLED, timestep=STEP),
    ),
    "FluxTransformer2DModel": (
        HEADS | TEXT | dict(num_layers=1, num_single_layers=1, axes_dims_rope=(2, 2, 4), patch_size=1),
        dict(hidden_states=torch.ones(1, 16, 4), encoder_hidden_states=WORDS, pooled_projections=POOLED, timestep=STEP,
             img_ids=torch.arange(48.0).view(16, 3), txt_ids=torch.zeros(5, 3)),
    ),
    "WanTransformer3DModel": (
        HEADS | dict(num_layers=2, text_dim=32, freq_dim=32, ffn_dim=64, patch_size=(1, 2, 2), attention_head_dim=16),
        dict(hidden_states=torch.ones(1, 4, 2, 4, 4), encoder_hidden_states=WORDS, timestep=STEP),
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_of_diffusers_over_blocks(tmp_path, name):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: pip install --editable '.[diffusers]'")
    torch.manual_seed(0)
    sizes, arguments = MODELS[name]
    model = getattr(diffusers, name)(**sizes).eval()
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    layers = {path: layer for path, layer in layers.items() if layer.in_features % 32 == 0}
    writer = gguf.GGUFWriter(path := tmp_path / "model.gguf", "diffusers")
    for key, layer in layers.items():
        blocks = quantize(layer.weight.numpy(), Q8_0)
        writer.add_tensor(f"{key}.weight", blocks, raw_dtype=Q8_0)
        layer.weight.copy_(torch.from_numpy(dequantize(blocks, Q8_0)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    expected = model(**arguments).sample
    kit.nn.replace_linears(model, path, {key: f"{key}.weight" for key in layers})
    with torch.inference_mode():
        got = model(**arguments).sample
    assert len(layers) >= 16
    assert (got - expected).abs().max() <= 1e-4 * expected.std()
