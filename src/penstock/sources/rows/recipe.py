"""How samples become rows: their fields, a user's function, and leaves as the first sample has them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, cast

import msgspec
from msgspec import structs

from penstock.contracts import Place, Tree
from penstock.errors import BadSetting, ReadFailed
from penstock.sources.rows.leaves import BAD, RaggedChoice, RowLeaf, VaryingLeaves, example_of, leaves_of, with_bad
from penstock.sources.samples.worker import Part
from penstock.sources.workers import Steps

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

    def whole(self, found: VaryingLeaves, tree: Tree) -> Tree:
        varying = dict(found.given(self.ragged))
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

    def sample(self, fields: Mapping[str, Any]) -> Any:
        """Return a sample's leaves."""
        named = {name: fields[field] for name, field in self.names.items()} if self.names else dict(fields)
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

    def __init__(self, recipe: RowRecipe) -> None:
        self._recipe = recipe
        self._own = {leaf.name: leaf for leaf in recipe.leaves if leaf.name != BAD}

    def __call__(self, part: Part) -> Steps[VaryingLeaves]:
        """Write the leaves of a part, a sample at a step; return those that differ in length."""
        arrays = dict(zip(example_of(self._recipe.leaves), part.arrays, strict=True))
        varying = VaryingLeaves(self._recipe.leaves)
        yield
        for row in range(len(part.samples)):
            try:
                sample = self._sample(part, row)
            except (ValueError, ReadFailed) as error:
                sample, why = None, f"{part.where(row)}: {error}"
                part.skip(error, why, f"{why}: it is skipped", "Mend it")
            for name, array in arrays.items():
                if name == BAD:
                    array[row] = sample is None
                else:
                    array[row] = 0 if sample is None else sample[name]
            varying.add(sample)
            yield
        return varying

    def _sample(self, part: Part, row: int) -> dict[str, Any]:
        """Return a sample's leaves, of the types that the first one had."""
        fields = part.samples[row]
        if isinstance(fields, Place):
            assert self._recipe.parse is not None
            fields, data = part.stored.decoded(row, self._recipe.parse)
            part.stored.keep(row, data)
        sample = self._recipe.sample(fields)
        is_dict = isinstance(sample, Mapping)
        names = [*map(str, cast("Mapping[Any, Any]", sample))] if is_dict else [type(sample).__name__]
        if not is_dict or {*names} != {*self._own}:
            raise ValueError(f"it has {', '.join(names)}, and the first sample {', '.join(self._own)}")
        return {name: leaf.checked(sample[name]) for name, leaf in self._own.items()}
