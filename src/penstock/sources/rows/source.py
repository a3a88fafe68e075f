"""Samples with named columns as a source, from any of the formats that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.basics.sizes import random_seed, size_from, whole_number
from penstock.contracts import NO_JOINTS, Cursor, Joints, SourceBlock, Wanted
from penstock.errors import BadSetting
from penstock.io.cache.cache import Cache
from penstock.linux.cgroups import cores
from penstock.memory.slots import Slots
from penstock.sources.formats import field_records_of, tables_of
from penstock.sources.order import Planned, digest
from penstock.sources.rows.leaves import RaggedChoice
from penstock.sources.rows.record_data import RecordData, named_fields
from penstock.sources.rows.settings import RowSettings
from penstock.sources.sharding import Alone, rank_of
from penstock.sources.tables import Columns

if TYPE_CHECKING:
    from penstock.sources.rows.table_data import TableData

_FORMATS = "'*.parquet', '*.arrow', '*.tar', 'hf:FOLDER', 'packed:FOLDER', 'mds:FOLDER' or 'litdata:FOLDER'"


class RecordSource(Alone):
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
            if value not in known:
                raise BadSetting(f"{name}={value!r}: it must be one of {', '.join(known)}")
        Cache.check(cache)
        batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
        segments = None if segments is None else whole_number("segments", segments, 1)
        most_bytes = size_from("shuffle_bytes", shuffle_bytes)
        self.workers = max(1, int(cores())) if workers is None else whole_number("workers", workers, 1, 1024)
        settings = RowSettings(
            decode, ragged, on_bad, most_bytes, self.workers, batch_size, segments, random_seed(seed), shuffle
        )
        self._data = _data_of(data, columns, fill, filter, cache, settings)
        self._follow(self._data.order, drop_last=drop_last)
        self.shard = rank_of(shard)
        self.order = digest("records", self._order.digest, self._data.identity)
        if self._data.block_bytes:
            self.slot_bytes = self.block_bytes = self._data.block_bytes

    @property
    def description(self) -> str:
        return self._data.description

    def plans(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[Planned]:
        return self._data.plans(at, wanted, joints)

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        return self._data.load(plans, cycle)

    def work_here(self) -> None:
        self._data.work_here()

    def fill(self, slots: Slots) -> int:
        return self._data.fill(slots)

    def close(self) -> None:
        self._data.close()


def _data_of(
    data: Any, columns: Columns, fill: Any, condition: Any, cache: Cache | None, settings: RowSettings
) -> TableData | RecordData:
    if (tables := tables_of(data, cache)) is not None:
        if settings.on_bad == "skip" and settings.decode is None:
            raise BadSetting(
                'on_bad="skip": only decode= finds bad rows of tables, and there is none; nulls are for fill= or '
                "filter="
            )
        from penstock.sources.rows.table_data import TableData
        from penstock.sources.tables.files import TableFiles
        from penstock.sources.tables.opening import OpenedTables

        if columns is None and isinstance(tables, TableFiles):
            tables.check_folders(data)
        ragged = settings.ragged if settings.decode is None else "pack"
        opened = OpenedTables(tables, columns, ragged, fill, condition, settings.workers)
        return TableData(opened, settings)
    if (records := field_records_of(data)) is None:
        raise BadSetting(f"data={data!r}: give {_FORMATS}, or several files of one format")
    for name, value in (("fill", fill), ("filter", condition)):
        if value is not None:
            raise BadSetting(
                f"{name}={value!r}: only rows of tables have nulls and are filtered; use decode= here"
            )
    names = named_fields(columns, list(records.fields), records.root)
    return RecordData(records, names, settings, cache)
