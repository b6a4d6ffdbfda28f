"""Verify a compressed model by its checksums and, if given, against its source."""

import zlib

import numpy as np
import torch
from tqdm import tqdm

from kit.codec.compressor import matrices_of, open_source, quantized
from kit.codec.container import CompressedFile, unpack_matrix
from kit.errors import CodecError


def verify(path, decoder="interleaved", source=None, threads=1, progress=False) -> tuple[int, int]:
    """Check every tile's checksum, every tensor's CRC-32 and, with a `source`, every matrix against that file's weights.

    Returns the numbers of tensors and matrices; CodecError at the first difference.
    """
    with CompressedFile(path) as file:
        crcs = file.metadata["kit.codec.crc32"].numpy().astype(np.uint32).tolist()
        if len(crcs) != len(file.gguf.tensors):
            raise CodecError(f"{path}: {len(crcs)} checksums for {len(file.gguf.tensors)} tensors: the file is damaged")
        for name, right in zip(file.gguf.tensors, crcs, strict=True):
            if zlib.crc32(file.gguf.raw(name)) != right:
                raise CodecError(f"{path}: {name}: the CRC-32 of its bytes differs: the file is damaged")
        originals = dict(matrices_of(open_source(source))) if source else {}
        for name, matrix in tqdm(file.matrices.items(), unit="matrix", disable=None if progress else True):
            decoded = unpack_matrix(matrix, decoder, threads)
            if not source:
                continue
            if name not in originals:
                raise CodecError(f"{path}: {name} is not in {source}")
            blocks, qtype = originals[name]
            if file.coding == "int8":
                values, scales = quantized(blocks, qtype, f"{source}: {name}")
                same = np.array_equal(values, decoded.numpy()) and np.array_equal(scales, matrix.scales)
            else:
                same = np.array_equal(blocks, decoded.view(torch.uint8).numpy())
            if not same:
                raise CodecError(f"{path}: {name}: unpacks to other values than {source} holds")
        return len(crcs), len(file.matrices)
