"""Best-fit packing: pieces of documents into rows, so that few tokens of a row stay empty."""

from __future__ import annotations

import numpy as np

from penstock.contracts import Ids, Numbers


def packed(sizes: Numbers, capacity: int) -> tuple[Ids, Ids]:
    """Put pieces into rows, longest first, each into the fullest row that has room for it.

    Best-fit decreasing, as in Ding et al., "Fewer Truncations Improve Language Modeling" (ICML 2024); pieces of
    one size are placed together.

    Args:
        sizes: Size of each piece, at most ``capacity``.
        capacity: Size of a row.

    Returns:
        The pieces, row after row; and the index of each row's first piece, and the number of pieces.
    """
    row_of = np.empty(len(sizes), np.int64)
    rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the room that is left in them
    some = 0  # bit r is set where rows have room r
    made = 0
    by_size = np.argsort(-sizes, kind="stable")
    bounds = np.flatnonzero(np.diff(sizes[by_size], prepend=-1)).tolist()
    for first, stop in zip(bounds, [*bounds[1:], len(sizes)], strict=True):
        pieces, size = by_size[first:stop], int(sizes[by_size[first]])
        while len(pieces):
            if fitting := some >> size:
                room = size + (fitting & -fitting).bit_length() - 1  # the least that there is
            else:
                room, needed = capacity, -(-len(pieces) // (capacity // size))
                rows[room] += range(made, made + needed)
                made += needed
            each = room // size
            many = min(len(rows[room]), -(-len(pieces) // each))
            taken = rows[room][-many:]
            del rows[room][-many:]
            placed = pieces[: many * each]
            row_of[placed] = np.repeat(taken, each)[: len(placed)]
            pieces = pieces[len(placed) :]
            of_last = len(placed) - (many - 1) * each
            rows[room - each * size] += taken[:-1]
            rows[room - of_last * size].append(taken[-1])
            for changed in (room, room - each * size, room - of_last * size):
                some = some | 1 << changed if rows[changed] else some & ~(1 << changed)
    return np.argsort(row_of, kind="stable"), np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=made))))
