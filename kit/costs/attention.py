"""What attention costs a token in one layer: arithmetic, and keys and values that are read."""

from kit.model.config import Config


def attention_flops(config: Config, context: int, layer: int = 0) -> int:
    """Multiplications and additions of a layer's scores and weighted values for one token."""
    return 4 * config.heads * config.head_dim * min(context, config.window_of(layer) or context)


def kv_bytes(config: Config, context: int, layer: int = 0, width: int = 4) -> int:
    """Bytes of a layer's keys and values, or of a latent, that one token attends to, ``width`` bytes a number."""
    parts, positions = 2 - config.one_history, min(context, config.window_of(layer) or context)
    return parts * width * config.kv_heads * config.head_dim * positions
