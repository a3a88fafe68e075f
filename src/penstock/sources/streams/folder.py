"""A folder that grows, as a log: files come in the order of their names, and the newest may still grow.

A file's number says how many were begun before it. Two bounds give the numbers of all files between them again:
what was finished there was begun in the order of names. A file that was not, as it came late, or that was changed,
stays among the parts of bounds with its number when it is finished; the newest 64 such files do.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from errno import ENOENT

from penstock.contracts import Beginning, Bound, Lag, LogRecords, Part
from penstock.errors import BadSetting, SourceError, StreamTruncated
from penstock.sources.streams.files import ALL, PIECE_BYTES, FolderFiles, counts, has_lines, is_text, is_whole

_NEWEST = 64
_LOOK_S, _WATCH_S = 1.0, 10.0
"""How often a reader that is busy looks for new files, and any reader at the sizes of finished ones."""
_LOSSES = (StreamTruncated, OSError)


@dataclass(slots=True)
class _File:
    """A file that may grow, and how far it has been read."""

    part: Part
    inode: int = 0  # 0 before it was looked at
    seen: int = -1  # size at which no whole line was left
    lost: bool = False  # it was changed, and is passed over


class FolderLog:
    """The files of a folder: each line of a ``*.jsonl`` is a record, and each other file is one.

    Attributes and methods are those of ``Log``. With ``skips``, losses are counted and passed over.
    """

    trouble = ""

    def __init__(self, folder: str, *, skips: bool) -> None:
        self._folder = os.path.abspath(os.path.expanduser(folder))
        if not os.path.isdir(self._folder):
            there = "that is a file" if os.path.isfile(self._folder) else f"there is no folder {self._folder}"
            raise BadSetting(f"watch:{folder}: {there}; make a folder, and rename files into it")
        self._files = FolderFiles(self._folder)
        self.name = os.path.basename(self._folder)
        self.description = f"records of files in {self._folder}"
        self.lost = 0
        self._skips = skips
        self._lock = threading.Lock()
        self._names: list[str] = []  # as listed; replaced when they change
        self._listed = (-1, False)  # when the folder had changed last, and whether that was long ago
        self._lines = self._line_bytes = 0  # that were read
        self._newest_s = 0.0  # when the file of the newest record was written
        self._known: dict[str, int] = {}  # sizes of finished files, -1 while unknown
        self._watch_at = self._look_at = 0.0
        self._room = self._room_bytes = 0  # what the present call may still read
        self._restore(Bound())

    def begin(self, start: Beginning) -> Bound:
        names = [] if start == "earliest" else self._list()
        first = max(0, len(names) - _NEWEST)
        parts = [self._walked(Part(i, 0, names[i])) for i in range(first, len(names))]
        return Bound(len(names), names[first - 1] if first else "", tuple(parts))

    def seek(self, to: Bound) -> None:
        if to != self.at:
            self._restore(to)
            self._look()

    def read(self, most: int, wait_s: float) -> LogRecords:
        until, looked = time.monotonic() + wait_s, False
        while True:
            if looked or time.monotonic() >= self._look_at:
                self._look()
            found = self._take(most)
            left_s = until - time.monotonic()
            if found.ids or (looked and left_s <= 0):
                parts = sorted([*self._late, *(file.part for file in self._growing.values())])
                self.at = Bound(self._numbers, self._finished, tuple(parts))
                return found
            if looked:
                time.sleep(min(0.1, left_s))
            looked = True

    def between(self, begin: Bound, end: Bound) -> Iterator[LogRecords]:
        for part, last in self._spans(begin, end):
            place = part
            try:
                for data, after in self._files.pieces(part, last) if part != last else ():
                    kept = data if last is None else data[: max(0, last.offset - place.offset)]
                    yield LogRecords([*range(at := _id(place), at + len(kept))], kept)
                    place = after
                if last is not None and place.offset != last.offset:
                    raise self._files.changed(last, f"has {place.offset:,} records up to there now")
            except _LOSSES as error:
                self._lose(error, last or place)

    def divide(self, begin: Bound, end: Bound, parts: int) -> Bound:
        spans = self._spans(begin, end)
        sizes = [1 + (last.byte if last else self._files.size(part.name)) - part.byte for part, last in spans]
        left, numbers, rest = sum(sizes) / parts, begin.numbers, list[str]()
        reached = {part.number: part for part in begin.parts}
        for (part, last), nbytes in zip(spans, sizes, strict=True):
            place = part
            if left > 0:
                if nbytes <= left or not has_lines(part.name):
                    place = last or self._walked(part)
                else:
                    place = self._walked(part, part._replace(byte=part.byte + int(left)))
                    place = self._walked(place, last, 1)
                reached[part.number], numbers = place, max(numbers, part.number + 1)
            if left <= 0 or (nbytes > left and place != last and has_lines(part.name)):
                rest.append(part.name)
            left -= nbytes
        if not rest:
            return end
        lowest = min(rest)
        names = (part.name for part in reached.values() if part.name <= end.finished and part.name < lowest)
        finished = max(begin.finished, *names, "")
        kept = {part.number for part in end.parts}.union(p.number for p in begin.parts if p.name <= begin.finished)
        late = sorted(part for part in reached.values() if part.name <= finished and part.number in kept)
        growing = [part for part in reached.values() if part.name > finished]
        return Bound(numbers, finished, tuple(sorted([*late[-_NEWEST:], *growing])))

    def lag(self) -> Lag:
        at, names, files = self.at, self._list(), self._growing.copy()
        read = {part.name: part.byte for part in at.parts if part.name > at.finished}
        new = [name for name in names[bisect_right(names, at.finished) :] if name not in read]
        for name, file in files.items():
            if name in read:
                read[name] = ALL if file.lost else max(read[name], file.seen)
        left = [self._files.size(name) - read.get(name, 0) for name in (*read, *new) if has_lines(name)]
        records = sum(max(1, nbytes * self._lines // (self._line_bytes or 1)) for nbytes in left if nbytes > 0)
        records += sum(not has_lines(name) for name in new)
        return Lag(records, max(0.0, time.time() - self._newest_s) if self._newest_s else None, len(read))

    def close(self) -> None:
        """No file is held open."""

    def _restore(self, to: Bound) -> None:
        self.at, self._numbers, self._finished = to, to.numbers, to.finished
        self._growing = {part.name: _File(part) for part in to.parts if part.name > to.finished}  # by number
        self._late = [part for part in to.parts if part.name <= to.finished]
        self._looked: list[str] | None = None  # names that were looked at
        self._pending: list[str] = []  # of them, files to begin, the next one last

    def _list(self) -> list[str]:
        with self._lock:
            try:
                now_ns, changed_ns = time.time_ns(), os.stat(self._folder).st_mtime_ns
                if self._listed != (changed_ns, True):
                    with os.scandir(self._folder) as entries:
                        names = sorted(each.name for each in entries if counts(each.name) and each.is_file())
                    if odd := [name for name in names if not is_text(name)]:
                        raise SourceError(f"{self._folder}: the name {odd[0]!r} is not UTF-8; rename that file")
                    if names != self._names:
                        self._names = names
                    self._listed = (changed_ns, now_ns - changed_ns > 2e9)
            except OSError as error:
                raise SourceError(f"{self._folder} cannot be listed: {error.strerror}; bring it back") from None
            return self._names

    def _look(self) -> None:
        """Find new files, and losses among those that are not read."""
        names, now = self._list(), time.monotonic()
        if names is not self._looked:
            first = bisect_right(names, self._finished)
            below, new = names[:first], [name for name in reversed(names[first:]) if name not in self._growing]
            if self._looked is None:
                if (came := first - self._numbers + len(self._growing)) > 0:
                    why = f"{came:,} of {first:,} files up to it came after they had been read"
                    self._lose(self._files.truncated(self._finished, why), count=came)
                self._known = {name: self._known.get(name, -1) for name in below}
            for name in below:
                if name not in self._known:
                    self._lose(
                        self._files.truncated(name, f"it came after all up to {self._finished} had been read")
                    )
                    self._keep(Part(self._numbers, 0, name))
                    self._numbers, self._known[name] = self._numbers + 1, -1
            for name in sorted({*self._pending}.difference(new)):
                self._lose(self._files.truncated(name, "it is gone, and was not read"))
            self._pending, self._looked = new, names
        if now >= self._watch_at:
            for name, nbytes in self._known.items():
                if (there := self._files.size(name)) > nbytes >= 0:
                    self._lose(
                        self._files.truncated(name, f"it had {nbytes:,} bytes when it was read, and has {there:,}")
                    )
                self._known[name] = max(nbytes, there)
            self._watch_at = now + max(_WATCH_S, 20 * (time.monotonic() - now))
        self._look_at = now + _LOOK_S

    def _take(self, most: int) -> LogRecords:
        """Read on in what may grow, then in new files; a loss behind records is told by the next call."""
        found = LogRecords([], [])
        self._room, self._room_bytes = most, PIECE_BYTES
        try:
            for name in sorted(self._growing):
                self._drain(self._growing[name], found)
            while self._room and self._pending:
                lowest = min(self._growing) if len(self._growing) >= _NEWEST else ""
                if not lowest or self._pending[-1] < lowest:
                    file = _File(Part(self._numbers, 0, self._pending.pop()))
                    self._growing[file.part.name] = file
                    self._numbers += 1
                    self._drain(file, found)
                elif self._drain(self._growing[lowest], found):
                    self._finish(lowest)
        except StreamTruncated:
            if not found.ids:
                raise
        return found

    def _drain(self, file: _File, found: LogRecords) -> bool:
        """Read on in a file while there is room; return whether nothing is left."""
        if file.lost or not self._room:
            return file.lost
        try:
            status = os.stat(self._files.path(file.part.name))
            if file.inode not in {0, status.st_ino}:
                raise self._files.changed(file.part, "is another file now")
            if status.st_size < file.part.byte or (status.st_size > file.part.byte and is_whole(file.part)):
                raise self._files.changed(file.part, f"has {status.st_size:,} bytes now")
            file.inode = status.st_ino
            if file.seen == status.st_size:
                return True
            for data, place in self._files.pieces(file.part, None, self._room):
                found.ids.extend(range(at := _id(file.part), at + len(data)))
                found.data.extend(data)
                nbytes = place.byte - file.part.byte
                if has_lines(place.name):
                    self._lines, self._line_bytes = self._lines + len(data), self._line_bytes + nbytes
                file.part, self._newest_s = place, status.st_mtime
                self._room_bytes -= nbytes
                self._room = self._room - len(data) if self._room_bytes > 0 else 0
                if not self._room:
                    return False
            file.seen = status.st_size
        except _LOSSES as error:
            file.lost = self._lose(error, file.part)
        return True

    def _finish(self, name: str) -> None:
        """Let the first of the files in order grow no more."""
        file = self._growing.pop(name)
        self._finished, self._known[name] = name, -1 if file.lost else max(file.seen, file.part.byte)
        if file.lost or next(iter(self._growing.values())).part.number < file.part.number:
            self._keep(file.part)

    def _keep(self, part: Part) -> None:
        self._late = sorted([*self._late, part])[-_NEWEST:]

    def _spans(self, begin: Bound, end: Bound) -> list[tuple[Part, Part | None]]:
        """Return what lies between two bounds in each file: from where, and to where, None for its end."""
        ends = {part.number: part for part in end.parts}
        spans = [(part, ends.get(part.number)) for part in begin.parts if part.name > begin.finished]
        spans += [(Part(part.number, 0, part.name), part) for part in end.parts if part.number >= begin.numbers]
        if begin.finished < end.finished:
            known, there = {part.name for part in (*begin.parts, *end.parts)}, self._list()
            there = there[bisect_right(there, begin.finished) : bisect_right(there, end.finished)]
            names = [name for name in there if name not in known]
            numbers = [number for number in range(begin.numbers, end.numbers) if number not in ends]
            late = [part.number for part in end.parts if part.name <= end.finished]
            if len(late) >= _NEWEST and begin.numbers < late[0]:
                why = f"over {_NEWEST} files up to it came late since file {begin.numbers:,}, too many to order"
                self._lose(self._files.truncated(end.finished, why))
            if missing := len(numbers) - len(names):
                why = f"{len(numbers):,} files up to it were read since file {begin.numbers:,}, of {len(names):,}"
                self._lose(self._files.truncated(end.finished, f"{why} that are there"), count=abs(missing))
            pairs = zip(reversed(numbers), reversed(names), strict=False)  # the oldest are deleted first
            spans += [(Part(number, 0, name), None) for number, name in pairs]
        return sorted(spans, key=lambda span: span[0].number)

    def _walked(self, part: Part, last: Part | None = None, most: int = ALL) -> Part:
        """Return the place behind some records of a file."""
        try:
            for _, after in self._files.pieces(part, last, most):
                part = after
        except _LOSSES as error:
            self._lose(error, part)
        return part

    def _lose(self, error: StreamTruncated | OSError, part: Part | None = None, count: int = 1) -> bool:
        """Count a loss; raise it if losses are not skipped, or an error that is none."""
        if isinstance(error, OSError):
            assert part is not None
            if error.errno != ENOENT:
                raise SourceError(f"{self._files.path(part.name)} cannot be read: {error.strerror}") from None
            error = self._files.changed(part, "is gone now")
        if not self._skips:
            raise error from None
        with self._lock:
            self.lost += count
        return True


def _id(part: Part) -> int:
    return part.number << 32 | part.offset
