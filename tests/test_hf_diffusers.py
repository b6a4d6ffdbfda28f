"""kit.nn.replace_linears under a transformer of diffusers' own class: SD3's, tiny, its layers in a GGUF file."""

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize

import kit

Q8_0 = gguf.GGMLQuantizationType.Q8_0


@torch.no_grad()
def test_a_transformer_of_diffusers_over_blocks(tmp_path):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: pip install 'gguf-kit[diffusers]'")
    torch.manual_seed(0)
    sizes = dict(num_layers=2, attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32)
    widths = dict(joint_attention_dim=32, pooled_projection_dim=64, in_channels=4, out_channels=4)
    model = diffusers.SD3Transformer2DModel(sample_size=8, patch_size=1, **sizes, **widths).eval()
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    layers = {path: layer for path, layer in layers.items() if layer.in_features % 32 == 0}
    writer = gguf.GGUFWriter(path := tmp_path / "sd3.gguf", "sd3")
    for name, layer in layers.items():
        blocks = quantize(layer.weight.numpy(), Q8_0)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=Q8_0)
        layer.weight.copy_(torch.from_numpy(dequantize(blocks, Q8_0)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    x, text, pooled = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 32), torch.randn(1, 64)
    arguments = dict(hidden_states=x, encoder_hidden_states=text, pooled_projections=pooled, timestep=torch.tensor([3]))
    expected = model(**arguments).sample
    kit.nn.replace_linears(model, path, {name: f"{name}.weight" for name in layers})
    with torch.inference_mode():
        got = model(**arguments).sample
    assert len(layers) > 20
    assert (got - expected).abs().max() <= 1e-4 * expected.std()
