"""What the kit needs of transformers that transformers does not promise: the end of a model's loading.

tests/test_private.py names the version with which each of these parts was last checked.
"""

import torch
from transformers import PreTrainedModel


def mark_loaded(parameter: torch.Tensor) -> None:
    """Keep transformers from filling the parameter with random numbers."""
    parameter._is_hf_initialized = True


def compute_buffers(model: PreTrainedModel) -> None:
    """Fill the buffers that are computed and not stored, in a model whose other tensors have been set."""
    model._move_missing_keys_from_meta_to_device(set(), None, None, None)
    model._initialize_missing_keys(is_quantized=False)
