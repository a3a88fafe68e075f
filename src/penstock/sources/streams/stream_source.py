"""A log as a source: a cycle is a stretch of it, and every trainer gets each of its records once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from typing import Any, Literal, cast

import numpy as np
from msgspec import structs

from penstock.basics.sizes import check_one_of, random_seed, seconds_from, whole_number
from penstock.contracts import (
    Beginning,
    Bound,
    Cursor,
    CycleBegin,
    Cycles,
    Ids,
    Joints,
    Log,
    LogRecords,
    SourceBlock,
    Wanted,
)
from penstock.errors import BadSetting, StreamTruncated
from penstock.linux.cgroups import cores
from penstock.sources.formats import what_opens
from penstock.sources.order import Planned, digest, permutation
from penstock.sources.records.cached import SampleCaching
from penstock.sources.rows.recipe import BAD, RaggedChoice, RowLeaf, example_of, with_bad
from penstock.sources.samples.blocks import SampleBlocks, SampleData
from penstock.sources.streams.bounds import in_words
from penstock.sources.streams.decoding import StreamRecipe
from penstock.sources.streams.gathering import LOOK_S, Gathered, Gatherer
from penstock.sources.streams.memory import CycleMemory, SharedRecords
from penstock.sources.streams.status import StreamReport

_LOGS = {
    "watch:": ("penstock.sources.streams.folder:FolderLog", "file", 32),
    "kafka://": ("penstock.sources.streams.kafka:KafkaLog", "partition", 48),
}
"""By prefix: what reads a log, what it calls a partition, and by how many bits a record's id has that."""
_STREAM = 3
"""Separates this use of a feed's seed from others (sources.order)."""
_NOTHING = Gathered(Bound(), Bound(), np.empty(0, np.int64), [])


