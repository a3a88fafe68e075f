"""The leaves of samples that come one by one: what they are, as the first sample shows, and blocks of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import BadSetting
from penstock.tree import RaggedRows

RaggedChoice = Literal["refuse", "pad", "pack"]
Values = npt.NDArray[Any]
BAD = "bad"
"""The leaf that says which samples were skipped."""


class RowLeaf(NamedTuple):
    """A leaf of a sample."""

    name: str
    kind: Literal["fixed", "list", "text", "bytes"]
    """Values of one size are "fixed", arrays of different length a "list"."""
    dtype: str = ""  # type of its numbers
    shape: tuple[int, ...] = ()  # shape of one; of a list, that of an item

    def checked(self, value: Any) -> Any:
        """Return a value of this leaf in its type."""
        if self.kind in ("text", "bytes"):
            if not isinstance(value, str if self.kind == "text" else bytes):
                raise ValueError(
                    f"{self.name!r} is of type {type(value).__name__}, and in the first sample {self.kind}"
                )
            return value
        array = np.asarray(value)
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"{self.name!r} has numbers of {array.dtype}, and {self.dtype} in the first sample")
        shape = array.shape[1:] if self.kind == "list" and array.ndim else array.shape
        if shape != self.shape or (self.kind == "list" and not array.ndim):
            remedy = "" if self.kind == "list" else ": if lengths are to differ, pass ragged='pad' or 'pack'"
            raise ValueError(
                f"{self.name!r} has shape {array.shape}, and {self.shape} in the first sample{remedy}"
            )
        cast = array.astype(self.dtype, copy=False)
        if array.dtype.kind in "iumM" and not np.array_equal(cast, array):  # NaT is none of a sample's own
            raise ValueError(
                f"{self.name!r} has {array.dtype} that {self.dtype}, as in the first sample, cannot hold"
            )
        return cast


def leaves_of(sample: Any, ragged: RaggedChoice, names: str) -> list[RowLeaf]:
    """Return the leaves of the first sample.

    ``ragged`` is what becomes of arrays with one axis or more; ``names`` is what gave the sample, for errors.
    """
    if not isinstance(sample, Mapping) or not sample:
        kind = type(cast("object", sample)).__name__
        raise BadSetting(f"{names} gave {kind}: a sample is a dict from names to values")
    named = cast("Mapping[Any, Any]", sample)
    return [_leaf(str(name), value, ragged, names) for name, value in named.items()]


def _leaf(name: str, value: Any, ragged: RaggedChoice, names: str) -> RowLeaf:
    if isinstance(value, str):
        return RowLeaf(name, "text")
    if isinstance(value, bytes):
        return RowLeaf(name, "bytes")
    try:
        array = np.asarray(value)
    except ValueError:  # lists of lists of different length
        array = np.empty(0, object)
    if array.dtype.kind not in "biufcmM":
        raise BadSetting(
            f"{names} gave {name!r} of type {type(value).__name__}, which no array of numbers holds: leave it out "
            "with columns=, or make arrays, text or bytes of it with decode="
        )
    if array.ndim and ragged != "refuse":
        return RowLeaf(name, "list", array.dtype.str, array.shape[1:])
    return RowLeaf(name, "fixed", array.dtype.str, array.shape)


def with_bad(leaves: Sequence[RowLeaf], *, skips: bool) -> tuple[RowLeaf, ...]:
    """Return the leaves, and if bad samples are skipped one that says which."""
    if not skips:
        return tuple(leaves)
    if BAD in (leaf.name for leaf in leaves):
        raise BadSetting(
            f"on_bad='skip' adds a column {BAD!r}, and there is one: give it another name, by columns="
        )
    return (*leaves, RowLeaf(BAD, "fixed", "|b1"))


def example_of(leaves: Sequence[RowLeaf]) -> dict[str, Values]:
    """Return a block of one row of those leaves that are equally large in all samples."""
    return {leaf.name: np.zeros((1, *leaf.shape), leaf.dtype) for leaf in leaves if leaf.kind == "fixed"}


class VaryingLeaves:
    """Those leaves of a block that differ in length."""

    def __init__(self, leaves: Sequence[RowLeaf]) -> None:
        self.leaves = [leaf for leaf in leaves if leaf.kind != "fixed"]
        self.rows: list[list[Any]] = [[] for _ in self.leaves]

    def add(self, sample: Mapping[str, Any] | None) -> None:
        """Add a sample; None for one that was skipped, which has nothing in them."""
        empty = {"text": "", "bytes": b""}
        for leaf, rows in zip(self.leaves, self.rows, strict=True):
            if sample is not None:
                rows.append(sample[leaf.name])
            else:
                rows.append(empty[leaf.kind] if leaf.kind in empty else np.empty((0, *leaf.shape), leaf.dtype))

    def given(self, ragged: RaggedChoice) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of the block, by name."""
        for leaf, rows in zip(self.leaves, self.rows, strict=True):
            give = "padded" if ragged == "pad" else "ragged"
            yield leaf.name, RaggedRows.of(rows, give) if leaf.kind == "list" else rows
