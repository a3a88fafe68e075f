"""How samples become rows: their fields, a user's function, and leaves as the first sample has them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from penstock.contracts import Place, Tree
from penstock.errors import BadSetting, ReadFailed
from penstock.sources.samples.worker import BlockPart
from penstock.sources.workers import Steps
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
            if isinstance(value, bytes):
                return bytes(value)
            try:
                _ = value.isascii() or value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{self.name!r} is no valid Unicode ({error}): give it as bytes") from None
            return str.__str__(value)  # of a subclass its text
        try:
            array = np.asarray(value)
        except Exception as error:  # whatever a user's type raises
            raise ValueError(f"{self.name!r} of type {type(value).__name__} makes no array: {error}") from error
        if self.kind == "list" and not array.size and array.ndim == 1:  # an empty list has no type of its own
            array = np.empty((0, *self.shape), self.dtype)
        are_whole = array.dtype.kind in "iu" and np.dtype(self.dtype).kind in "iu"  # compared below
        if not are_whole and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"{self.name!r} has numbers of {array.dtype}, and {self.dtype} in the first sample")
        shape = array.shape[1:] if self.kind == "list" and array.ndim else array.shape
        if shape != self.shape or (self.kind == "list" and not array.ndim):
            remedy = "" if self.kind == "list" else ": if lengths are to differ, pass ragged='pad' or 'pack'"
            raise ValueError(
                f"{self.name!r} has shape {array.shape}, and {self.shape} in the first sample{remedy}"
            )
        with np.errstate(over="ignore"):
            cast = array.astype(self.dtype, copy=False)
        is_lost = array.dtype.kind in "fc" and not np.array_equal(np.isinf(cast), np.isinf(array))
        if is_lost or (array.dtype.kind in "iumM" and not np.array_equal(cast, array)):  # NaT is none of its own
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
            f"{names} gave {name!r} of type {type(value).__name__}, which no array of numbers holds: make "
            "arrays, text or bytes of it with decode=, or leave it out (columns= of a RecordSource)"
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
            f"on_bad='skip' adds a column {BAD!r}, and there is one: give it another name, by decode= or columns="
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


_TRIED = 100
"""First samples of which one must be good."""


class RowRecipe(msgspec.Struct, frozen=True):
    """How samples become rows."""

    decode: Callable[[Any], Any] | None  # a user's function from fields to leaves; None for none
    ragged: RaggedChoice  # what becomes of lists
    skips: bool  # whether bad samples are skipped
    root: str = ""  # name of the data
    names: Mapping[str, str] = {}  # fields of a sample by the names that they get; empty for those that it has
    parse: Callable[[bytes], dict[str, Any]] | None = None
    """From a sample's bytes to its fields; None where it comes as fields."""
    leaves: tuple[RowLeaf, ...] = ()  # the leaves of a row

    @property
    def in_ring(self) -> bool:
        return all(leaf.kind == "fixed" for leaf in self.leaves)

    def step(self) -> RowStep:
        return RowStep(self)

    @property
    def part_rows(self) -> int:
        """All of a block: most rows take microseconds, and what varies in size is put together once."""
        return 0

    def whole(self, found: Sequence[VaryingLeaves], tree: Tree) -> Tree:
        (whole,) = found
        varying = dict(whole.given(self.ragged))
        return {leaf.name: tree[leaf.name] if leaf.kind == "fixed" else varying[leaf.name] for leaf in self.leaves}

    def of_first(self, samples: Iterable[tuple[str, Callable[[], Mapping[str, Any]]]], root: str) -> RowRecipe:
        """Return the recipe with the leaves of the first sample.

        Each of ``samples`` is where it lies, and what reads it; bad ones are passed over where they are skipped.
        """
        where, error = root, None
        for where, read in islice(samples, _TRIED if self.skips else 1):
            try:
                sample = self.sample(read())
            except (ValueError, ReadFailed) as failed:
                error = failed
                continue
            leaves = leaves_of(sample, self.ragged, "decode=" if self.decode else where)
            return structs.replace(self, root=root, leaves=with_bad(leaves, skips=self.skips))
        which = f"none of the first {_TRIED} samples can" if self.skips else "the first sample cannot"
        raise BadSetting(f"{where}: {which} be taken: {error}") from (error and error.__cause__)

    def named(self, sample: Any) -> Any:
        """Return a sample's fields by the names that they get: what ``decode`` takes."""
        return {name: sample[field] for name, field in self.names.items()} if self.names else dict(sample)

    def sample(self, fields: Any) -> Any:
        """Return a sample's leaves."""
        named = self.named(fields)
        if self.decode is None:
            return named
        try:
            return self.decode(named)
        except Exception as error:  # whatever a user's function raises
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}, line {at.lineno}"
            raise ValueError(f"decode= raised {type(error).__name__}: {error} ({where})") from error


class RowStep:
    """Makes parts of blocks of rows, in a worker's process."""

    remedy = "Mend it"

    def __init__(self, recipe: RowRecipe) -> None:
        self._recipe = recipe
        self._marker = BAD if recipe.skips else None
        self._own = {leaf.name: leaf for leaf in recipe.leaves if leaf.name != self._marker}

    def __call__(self, part: BlockPart) -> Steps[VaryingLeaves]:
        """Write the leaves of a part, a sample at a step; return those that differ in length."""
        arrays = dict(zip(example_of(self._recipe.leaves), part.arrays, strict=True))
        varying = VaryingLeaves(self._recipe.leaves)
        yield
        for row in range(len(part.samples)):
            try:
                sample = self._sample(part, row)
            except (ValueError, ReadFailed) as error:
                sample, why = None, f"{self._where(part, row)}: {error}"
                part.skip(error, why, f"{why}: it is skipped", self.remedy)
            for name, array in arrays.items():
                if name == self._marker:
                    array[row] = sample is None
                else:
                    array[row] = 0 if sample is None else sample[name]
            varying.add(sample)
            yield
        return varying

    def _where(self, part: BlockPart, row: int) -> str:
        return part.where(row)

    def _sample(self, part: BlockPart, row: int) -> dict[str, Any]:
        """Return a sample's leaves, of the types that the first one had."""
        fields = part.samples[row]
        if isinstance(fields, Place):
            assert self._recipe.parse is not None
            fields, data = part.stored.decoded(row, self._recipe.parse)
            part.stored.keep(row, data)
        sample = self._recipe.sample(fields)
        if not isinstance(sample, Mapping):
            raise ValueError(f"it has {type(sample).__name__}, and the first sample {', '.join(self._own)}")
        values = {str(name): value for name, value in cast("Mapping[Any, Any]", sample).items()}
        if {*values} != {*self._own}:
            raise ValueError(f"it has {', '.join(values)}, and the first sample {', '.join(self._own)}")
        return {name: leaf.checked(values[name]) for name, leaf in self._own.items()}
