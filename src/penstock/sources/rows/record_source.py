"""Samples with named columns as a source, from any of the formats that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import structs

from penstock.basics.sizes import check_one_of, whole_number
from penstock.contracts import FieldRecords, Tables
from penstock.errors import BadSetting
from penstock.io.cache.cache import Cache
from penstock.linux.cgroups import cores
from penstock.sources.formats import field_records_of, tables_of
from penstock.sources.order import digest
from penstock.sources.records.cached import SampleCaching
from penstock.sources.records.files import read
from penstock.sources.rows.recipe import RaggedChoice, RowRecipe, example_of
from penstock.sources.samples.blocks import SampleBlocks, SampleData
from penstock.sources.samples.sample_source import OrderSettings, RecordSamples, SampleSource
from penstock.sources.tables import Columns

if TYPE_CHECKING:
    from penstock.sources.samples.tables import TableRows, TableSamples
    from penstock.sources.tables.opening import OpenedTables

_FORMATS = "'*.parquet', '*.arrow', '*.tar', 'hf:FOLDER', 'packed:FOLDER', 'mds:FOLDER' or 'litdata:FOLDER'"


class RecordSource(SampleSource):
    """Feeds samples with named columns: rows of Parquet and Arrow files, samples of MDS, LitData and WebDataset.

    A batch is a dict of arrays, one row a sample; texts and bytes are lists. Columns that hold numbers, dates or
    booleans are arrays of their type; a struct gives a column for each of its fields (``struct.field``).

    Rows of tables are shuffled all together if they fit ``shuffle_bytes``. Else row groups come in a new order in
    each cycle, as many at a time as fit half of it, and the rows of each shuffle window are shuffled together.
    ``description`` says of how many of the row groups a batch has rows.

    Args:
        data: Parquet files (``"x/*.parquet"``), Arrow files, what Hugging Face's ``save_to_disk`` wrote
            (``"hf:FOLDER"``), MosaicML's MDS (``"mds:FOLDER"``), LitData's chunks (``"litdata:FOLDER"``),
            WebDataset's shards (``"*.tar"``) or what ``pack`` wrote (``"packed:FOLDER"``); or several files. All
            but the last may lie in an object store (``"s3://bucket/*.parquet"``).
        columns: Names of the columns that are read; or a dict from names in the batch to a column, or to several
            columns of numbers, which become one array of shape ``(rows, columns)`` in the type that NumPy gives
            them together: of int64 beside float32, float64. None for all.
        decode: Function from a sample, a dict, to the dict that the batch is made of; called in worker processes.
        ragged: What becomes of lists of numbers: ``"refuse"`` if they must be equally long; ``"pad"`` for an array
            as wide as the longest of the batch, filled with 0; ``"pack"`` for a ``RaggedRows``.
        fill: What stands in place of nulls, in all columns or by column; None if nulls are an error.
        filter: Which rows of tables are read: ``"label < 10"``, or an expression of pyarrow's.
        shuffle_bytes: Memory in which rows of tables are shuffled. Each worker that reads takes up to four times a
            row group's bytes besides.
        cache: Where samples that are far away are kept; None for nowhere.
        on_bad: ``"fail"`` if a sample that cannot be read or decoded ends the feed; ``"skip"`` for a row of zeros
            and empty texts. Batches then have a column ``"bad"``, which is true for those.
        workers: Processes that decode, or threads that read tables; None for one on each core.
        batch_size: Rows of a block.
        shuffle: Draw a new random order in each cycle; False for the order of the data.
        drop_last: Whether trainers leave out of each epoch the rows that fill none of their batches, unless they
            say otherwise.
        segments: Parts of a cycle that are shuffled each by itself; None for one.
        seed: Random seed of the order.
        shard: ``(rank, world)`` of a data-parallel run that reads this source alone, without a feed; ``(0, 1)`` to
            give each rank all of it.

    Attributes:
        workers: Processes or threads.

    Raises:
        BadSetting: there are no such data or columns, or an argument is out of range.
        PackageMissing: pyarrow is not installed, and tables are read; the message has the command.

    Examples:
        >>> source = penstock.RecordSource("table/*.parquet", columns=["x", "label"], batch_size=4)
        >>> [(batch["x"].shape, batch["label"].dtype) for batch in source]
        [((4,), dtype('int64')), ((4,), dtype('int64'))]
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path],
        *,
        columns: Columns = None,
        decode: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        ragged: RaggedChoice = "refuse",
        fill: Any = None,
        filter: str | Any = None,  # noqa: A002 - as in pyarrow
        shuffle_bytes: int | str = "1GiB",
        cache: Cache | None = None,
        on_bad: Literal["fail", "skip"] = "fail",
        workers: int | None = None,
        batch_size: int = 128,
        shuffle: bool = True,
        drop_last: bool = False,
        segments: int | None = None,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
    ) -> None:
        for name, value, known in (
            ("ragged", ragged, ("refuse", "pad", "pack")),
            ("on_bad", on_bad, ("fail", "skip")),
        ):
            check_one_of(name, value, known)
        Cache.check(cache)
        self.workers = max(1, int(cores())) if workers is None else whole_number("workers", workers, 1, 1024)
        settings = OrderSettings.checked(shuffle_bytes, batch_size, segments, seed, shuffle)
        recipe = RowRecipe(decode, ragged, skips=on_bad == "skip")
        self._caching = SampleCaching()
        if (tables := tables_of(data, cache)) is not None:
            opened = _opened_tables(tables, data, columns, fill, filter, recipe, self.workers)
            samples, blocks, identity = _rows_of(opened, recipe, settings, self.workers)
        elif (records := field_records_of(data)) is not None:
            for name, value in (("fill", fill), ("filter", filter)):
                if value is not None:
                    raise BadSetting(
                        f"{name}={value!r}: only rows of tables have nulls and are filtered; use decode= here"
                    )
            samples = RecordSamples(records, settings.order(len(records.names)))
            identity = (list(records.names), list(records.parts))  # what decides which samples there are
            recipe = _recipe_of(records, columns, recipe)
            if cache is not None:
                cache.refuse_pixels("samples")
                self._caching = SampleCaching(cache, records)
            blocks = _blocks_of(samples, recipe, self.workers, self._caching)
        else:
            raise BadSetting(f"data={data!r}: give {_FORMATS}, or several files of one format")
        self._open(samples, blocks, drop_last=drop_last, shard=shard)
        self.order = digest("records", self._order.digest, identity)

    @property
    def description(self) -> str:
        skipped = f"{self._blocks.skipped:,} bad ones were skipped" if self._blocks.skipped else ""
        return "; ".join(filter(None, (self._data.description, self._caching.description, skipped)))


