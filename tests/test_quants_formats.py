"""The table of ggml formats against those of gguf-py and of llama.cpp; types of other programs."""

import gguf
import llama_cpp
import numpy as np
import pytest

from kit.gguf.formats import BY_ID, FORMATS


def test_the_table_is_gguf_pys():
    ours = {format.name: (format.id, format.block_elements, format.block_bytes) for format in FORMATS.values()}
    theirs = {qtype.name: (int(qtype), *gguf.GGML_QUANT_SIZES[qtype]) for qtype in gguf.GGMLQuantizationType}
    assert ours == theirs | {"Q2_0": (42, 64, 18)}  # which gguf-py does not have yet
    assert {id: format.name for id, format in BY_ID.items()} == {id: name for name, (id, *_) in ours.items()}


def test_the_table_is_llama_cpps():
    """Names and sizes; of Q8_1, which no file holds, gguf-py says another size."""
    for format in FORMATS.values():
        name, *sizes = llama_cpp.format_of(format.id)
        assert name.upper() == format.name
        assert sizes == [format.block_elements, 36 if name == "q8_1" else format.block_bytes], name


@pytest.mark.parametrize("name, elements, nbytes, bits", [("Q4_K", 4096, 2304, 4.5), ("Q8_0", 64, 68, 8.5)])
def test_sizes(name, elements, nbytes, bits):
    assert FORMATS[name].nbytes(elements) == nbytes
    assert FORMATS[name].bits_per_weight == bits


def test_byteswap_turns_a_big_endian_block_into_a_native_one():
    """Q4_K from a big-endian file: only its two float16 scales change order."""
    native = np.arange(144, dtype=np.uint8)
    big = native.copy()
    big[:4] = [1, 0, 3, 2]
    assert np.array_equal(big.view(FORMATS["Q4_K"].layout).byteswap().view(np.uint8), native)
