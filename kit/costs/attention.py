"""What attention costs a token in one layer: arithmetic, and keys and values that are read."""

from kit.model.config import Config


def attention_flops(config: Config, context: int, layer: int = 0) -> int:
    """Multiplications and additions of a layer's scores and weighted values for one token."""
    return 4 * config.heads * config.head_dim * min(context, config.window_of(layer) or context)


def kv_bytes(config: Config, context: int, layer: int = 0, width: int = 4) -> int:
    """Bytes of a layer's keys and values that one token attends to, ``width`` bytes a number."""
    return 2 * width * config.kv_heads * config.head_dim * min(context, config.window_of(layer) or context)
