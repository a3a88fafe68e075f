"""From the bytes of a log's records to rows, in workers: JSON, or a user's function."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np

from penstock.errors import ReadFailed
from penstock.sources.rows.recipe import RowRecipe, RowStep, VaryingLeaves, example_of
from penstock.sources.samples.worker import BlockPart
from penstock.sources.workers import Steps

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
        except msgspec.DecodeError as error:
            raise ValueError(f"it is no JSON ({error}): give decode=, a function from its bytes") from None
        if not isinstance(record, dict):
            raise ValueError(f"it is JSON of type {type(record).__name__}, and a record is an object")
        return cast("dict[str, Any]", record)

    def step(self) -> StreamStep:
        return StreamStep(self)


class StreamStep(RowStep):
    """Makes blocks of records: all at once where they are as the first one, else row by row."""

    remedy = "Give decode= that takes such records, too"

    def __init__(self, recipe: StreamRecipe) -> None:
        super().__init__(recipe)
        self._records = recipe

    def __call__(self, part: BlockPart) -> Steps[VaryingLeaves]:
        yield
        varying = self._all_at_once(part)
        return (yield from super().__call__(part)) if varying is None else varying

    def _all_at_once(self, part: BlockPart) -> VaryingLeaves | None:
        """Write all rows; None if one is unlike the first record of the stream."""
        varying = VaryingLeaves(self._records.leaves)
        try:
            samples = [self._records.sample(record) for record in part.samples]
            if any(type(sample) is not dict or len(sample) != len(self._own) for sample in samples):
                return None
            arrays = dict(zip(example_of(self._records.leaves), part.arrays, strict=True))
            for name, leaf in self._own.items():
                values: list[Any] = [sample[name] for sample in samples]
                if leaf.kind == "fixed":
                    array = np.array(values)
                    if array.dtype != leaf.dtype or array.shape[1:] != leaf.shape:
                        return None
                    arrays[name][:] = array
                else:
                    varying.rows[varying.leaves.index(leaf)] = [leaf.checked(value) for value in values]
            if self._marker is not None:
                arrays[self._marker][:] = False
        except (KeyError, ValueError, OverflowError, ReadFailed):
            return None
        return varying

    def _where(self, part: BlockPart, row: int) -> str:
        number, offset = divmod(int(part.plan.ids[row]), 1 << self._records.shift)
        return f"record {offset:,} of {self._records.partition} {number:,} of {self._records.root}"
