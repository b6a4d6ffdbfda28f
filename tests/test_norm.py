"""RMS normalization against its definition in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.cpu.norm import SMALL_NORM, rms_norm


def defined(x, weight, eps):
    x, weight = x.double().numpy(), weight.double().numpy()
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 5), n=st.sampled_from([2, 16, 24, 48, 64, 256, 2064]), seed=st.integers(0, 2**32 - 1))
def test_equals_the_definition(rows, n, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, n, generator=generator) * 30, torch.randn(n, generator=generator)
    got = rms_norm(x, weight, 1e-5)
    assert got.shape == x.shape and np.allclose(got.numpy(), defined(x, weight, 1e-5), rtol=3e-6, atol=1e-12)


@pytest.mark.parametrize(
    "x",
    [torch.randn(SMALL_NORM // 64 + 1, 64), torch.randn(64, 3).T, torch.randn(4, 2, 64)[:, 0]],
    ids=["many", "columns", "strided"],
)
def test_what_torch_is_asked_for(x):
    weight = torch.rand(x.shape[-1])
    assert np.allclose(rms_norm(x, weight, 1e-6).numpy(), defined(x, weight, 1e-6), rtol=3e-6, atol=1e-12)


def test_weights_in_half_precision_and_nan():
    x, weight = torch.randn(2, 32), torch.rand(32)
    assert torch.allclose(rms_norm(x, weight.half(), 1e-6), rms_norm(x, weight, 1e-6), atol=2e-3)
    x[1, 5] = torch.nan
    got = rms_norm(x, weight, 1e-6)
    assert got[0].isfinite().all() and got[1].isnan().all()
