"""How large the states of recurrent.py are; this module imports nothing, because ``kit inspect`` asks it."""

BLOCK = 32  # values of a block
LARGEST = 256  # values of a head of a delta net, and its keys


def state_shape(heads: int, keys: int, values: int) -> tuple[int, int, int, int]:
    """Shape of the matrices of a layer as they are stored; a new sequence has zeros."""
    return heads, -(-values // BLOCK), keys, BLOCK