class StreamSource:
    """Feeds records that arrive all the time: of a folder that grows, or of a Kafka topic.

    A cycle of the feed, an epoch of each trainer, is a stretch of the log: every record of it once, shuffled. It
    is given once it has closed, and only then: latency is a cycle or ``close_after``. Where cycles begin lies in
    each trainer's ``state_dict()``, which goes on anywhere with the next record.

    A batch is a dict of arrays, one row a record, as a ``RecordSource`` makes it.

    Args:
        log: ``"watch:FOLDER"``, to which files are added by renaming them in, under names that sort behind: of
            ``*.jsonl`` each line is a record, as it grows, and other files are a record each. Or
            ``"kafka://BROKER/TOPIC"``.
        decode: Function from a record's bytes to a dict of its values, called in worker processes; ``bytes`` for
            the records as they are, and batches that are lists of them. None if they are JSON objects.
        cycle: Records of a cycle; one that has 1 GiB of them closes, too.
        close_after: How long after its first record a cycle closes that has fewer, such as ``"10s"``.
        start: Where a stream begins that nobody has read: with the earliest record that is there, or behind the
            latest.
        on_loss: ``"fail"`` if a record that was to be read and is gone ends the feed; ``"skip"`` to count it.
        on_bad: ``"fail"`` if a record that cannot be decoded ends the feed; ``"skip"`` for a row of zeros and
            empty texts. Batches then have a column ``"bad"``, which is true for those.
        ragged: What becomes of lists of numbers, as in ``RecordSource``.
        workers: Processes that decode; None for one on each core.
        batch_size: Rows of a block.
        shuffle: Draw a random order in each cycle; False for that of (partition, offset).
        seed: Random seed of the order.

    Raises:
        BadSetting: there is no such folder, or an argument is out of range.
        PackageMissing: Kafka needs ``penstock[kafka]``.

    Examples:
        >>> Path("clicks").mkdir()
        >>> lines = [f'{{"user": {user}, "clicked": true}}' for user in range(6)]
        >>> _ = Path("clicks/.today").write_text("\\n".join([*lines, ""]))
        >>> _ = Path("clicks/.today").rename("clicks/today.jsonl")
        >>> make = lambda: penstock.StreamSource("watch:clicks", cycle=6, batch_size=4)
        >>> with penstock.share(make, "clicks", linger=0.1) as loader:
        ...     [batch["user"].shape for batch in loader]
        [(4,), (2,)]
    """

    streams = True
    seekable = True
    segment_starts = (0,)
    samples: int | None = None
    batches: int | None = None

    def __init__(
        self,
        log: str,
        decode: Callable[[bytes], Any] | None = None,
        *,
        cycle: int = 100_000,
        close_after: str | float = "10s",
        start: Beginning = "earliest",
        on_loss: Literal["fail", "skip"] = "fail",
        on_bad: Literal["fail", "skip"] = "fail",
        ragged: RaggedChoice = "refuse",
        workers: int | None = None,
        batch_size: int = 128,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        for name, value, known in (
            ("start", start, ("earliest", "latest")),
            ("on_loss", on_loss, ("fail", "skip")),
            ("on_bad", on_bad, ("fail", "skip")),
            ("ragged", ragged, ("refuse", "pad", "pack")),
        ):
            check_one_of(name, value, known)
        if decode is not None and not callable(decode):  # pyright: ignore[reportUnnecessaryComparison]
            raise BadSetting(f"decode={decode!r}: it is a function from a record's bytes, or None for JSON")
        self._most = whole_number("cycle", cycle, 1, 2**31 - 1)
        close_after_s = seconds_from("close_after", str(close_after))
        self._start: Beginning = start
        self._skips = on_loss == "skip"
        self.workers = max(1, int(cores())) if workers is None else whole_number("workers", workers, 1, 1024)
        self.batch_size: int | None = whole_number("batch_size", batch_size, 1, 2**31 - 1)
        prefix = next((prefix for prefix in _LOGS if isinstance(log, str) and log.startswith(prefix)), "")  # pyright: ignore[reportUnnecessaryIsInstance]
        if not prefix or log == prefix:
            raise BadSetting(f"log={log!r}: give 'watch:FOLDER' or 'kafka://BROKER/TOPIC'")
        place, word, shift = _LOGS[prefix]
        self._log: Log = what_opens(place)(log.removeprefix(prefix), skips=self._skips)
        self._raw = decode is bytes
        self._data = StreamSamples(self._log, batch_size, random_seed(seed), shuffle=shuffle)
        self._recipe = StreamRecipe(decode, ragged, on_bad == "skip", self._log.name, partition=word, shift=shift)
        self._blocks: SampleBlocks | None = None
        self._gatherer = Gatherer(self._log, self._most, close_after_s)
        self._lost = 0  # records that a cycle had when it closed, and has no more
        self.order = digest("stream", prefix, self._log.name, seed % 2**64 if shuffle else None)

    @property
    def description(self) -> str:
        return self._log.description

    @property
    def report(self) -> StreamReport:
        """How far the stream has been read."""
        bad = 0 if self._blocks is None else self._blocks.skipped
        lost = self._log.lost + self._lost
        counts = self._gatherer.count, self._most, lost, bad
        return StreamReport(*self._gatherer.lag, self._recipe.partition, *counts, self._log.trouble)

    def open(self, at: Cursor, cycles: Cycles) -> Iterator[SourceBlock]:
        """Yield the rest of a cycle, once it has closed, from the block on that holds a place."""
        self._data.current = self._cycle(at, cycles)
        plans = self._data.plans(at, None, None)
        if self._raw:
            yield from (plan.block(self._data.samples(plan)[0]) for plan in plans)
        elif self._blocks is not None:
            yield from self._blocks.blocks(plans, at.cycle)

    def close(self) -> None:
        """End the workers, and read no more; a later ``open`` begins again."""
        self._gatherer.stop()
        self._log.close()
        if self._blocks is not None:
            self._blocks.close()
        self._data.close()

    def _cycle(self, at: Cursor, cycles: Cycles) -> Gathered:
        """Return the records of a cycle; its end is fixed, and known to all who read."""
        found, end, count = self._found(at, cycles)
        if self._blocks is None and len(found.ids) and not self._raw:
            self._blocks = self._workers_for(found, cycles)
        cycles.fix(CycleBegin(at.cycle + 1, end, count))
        return found

    def _found(self, at: Cursor, cycles: Cycles) -> tuple[Gathered, Bound, int]:
        """Return the records of a cycle, where it ends, and how many records it has, or had."""

        def look() -> None:
            cycles.check_needed(at.cycle, f"{self._gatherer.count:,} of {self._most:,} records")

        begin = cycles.begin(at.cycle)
        while begin is None:
            look()
            if (begin := self._log.begin(self._start)) is not None:
                cycles.fix(CycleBegin(at.cycle, begin))
            else:
                time.sleep(LOOK_S)
        if (ahead := cycles.ahead(at.cycle)) is not None:
            end, number, count = ahead
            if count >= 0:
                if (begin, end) == (kept := self._data.current)[:2]:
                    return kept, end, count
                return self._again(at, begin, end, cycles, count), end, count
            found = self._again(at, begin, self._log.divide(begin, end, number), cycles)
        else:
            self._data.forget()
            found = self._data.current = self._gatherer.take(begin, look)
        return found, found.end, len(found.ids)

    def _again(self, at: Cursor, begin: Bound, end: Bound, cycles: Cycles, count: int | None = None) -> Gathered:
        """Read what lies between two bounds; of a cycle that was read before, ``count`` records."""
        self._data.forget()
        lost = self._log.lost

        def parts() -> Iterator[LogRecords]:
            there = 0
            for part in self._log.between(begin, end):
                there += len(part.ids)
                cycles.check_needed(at.cycle, f"{there:,} records read again")
                yield part

        found = self._data.current = Gathered.of(begin, end, parts())
        there = len(found.ids)
        if count is None or there == count:
            return found
        if there < count and self._skips and not at.sample:
            self._lost += max(0, count - there - (self._log.lost - lost))
            return found
        self._data.forget()
        raise StreamTruncated(
            f"cycle {at.cycle} of {self._log.name} had {count:,} records when it closed, and now {there:,} lie "
            f"between {in_words(found.begin)} and {in_words(found.end)}: whoever writes the log has changed it "
            "(compaction and retention do). Trainers amid this cycle cannot go on: begin with a new Loader"
        )

    def _workers_for(self, found: Gathered, cycles: Cycles) -> SampleBlocks:
        """Return what makes blocks; the leaves are those that trainers know, or else those of the first record."""
        first = ((self._recipe.where(id), data) for id, data in self._data.first(found))
        recipe = self._recipe.of_first(cast("Any", first), self._log.name)
        own = [leaf for leaf in recipe.leaves if leaf.name != BAD]
        known = [RowLeaf(*cast("Any", column)) for column in cycles.columns]
        if [_but_its_type(leaf) for leaf in own] == [_but_its_type(leaf) for leaf in known]:
            recipe = structs.replace(recipe, leaves=with_bad(known, skips=recipe.skips))
        else:  # nobody has read, or decode= is another by now
            cycles.columns = tuple(cast("Any", tuple(leaf)) for leaf in own)
        return SampleBlocks(self._data, recipe, example_of(recipe.leaves), self.workers, SampleCaching())


class StreamSamples(SampleData):
    """The records of one cycle at a time."""

    def __init__(self, log: Log, batch_size: int, seed: int, *, shuffle: bool) -> None:
        self.root, self._log = log.name, log
        self._batch_size, self._seed, self._shuffles = batch_size, seed % 2**64, shuffle
        self.current = _NOTHING  # the cycle that is given
        self._memory: CycleMemory | None = None  # where workers see its records, if there are any

    @property
    def block_rows(self) -> int:
        return self._batch_size

    @property
    def description(self) -> str:
        return self._log.description

    def plans(self, at: Cursor, wanted: Wanted | None, joints: Joints | None) -> Iterator[Planned]:
        count, size = len(self.current.ids), self._batch_size
        words = self._seed, _STREAM, at.cycle
        order: Ids = permutation(count, *words) if self._shuffles else np.arange(count)
        for first in range(at.sample // size * size if at.sample < count else count, count, size):
            rows = order[first : first + size]
            yield Planned(first, len(rows), self.current.ids[rows], None, rows)

    def begin(self) -> None:
        """Let workers see the records of a cycle that has been set."""
        if self._memory is not None and not isinstance(self.current.data, SharedRecords):
            self.current = self.current._replace(data=self._memory.filled(self.current.data))

    def open(self) -> list[FileIO]:
        if self._memory is None:
            self._memory = CycleMemory()
            self.begin()
        return [FileIO(self._memory.file.fileno(), closefd=False)]  # closed with this, not with the workers

    def forget(self) -> None:
        """Free the records of the cycle that was given."""
        self.current = _NOTHING
        if self._memory is not None:
            self._memory.filled([])

    def close(self) -> None:
        self.current, self._memory = _NOTHING, None

    def samples(self, plan: Planned) -> tuple[Sequence[bytes], Any]:
        if isinstance(data := self.current.data, SharedRecords):
            return data.picked(plan.way), None
        places: list[int] = plan.way.tolist()
        return [data[i] for i in places], None

    def first(self, found: Gathered) -> Iterator[tuple[int, Callable[[], bytes]]]:
        """Yield the first records of a cycle, each as its id and what reads it."""
        for id, data in zip(map(int, found.ids), found.data, strict=True):
            yield id, lambda data=data: data


def _but_its_type(leaf: RowLeaf) -> tuple[str, str, tuple[int, ...]]:
    return leaf.name, leaf.kind, leaf.shape
