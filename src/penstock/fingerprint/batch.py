"""Digests of a batch, row by row, by which two processes find out whether they make the same samples."""

# A batch's leaves are of any array library.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.linux.forked_call import ForkedCall
from penstock.tree import Array, Ragged, RaggedRows, array_nodes, bytes_of, describe, leaf_names

_TOLERANCE = 1e-6
_PIECES, _SUMS = 16, 2
_SEED = 20261124
STRUCTURE = "its structure"


class RowDigest(msgspec.Struct, frozen=True, array_like=True):
    """One sample's part of a leaf."""

    digest: bytes  # digest of its bytes; of floats, of where they are not finite
    sums: tuple[float, ...] = ()
    """Of each piece of the floats, sums under random weights, and what an error of 1e-6 an item makes."""

    def equals(self, other: RowDigest) -> bool:
        """Whether two rows are the same but for errors of about 1e-6 in floats."""
        if self.digest != other.digest or len(self.sums) != len(other.sums):
            return False
        mine, its = (np.reshape(each.sums, (-1, _SUMS + 1)) for each in (self, other))
        return bool((abs(mine[:, :-1] - its[:, :-1]) <= mine[:, -1:]).all())


class LeafDigest(msgspec.Struct, frozen=True, array_like=True):
    """A leaf of a batch."""

    name: str  # its path, such as ``batch['image']``
    rows: tuple[RowDigest, ...]  # one for each sample, or a single one where the leaf has no row axis
    repeats: bool = True  # whether the process made it twice alike

    def differs_at(self, other: LeafDigest) -> int | None:
        """Return the first row that differs; None if all are the same."""
        if len(self.rows) != len(other.rows):
            return 0
        pairs = enumerate(zip(self.rows, other.rows, strict=True))
        return next((i for i, (mine, its) in pairs if not mine.equals(its)), None)


def leaves_of(batch: Any, samples: int) -> tuple[LeafDigest, ...]:
    """Digest a batch of ``samples`` samples; its structure, with types and shapes, is one more leaf."""
    layout, _, leaves = describe(batch, whole=True)
    found = [LeafDigest(STRUCTURE, (RowDigest(_digest(msgspec.msgpack.encode(layout))),))]
    for node, name, leaf in zip(array_nodes(layout), leaf_names(layout), leaves, strict=True):
        has_rows = tuple(leaf.shape[:1]) == (samples,) if isinstance(node, Array) else len(leaf) == samples
        parts = leaf if has_rows else [leaf]
        if isinstance(node, Array):
            rows = tuple(_row(node, part) for part in parts)
        elif isinstance(node, Ragged):
            rows = tuple(_ragged(node, leaf[i : i + 1] if has_rows else leaf) for i in range(len(parts)))
        else:
            rows = tuple(RowDigest(_digest(msgspec.msgpack.encode(part))) for part in parts)
        found.append(LeafDigest(name[:200], rows))
    return tuple(found)


def twice(first: Sequence[LeafDigest], second: Sequence[LeafDigest]) -> tuple[LeafDigest, ...]:
    """Return what one process made twice, each leaf with whether it came out alike."""
    again = {leaf.name: leaf for leaf in second if leaf.repeats}

    def repeats(leaf: LeafDigest) -> bool:
        return leaf.repeats and leaf.name in again and leaf.differs_at(again[leaf.name]) is None

    return tuple(LeafDigest(leaf.name, leaf.rows, repeats(leaf)) for leaf in first)


def difference(mine: Sequence[LeafDigest], theirs: Sequence[LeafDigest]) -> tuple[str, int] | None:
    """Return the name of a leaf that each process makes alike, but not the two of them, and the row."""
    others = {leaf.name: leaf for leaf in theirs}
    for leaf in mine:
        other = others.get(leaf.name)
        if other and leaf.repeats and other.repeats and (row := leaf.differs_at(other)) is not None:
            return leaf.name, row
    return None


