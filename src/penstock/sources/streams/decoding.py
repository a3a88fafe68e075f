"""From the bytes of a log's records to rows, in workers: JSON, or a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from mmap import mmap
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import structs

from penstock.sources.rows.recipe import RowLeaf, RowRecipe, RowStep, VaryingLeaves, example_of
from penstock.sources.samples.worker import BlockPart
from penstock.sources.streams.memory import SharedRecords
from penstock.sources.workers import Steps

Columns = Callable[[Iterable[bytes]], Iterable[Sequence[Any]]]
"""From the bytes of records to the values of each leaf; raises where one is unlike the first, or bad."""
_TYPES: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": int | float}
_from_json = msgspec.json.Decoder().decode


class StreamRecipe(RowRecipe, frozen=True):
    """How records become rows: ``decode`` takes their bytes; without it they are JSON objects."""

    partition: str = "partition"  # what the log calls one
    shift: int = 48  # by how many bits a record's id has it

    def named(self, sample: Any) -> Any:
        if self.decode is not None:
            return sample
        try:
            record = _from_json(sample)
        except (msgspec.DecodeError, RecursionError) as error:  # ended, or nested too deep
            raise ValueError(f"it is no JSON ({error})") from None
        if not isinstance(record, dict):
            raise ValueError(f"it is JSON of type {type(record).__name__}, and a record is an object")
        return cast("dict[str, Any]", record)

    def where(self, id: int) -> str:
        number, offset = divmod(id, 1 << self.shift)
        return f"record {offset:,} of {self.partition} {number:,} of {self.root}"

    def step(self) -> StreamStep:
        return StreamStep(self)


def _by_types(leaves: Sequence[RowLeaf]) -> Columns:
    """Decode JSON objects straight to the types of these leaves."""

    def kind_of(leaf: RowLeaf) -> Any:
        kind = str if leaf.kind == "text" else _TYPES.get(np.dtype(leaf.dtype).kind, Any)
        for _ in range(len(leaf.shape) + (leaf.kind == "list")):
            kind = list[kind]
        return kind

    fields = {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}  # a leaf's name need not be an identifier
    try:
        record = msgspec.defstruct(
            "Record",
            [(name, kind_of(leaf)) for name, leaf in fields.items()],
            rename={name: leaf.name for name, leaf in fields.items()},
            forbid_unknown_fields=True,
            gc=False,
        )
    except ValueError:  # a name that JSON writes with a backslash
        return _by_decode(_from_json, leaves)
    decode = msgspec.json.Decoder(record).decode
    return lambda records: zip(*map(structs.astuple, map(decode, records)), strict=True)


def _by_decode(decode: Callable[[Any], Any], leaves: Sequence[RowLeaf]) -> Columns:
    """Take the values of the dicts that a user's function makes of records."""

    def columns(records: Iterable[bytes]) -> Iterator[list[Any]]:
        samples = [*map(decode, records)]
        if any(type(sample) is not dict or len(sample) != len(leaves) for sample in samples):
            raise ValueError
        return ([sample[leaf.name] for sample in samples] for leaf in leaves)

    return columns


class StreamStep(RowStep):
    """Makes blocks of records: all at once where they are as the first one, else row by row."""

    remedy = "Give decode= that makes of it what the first record was, whose types trainings and states keep"

    def __init__(self, recipe: StreamRecipe) -> None:
        super().__init__(recipe)
        self._recipe: StreamRecipe = recipe
        self._memory: mmap | None = None  # in which records lie
        own = [*self._own.values()]
        self._columns = _by_types(own) if recipe.decode is None else _by_decode(recipe.decode, own)

    def __call__(self, part: BlockPart) -> Steps[VaryingLeaves]:
        yield
        varying = self._all_at_once(part)
        return (yield from super().__call__(part)) if varying is None else varying

    def _all_at_once(self, part: BlockPart) -> VaryingLeaves | None:
        """Write all rows; None if one is unlike the first record of the stream, or cannot be decoded."""
        varying = VaryingLeaves(self._recipe.leaves)
        arrays = dict(zip(example_of(self._recipe.leaves), part.arrays, strict=True))
        shared = cast("SharedRecords", part.samples)
        self._memory = shared.mapped(self._memory)
        try:
            for leaf, values in zip(self._own.values(), self._columns(shared.lying_in(self._memory)), strict=True):
                if leaf.kind == "fixed":
                    array = np.array(values)
                    if array.dtype != leaf.dtype or array.shape[1:] != leaf.shape:
                        return None
                    arrays[leaf.name][:] = array
                else:
                    is_plain = leaf.kind == "text" and {*map(type, values)} == {str}
                    is_plain = is_plain and all(map(str.isascii, values))
                    rows = values if is_plain else map(leaf.checked, values)
                    varying.rows[varying.leaves.index(leaf)] = [*rows]
        except Exception:  # whatever a user's function raises; row by row, that is said of one record
            return None
        if self._marker is not None:
            arrays[self._marker][:] = False
        return varying

    def _where(self, part: BlockPart, row: int) -> str:
        return self._recipe.where(int(part.plan.ids[row]))
