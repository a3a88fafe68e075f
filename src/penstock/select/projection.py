"""Projects long gradients at random, with a matrix that is drawn block by block and never held."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

_BLOCK_ROWS = 2048
_WORD_BITS = 64
_SIGNS_OF_BYTES = 2.0 * (torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1) - 1


def projected(parts: Iterable[Tensor], length: int, dimensions: int, seed: int) -> Tensor:
    """Return the parts of vectors, joined and multiplied by a random matrix of +-1, by the root of ``dimensions``.

    Products of pairs are kept up to a relative error of about ``sqrt(2 / dimensions)``. Vectors that are no longer
    than ``dimensions`` are joined only.

    Source: Johnson-Lindenstrauss with signs (Achlioptas, 2003), as in LESS (2402.04333) and TRAK (2303.14186).

    Args:
        parts: Each of shape ``(n, *any)``. One is read at a time, so they may share memory; where they
            are cut does not matter.
        length: Length of the vectors.
        dimensions: Length of the results.
        seed: Random seed of the matrix: one seed, one matrix.

    Returns:
        Shape ``(n, min(length, dimensions))``.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    found: Tensor | None = None
    done = 0
    for part in parts:
        rows = part.flatten(1)
        if found is None:
            found = rows.new_zeros(len(rows), min(length, dimensions))
        if length <= dimensions:
            found[:, done : done + rows.shape[1]] = rows
        else:
            for some in cast("tuple[Tensor, ...]", rows.split(_BLOCK_ROWS, 1)):
                found.addmm_(some, _signs(some.shape[1], dimensions, generator).to(some))
        done += rows.shape[1]
    assert found is not None and done == length
    return found if length <= dimensions else found / dimensions**0.5


def _signs(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draw a matrix of +-1: the bits of random words, eight at a time from a table."""
    words = torch.randint(-(2**63), 2**63 - 1, (rows, -(-columns // _WORD_BITS)), generator=generator)
    signs = _SIGNS_OF_BYTES.index_select(0, words.view(torch.uint8).flatten().int())
    return signs.view(rows, -1)[:, :columns]