def _row(node: Any, part: Any) -> RowDigest:
    floats = _as_floats(part)
    if floats is None:
        return RowDigest(_digest(bytes_of(node, part)))
    finite = np.isfinite(floats)
    values = np.where(finite, floats, 0.0)
    special = np.where(finite, 0.0, floats).tobytes() if not finite.all() else b""
    return RowDigest(_digest(special), tuple(float(each) for each in _sums(values)))


def _ragged(node: Ragged, part: RaggedRows) -> RowDigest:
    values, lengths = _row(node.items, part.values), repr(part.lengths.tolist()).encode()
    return RowDigest(_digest(values.digest + lengths), values.sums)


def _as_floats(part: Any) -> npt.NDArray[np.float64] | None:
    """Return the items of an array of floats or complex numbers, as float64; None of another."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.Tensor):
        if not (part.is_floating_point() or part.is_complex()):
            return None
        part = part.detach().resolve_conj()
        part = part.to(torch.complex128 if part.is_complex() else torch.float64).resolve_neg().numpy()
    array = np.asarray(part)
    if array.dtype.kind not in "fc":
        return None
    wide = np.ascontiguousarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide.reshape(-1).view(np.float64)


def _sums(values: npt.NDArray[np.float64]) -> Iterator[float]:
    """Yield sums of the values under random weights, by piece: rows that differ have other ones.

    Weights of one size would hide items that change places, or by equal and opposite amounts. Errors of 1e-6 in n
    items change such a sum by about 1e-6 times the root of n. A piece has four times that, which hides a single
    item's error of up to 8e-6 times the root.
    """
    for at, piece in enumerate(np.array_split(values, min(_PIECES, max(1, len(values) // 64)))):
        yield from np.einsum("ij,j->i", _weights(len(piece), at), piece).tolist()
        size = np.sqrt(np.maximum(1.0, piece * piece).sum())
        yield float(_TOLERANCE * size * (1.5 if len(piece) == 1 else 4))


def _weights(items: int, piece: int) -> npt.NDArray[np.float64]:
    """Return weights of a size of 0.5 to 1.5, either way."""
    around = np.random.default_rng((_SEED, piece)).uniform(-1, 1, (_SUMS, items))
    return around + np.copysign(0.5, around)


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


LIMIT_S = 2.0
_MOST_BYTES = 96 << 10

LeavesOf = Callable[[Sequence[int]], tuple[LeafDigest, ...]]
"""Makes the batch of the samples with some ids twice, in a process that ends afterwards; returns its leaves."""

_decode = msgspec.msgpack.Decoder(tuple[LeafDigest, ...] | str).decode


class Making:
    """A batch on its way in a child, which is killed after 2 s."""

    def __init__(self, leaves_of: LeavesOf, ids: Sequence[int]) -> None:
        self._call: ForkedCall | None = None
        self._result: tuple[LeafDigest, ...] | str | None = None
        try:
            self._call = ForkedCall(partial(_answer, leaves_of, ids), LIMIT_S)
        except OSError as error:  # no process, no memory or no descriptor is left
            self._result = f"no process could be forked to make them: {error}"

    @property
    def cpu_s(self) -> float:
        """CPU time that it took, once it is over."""
        return self._call.cpu_s if self._call else 0.0

    def result(self, wait_s: float = 0.0) -> tuple[LeafDigest, ...] | str | None:
        """Return its leaves, or why there are none; None if it is still being made after ``wait_s`` seconds."""
        if self._result is None and self._call and (answer := self._call.answer(wait_s)) is not None:
            failed = f"making them took over {LIMIT_S:g} s, or ended the process"
            self._result = _decode(answer) if answer else failed
        return self._result

    def close(self) -> None:
        """End the child if it runs."""
        if self._call:
            self._call.close()


def _answer(leaves_of: LeavesOf, ids: Sequence[int]) -> bytes:
    try:
        encoded = msgspec.msgpack.encode(leaves_of(ids))
    except Exception as error:
        return msgspec.msgpack.encode(f"making them raised {type(error).__name__}: {error}"[:400])
    if len(encoded) > _MOST_BYTES:
        return msgspec.msgpack.encode("their batch has too many leaves")
    return encoded