def _blocks_of(data: SampleData, recipe: RowRecipe, workers: int, caching: SampleCaching) -> SampleBlocks:
    return SampleBlocks(data, recipe, example_of(recipe.leaves), workers, caching)


def _opened_tables(
    tables: Tables, named: Any, columns: Columns, fill: Any, condition: Any, recipe: RowRecipe, workers: int
) -> OpenedTables:
    if recipe.skips and recipe.decode is None:
        raise BadSetting(
            'on_bad="skip": only decode= finds bad rows of tables, and there is none; nulls are for fill= or '
            "filter="
        )
    from penstock.sources.tables.opening import OpenedTables
    from penstock.sources.tables.table_files import TableFiles

    if columns is None and isinstance(tables, TableFiles):
        tables.check_folders(named)
    ragged = recipe.ragged if recipe.decode is None else "pack"
    return OpenedTables(tables, columns, ragged, fill, condition, workers)


def _rows_of(
    opened: OpenedTables, recipe: RowRecipe, settings: OrderSettings, workers: int
) -> tuple[TableSamples, SampleBlocks | TableRows, Any]:
    """Return rows of tables, what makes their blocks, and what decides which rows there are."""
    from penstock.sources.samples.tables import TableRows, TableSamples, order_of, warn_of_sorted

    give = "padded" if recipe.ragged == "pad" else "ragged"
    data = TableSamples(opened, order_of(opened, settings), workers, give)
    if recipe.decode is None:
        blocks = TableRows(data)
    else:
        try:
            recipe = recipe.of_first(data.first(), data.root)
        finally:
            data.close()
        blocks = _blocks_of(data, recipe, workers, SampleCaching())
    warn_of_sorted(opened, data.order)
    identity = opened.reading.tables.parts, opened.groups.tolist(), opened.rows.tolist()
    return data, blocks, (*identity, str(opened.reading.condition))


def _recipe_of(records: FieldRecords, columns: Columns, recipe: RowRecipe) -> RowRecipe:
    names = _named_fields(columns, list(records.fields), records.root)
    parse = records.parse.only(names.values()) if names else records.parse
    some = (records.places(np.array([i]))[0] for i in range(len(records.names)))
    first = ((place.where, lambda place=place: parse(read(place))) for place in some)
    return structs.replace(recipe, names=names, parse=parse).of_first(first, records.root)


def _named_fields(columns: Any, fields: Sequence[str], where: str) -> dict[str, str]:
    """Return fields by the names that they get."""
    if columns is None:
        return {}
    listed = [columns] if isinstance(columns, str) else columns
    wanted: dict[str, Any] = {**columns} if isinstance(columns, Mapping) else {name: name for name in listed}
    for name, field in wanted.items():
        if not isinstance(field, str):
            raise BadSetting(
                f"columns[{name!r}]: only columns of tables are put together; use decode= for samples"
            )
        if field not in fields:
            raise BadSetting(f"{where} has no column {field!r}; it has {', '.join(fields)}")
    if not wanted:
        raise BadSetting(f"{where}: columns={columns!r} names no column; it has {', '.join(fields)}")
    return wanted
