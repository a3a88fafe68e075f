"""How samples become rows, as ``RecordSource`` is told and the first sample shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import structs

from penstock.errors import BadSetting
from penstock.sources.rows.leaves import RaggedChoice, leaves_of, with_bad
from penstock.sources.rows.worker import RowRecipe


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
        first: Mapping[str, Any],
        where: str,
        root: str,
        names: Mapping[str, str] | None = None,
        parse: Callable[[bytes], dict[str, Any]] | None = None,
    ) -> RowRecipe:
        """Return how samples become rows.

        Args:
            first: The fields of the first sample.
            where: Where it lies, for errors.
            root: Name of the data.
            names: Those of ``RowRecipe``, as ``parse`` is.

        Raises:
            BadSetting: it cannot be taken.
        """
        recipe = RowRecipe((), root, names or {}, parse, self.decode, self.on_bad == "skip")
        try:
            sample = recipe.sample(first)
        except ValueError as error:
            raise BadSetting(f"{where}: the first sample cannot be taken: {error}") from error.__cause__
        leaves = leaves_of(sample, self.ragged, "decode=" if self.decode else where)
        return structs.replace(recipe, leaves=with_bad(leaves, self.on_bad))
