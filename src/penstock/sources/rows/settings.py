"""How samples become rows, as ``RecordSource`` is told and the first sample shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from msgspec import structs

from penstock.errors import BadSetting, ReadFailed
from penstock.sources.rows.leaves import RaggedChoice, leaves_of, with_bad
from penstock.sources.rows.worker import RowRecipe

_TRIED = 100
"""First samples of which one must be good."""


class RowSettings(NamedTuple):
    """Arguments of ``RecordSource`` that all formats share."""

    decode: Callable[[dict[str, Any]], dict[str, Any]] | None
    ragged: RaggedChoice
    on_bad: Literal["fail", "skip"]
    shuffle_bytes: int
    workers: int
    batch_size: int
    segments: int | None
    seed: int
    shuffle: bool

    def recipe(
        self,
        samples: Iterable[tuple[str, Callable[[], Mapping[str, Any]]]],  # where each lies, and what reads it
        root: str,  # name of the data
        names: Mapping[str, str] | None = None,  # those of ``RowRecipe``, as ``parse`` is
        parse: Callable[[bytes], dict[str, Any]] | None = None,
    ) -> RowRecipe:
        """Return how samples become rows; where bad ones are skipped, the first good one shows what all are."""
        recipe = RowRecipe((), root, names or {}, parse, self.decode, self.on_bad == "skip")
        where, error = root, None
        for where, read in islice(samples, _TRIED if recipe.skips else 1):
            try:
                sample = recipe.sample(read())
            except (ValueError, ReadFailed) as failed:
                error = failed
                continue
            leaves = leaves_of(sample, self.ragged, "decode=" if self.decode else where)
            return structs.replace(recipe, leaves=with_bad(leaves, self.on_bad))
        which = f"none of the first {_TRIED} samples can" if recipe.skips else "the first sample cannot"
        raise BadSetting(f"{where}: {which} be taken: {error}") from (error and error.__cause__)
