"""Files of tokens, as others write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def llm_c(path: Path, tokens: np.ndarray) -> Path:
    """As llm.c's dev/data/data_common.py writes them."""
    header = np.zeros(256, np.int32)
    header[:3] = (20240520, 1, len(tokens)) if tokens.dtype == np.uint16 else (20240801, 7, len(tokens))
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def megatron(path: Path, documents: Sequence[np.ndarray], sentences: int = 1) -> Path:
    """As Megatron-LM's IndexedDatasetBuilder writes them, each document in so many sequences."""
    sequences = [part for document in documents for part in np.array_split(document, sentences)]
    sizes = np.array([len(part) for part in sequences], np.int32)
    codes = {"uint8": 1, "int32": 4, "int64": 5, "float32": 7, "uint16": 8}
    dtype = documents[0].dtype
    pointers = np.concatenate(([0], np.cumsum(sizes[:-1], dtype=np.int64))) * dtype.itemsize
    bounds = np.arange(0, len(sequences) + 1, sentences, dtype=np.int64)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, codes[dtype.name], len(sizes), len(bounds))
    path.with_suffix(".idx").write_bytes(header + sizes.tobytes() + pointers.tobytes() + bounds.tobytes())
    path.with_suffix(".bin").write_bytes(np.concatenate(documents).tobytes())
    return path.with_suffix(".bin")
