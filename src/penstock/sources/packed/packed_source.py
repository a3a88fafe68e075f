"""A packed data set as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path

import numpy as np

from penstock.basics.sizes import size_text, whole_number
from penstock.contracts import ByteArray, Reader, SourceBlock
from penstock.errors import BadSetting, ReaderUnavailable, Untravelled
from penstock.io.advice import choose_reader
from penstock.io.cache.admission import Admitted
from penstock.io.cache.cache import Cache
from penstock.io.cache.reader import CachedReader
from penstock.io.cache.tiers import CacheCounts, Files, Tiers, memory_files
from penstock.io.files import direct_aligned
from penstock.io.measurements import saved_rows
from penstock.io.open import FILE_MECHANISMS, MAX_DEPTH, open_reader
from penstock.io.reader import host_memory
from penstock.linux.fork import close_in_children
from penstock.memory.room import aligned
from penstock.memory.slots import OwnSlots, Slots
from penstock.sources.order import Ordered, Planned, digest
from penstock.sources.packed.format import folder_at
from penstock.sources.packed.leaf_files import PackedFiles
from penstock.sources.packed.reading import Reading, Shelf
from penstock.sources.sharding import UNTRAVELLED

_AUTOMATIC = ("uring", "direct", "posix")
_DEPTH = 128
_SCRATCH_BYTES = 256 << 20


class PackedSource(Ordered):
    """Feeds what ``pack`` has written, reading rows straight into the ring.

    Args:
        folder: Folder that ``pack`` made.
        reader: Mechanism that reads rows: ``"uring"``, ``"direct"``, ``"posix"`` or ``"gpu"``; a function that
            makes a ``Reader`` into a given memory; or ``"auto"``: what ``penstock advise reader`` would take of
            uring, direct and posix (docs/how-to/read-mechanism.md). ``description`` names the one taken, and why.
        batch_size: Rows of a block.
        shuffle: Draw a new random order in each cycle; False for the order of the rows.
        drop_last: Whether trainers leave out of each epoch the rows that fill none of their batches, unless they
            say otherwise.
        segments: Parts of a cycle that are shuffled each by itself; None for one.
        seed: Random seed of the order.
        depth: Reads under way at once; None for the advised number, or 128.
        verify: Compare each row with its checksum when it is first read.
        cache: Where rows that are far away are kept; None for nowhere.
        keep_bytes: Memory for leaves whose rows are smaller than 4 KiB, which are read once and stay while they
            fit.

    Attributes:
        cached: How many rows came from the cache so far, and how many did not.

    Raises:
        BadSetting: the folder holds no packed data set, or an argument is out of range.
        PackDamaged: a file is missing, or its size is not the one that was packed.
        ReaderUnavailable: this machine cannot read so; the message says why.

    Examples:
        >>> penstock.pack(penstock.ArraySource({"id": np.arange(100)}, batch_size=20), "packed").rows
        100
        >>> source = penstock.PackedSource("packed", batch_size=50, reader="posix")
        >>> with penstock.share(lambda: source, "packed", linger=0.1) as loader:
        ...     [len(batch["id"]) for batch in loader]
        [50, 50]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        reader: str | Callable[[ByteArray], Reader] = "auto",
        batch_size: int = 128,
        shuffle: bool = True,
        drop_last: bool = False,
        segments: int | None = None,
        seed: int = 0,
        depth: int | None = None,
        verify: bool = True,
        cache: Cache | None = None,
        keep_bytes: int = 1 << 30,
    ) -> None:
        if not str(folder):
            raise BadSetting("packed: without a folder: write packed:FOLDER, as penstock pack has made it")
        keep_bytes = whole_number("keep_bytes", keep_bytes, 0)
        Cache.check(cache)
        if cache is not None:
            cache.refuse_pixels("packed rows")
        if depth is not None:
            depth = whole_number("depth", depth, 1, MAX_DEPTH)
        if not callable(reader) and reader not in ("auto", *FILE_MECHANISMS):
            raise BadSetting(f"reader={reader!r}: it must be one of auto, {', '.join(FILE_MECHANISMS)}")
        self._folder = folder_at(folder)
        self._cache, self._verify = cache, verify
        self._memory: list[FileIO] = []  # of the cache
        self.cached = CacheCounts()
        self._files = PackedFiles(self._folder, keep_bytes=keep_bytes, verify=verify, runs=cache is None)
        self._visit(self._files.manifest.rows, batch_size, segments, seed, shuffle=shuffle, drop_last=drop_last)
        self.order = digest("packed", self._order.digest)
        rows = min(self.batch_size, self.samples)
        self.slot_bytes = self._files.slot_bytes(rows)
        self.block_bytes = sum(aligned(size * rows) for size in self._files.row_bytes)
        self._depth = _DEPTH if depth is None else depth
        if callable(reader):
            self._make_reader, self._reads_by = reader, "a reader of yours"
        elif reader == "auto":
            self._reads_by = self._advised(depth)
        else:
            self._make_reader, self._reads_by = partial(open_reader, reader, depth=self._depth), reader
            self._try_reader()
        self._is_open = False
        self._slots: Slots | None = None
        self._ring: Shelf | None = None
        self._scratch: Shelf | None = None
        extents = sum(len(self._files.runs(i, np.arange(rows))[0]) for i in self._files.read)
        if shuffle:
            extents = len(self._files.read) * batch_size
        # One block is being given, one is being finished, and others are being read.
        self._ahead = 2 + (-(-self._depth // extents) if extents else 0)

    def __getstate__(self) -> object:
        if self._ring is not None or self._scratch is not None:
            raise Untravelled(UNTRAVELLED.format(self._folder))
        return object.__getstate__(self)

    @property
    def description(self) -> str:
        manifest = self._files.manifest
        size = f"packed {self._folder.name}: {manifest.rows:,} samples, {size_text(manifest.nbytes)}"
        if not self._files.read:
            return f"{size}, in memory"
        shelf = self._ring or self._scratch
        path_taken = f": {shelf.reader.path_taken}" if shelf is not None and shelf.reader is not None else ""
        seen = self.cached.hits + self.cached.missed
        hits = f"; {self.cached.hits / seen:.0%} of {seen:,} reads came from the cache" if seen else ""
        return f"{size}, {self._reads_by}{path_taken}{hits}"

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        self._files.load()
        self._files.check_unchanged()
        if self._slots is None:
            shelf = self._own_shelf()
        else:
            shelf = self._ring = self._ring or self._shelf(self._slots.ring_memory, self._slots, gives_slots=True)
        if self._is_open:
            raise BadSetting(f"a pass over {self._folder} is still open: close it before the next")
        self._is_open = True
        try:
            yield from Reading(self._files, plans, shelf, self._own_shelf).blocks()
        finally:
            self._is_open = False

    def fill(self, slots: Slots) -> int:
        self._slots = slots
        return self._ahead

    def close(self) -> None:
        for shelf in (self._ring, self._scratch):
            if shelf is not None:
                shelf.close()
        self._ring = self._scratch = None
        while self._memory:
            self._memory.pop().close()

    def _own_shelf(self) -> Shelf:
        """Return memory outside the ring, from which blocks are copied."""
        if self._scratch is None:
            room = aligned(self.slot_bytes)
            count = 1 if self._slots is not None else max(1, min(self._ahead, _SCRATCH_BYTES // room))
            memory = host_memory(count * room)
            self._scratch = self._shelf(memory, OwnSlots(count, room), gives_slots=False)
        return self._scratch

    def _shelf(self, memory: ByteArray, places: Slots | OwnSlots, *, gives_slots: bool) -> Shelf:
        """Make a shelf whose reader has the files open."""
        if not self._files.read:
            return Shelf(memory, places, None, (), gives_slots=gives_slots)
        reader = self._cached(self._make_reader(memory), memory)
        try:
            files = [reader.open(path).file for path in self._files.paths_read]
        except BaseException:
            reader.close()
            raise
        return Shelf(memory, places, reader, files, gives_slots=gives_slots)

    def _cached(self, reader: Reader, memory: ByteArray) -> Reader:
        """Return a reader that looks into the cache first, if there is one."""
        if self._cache is None:
            return reader
        if self._cache.memory_bytes and not self._memory:
            self._memory = list(memory_files())
            for file in self._memory:
                close_in_children(file)
        files = Files(*(file.fileno() for file in self._memory)) if self._memory else None
        layout = self._cache.layout(str(self._folder), "rows" if self._verify else "unverified", files)
        tiers = Tiers(layout)
        tiers.counts = self.cached
        row_bytes = sum(direct_aligned(self._files.row_bytes[leaf]) for leaf in self._files.read)
        return CachedReader(reader, memory, tiers, Admitted.of(layout, self.samples, row_bytes))

    def _advised(self, depth: int | None) -> str:
        """Take the best reader that works here and can read the files; return its name, and why it was taken.

        Raises:
            ReaderUnavailable: no reader works; the message says why.
        """
        rows = saved_rows(self._folder)
        sample_bytes = max(self._files.row_bytes)
        works: list[str] = list(_AUTOMATIC)
        refusals: list[str] = []
        while works:
            best = choose_reader(rows, sample_bytes, works=works)
            self._depth = best.depth if depth is None else depth
            self._make_reader = partial(open_reader, best.mech, depth=self._depth, threads=best.threads)
            try:
                self._try_reader()
            except ReaderUnavailable as error:
                refusals.append(str(error))
                works.remove(best.mech)
            else:
                return f"{best.mech} (auto: {'; '.join([*refusals, best.why])})"
        raise ReaderUnavailable("; ".join(refusals))

    def _try_reader(self) -> None:
        """Raise ReaderUnavailable if the reader does not work here, or cannot read the files."""
        if self._files.read:
            reader = self._make_reader(np.zeros(1, np.uint8))
            try:
                for path in self._files.paths_read:
                    reader.open(path)
            finally:
                reader.close()
