"""From a row of kit/gguf/formats.py to machine code, and what runs it.

A row says where the bits of a block lie. That of Q4_0, by hand:

    row("Q4_0", 2, 32, "d <f2, qs 16u1", numbers("qs 16x4", less=8), scales(32))

A block of 32 weights has 18 bytes: ``d``, a float16, and ``qs``, 16 bytes with two codes each. The plane "qs 16x4" gives the
low four bits of the 16 bytes to weights 0 to 15, their high four bits to weights 16 to 31. A code means -8 to 7 (``less=8``),
and all 32 share the scale d. Byte by byte:

    >>> import kit, numpy
    >>> block = bytes.fromhex("00 38   21 F8 88 88 88 88 88 88 88 88 88 88 88 88 88 88")
    >>> # d = 0x3800 = 0.5; byte 2, 0x21: weight 0 is (1 - 8) d, weight 16 is (2 - 8) d; byte 3, 0xF8: weights 1 and 17
    >>> weights = kit.dequantize(numpy.frombuffer(block, numpy.uint8), "Q4_0")
    >>> weights[[0, 16, 1, 17]].tolist(), bool(weights[2:16].any())
    ([-3.5, -3.0, 0.0, 3.5], False)

``kit.dequantize(..., backend="plain")`` does this in numpy, a step at a time. The kernels do it sixteen weights at a time:

1. codes.py      makes ``read(tier, block, j)``: codes 16 j to 16 j + 15 of a block, loads, shifts and masks from the planes
2. scales.py     makes the reader of a block's scales and minima
3. kernels.py    loops over blocks: codes to float32, times the scale, perhaps less the minimum, stored as float32 or 16 bits
4. tasks.py      compiles such a loop once a machine, for a format, a type and a tier, and keeps the machine code on disk
5. dequantize.py shares the blocks out; threads.py runs the shares on all cores, by the functions of work_queue.py

A product y = W x reads the blocks where they lie (linear.py), and multiplies codes instead of weights:

- activations.py   x in digits of eight bits: one ("int8"), two ("int16") or three ("float32"), a scale for each 32 or 256
- superblocks.py   the codes of 256 weights as bytes in registers, and what their scales do to the sums
- gemv_codes.py    one token or a few: dot products of bytes, a row a sum, super-block by super-block (gemv_products.py);
  gemv_few.py: few in registers, with the bits of each alone; gemv_values.py: of formats without codes; strategies.py: the
  table of how, by kind of format and tier
- gemm_codes.py, gemm.py   a few tokens, and prompts: tiles of rows by tokens, of which transposed.py unpacks sixteen rows at a
  time, whose bits words.py finds; strips of rows dequantized to the first-level cache. crossings.py measures from how many
  tokens on each is faster, peak.py what the CPU's instructions would allow

Words of these modules: "sixteens" are weights counted by 16, the lanes of a vector; a "record" is the activations of 256
columns of one token in digits, with their scales and sums; its "layout" says in which order, in how many digits and with how
many to a scale; "digits" are the bytes of an activation, as activations.py defines them.

The rest of a token is in norm.py, elementwise.py (activation, RoPE, sums), history.py (keys and values), attention.py, and of
layers that hold a state instead of positions in recurrent.py (delta net, Mamba-2) and convolution.py (their short convolution);
buffers.py keeps memory for dequantized tensors, tiles/ decodes compressed ones (kit/codec).
simd/ has the vectors, and the tiers: what instructions a CPU has.
"""

import os

# Numba makes errors of overloads that do not fit, a thousand a kernel; where colorama is, their colors take a fifteenth of it.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
