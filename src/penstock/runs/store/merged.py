"""The series of a run, whoever wrote them: whole blocks of the writers' files, and one compacted file.

The compacted file has a line that names the format, then blocks, each a MessagePack: columns of times, and series.
Those of times list the files of points that it has taken, and up to where: if a killed process left one of them,
only its later points count.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.errors import BadSetting
from penstock.linux.files import locked
from penstock.runs.store.columns import (
    Column,
    Floats,
    Ints,
    coded_floats,
    coded_ints,
    decoded_floats,
    decoded_ints,
)
from penstock.runs.store.folder import usable
from penstock.runs.store.points import (
    MAGIC,
    Block,
    Series,
    block_of,
    blocks,
    key_of,
    locked_file,
    points_in,
    refuse_others,
)

_COMPACTED = "compacted"
_MAGIC = b"penstock series 2\n"
_TIMES_OF_A_PROCESS = {"feed.wait_s", "feed.loop_s", "feed.train.wait_s", "feed.train.loop_s", "feed.copy_s"}
_COUNTS_OF_A_PROCESS = {f"feed.{of}{what}" for of in ("", "train.", "main.") for what in ("batches", "samples")}
POINT = np.dtype([("number", "<u4"), ("time_us", "<i8"), ("value", "<f8")])

Points = tuple[Ints, Floats]
Wanted = Callable[[str], object]


class _Times(msgspec.Struct, tag=True, array_like=True):
    """The times of some series; without them nothing of these is read, and what was taken need not be known."""

    column: Column
    taken: dict[str, tuple[bytes, int]]  # of each file of points, by its name: the key, and up to where
    points: int  # in all of the compacted file


class _Values(msgspec.Struct, tag=True, array_like=True):
    """A series."""

    name: str
    times: int  # the block that has its times
    first: int  # the first of these that is its
    column: Column


_items = msgspec.msgpack.Decoder(_Times | _Values)


class _Read(NamedTuple):
    """What was read of a file."""

    points: dict[str, Points]
    lost: int  # points that are gone
    end: int = 0  # of the last block


def read_series(folder: Path, wanted: Wanted | None = None) -> dict[str, Series]:
    """Return the series in a folder, all or those whose names are wanted, without points that are gone."""
    return series_of(merged_files(each.points for each in _files(folder, wanted)))


def lost_points(folder: Path) -> int:
    """Return how many points of the series in a folder are gone: about, where a block's header is damaged."""
    return sum(each.lost for each in _files(folder, lambda name: False))


def read_names(folder: Path) -> list[str]:
    """Return the names of the series in a folder."""
    found: dict[str, None] = {}
    with usable(folder):
        for path in sorted(folder.glob("*.points")):
            content, names = _content(path) or b"", list[str]()
            refuse_others(path, content, MAGIC, bool([*points_in(content, names)] and names))
            found |= dict.fromkeys(filter(None, names))
        path = folder / _COMPACTED
        for _, item in _items_in(path, _content(path) or b""):
            if isinstance(item, _Values):
                found[item.name] = None
    return list(found)


def compact(folder: Path) -> None:
    """Put all series in a folder into one compressed file; files that have a writer, or damage, stay as they are.

    A death at any moment loses no point and doubles none.
    """
    with usable(folder), ExitStack() as locks:
        here = locks.enter_context(locked(folder, os.O_RDONLY))
        before, taken = _unpacked(folder / _COMPACTED, None)
        paths: list[Path] = []
        files = [before.points]
        for path in sorted(folder.glob("*.points")):
            with suppress(BadSetting):
                locks.callback(os.close, locked_file(path, os.O_RDWR))
                content = _content(path) or b""
                read = _points(path, content, taken, None)
                if not read.lost:
                    files.append(read.points)
                    paths.append(path)
                    taken[path.name] = key_of(content), read.end
        if before.lost or not (paths and (merged := merged_files(files))):
            return
        half = folder / f"{_COMPACTED}.half"
        try:
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(_packed(merged, taken))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            half.unlink(missing_ok=True)
            raise
        half.rename(folder / _COMPACTED)
        os.fsync(here)
        for path in paths:
            path.unlink()


def series_of(points: Mapping[str, Points]) -> dict[str, Series]:
    """Return points as they are shown: with times in seconds."""
    return {name: Series(times_us / 1e6, values) for name, (times_us, values) in points.items()}


def _content(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):  # compacted by now
        return path.read_bytes()
    return None


def _files(folder: Path, wanted: Wanted | None) -> list[_Read]:
    """Return what was compacted, then what each file of points has besides."""
    with usable(folder):
        # Points first: a file that is compacted in the meantime is in what is read afterwards.
        contents = {path: _content(path) for path in sorted(folder.glob("*.points"))}
        compacted, taken = _unpacked(folder / _COMPACTED, wanted)
        return [compacted, *(_points(path, content or b"", taken, wanted) for path, content in contents.items())]


def _points(path: Path, content: bytes, taken: Mapping[str, tuple[bytes, int]], wanted: Wanted | None) -> _Read:
    """Return what a file of points has behind what was taken of it."""
    key, end = taken.get(path.name, (b"", 0))
    end = end if key_of(content) in {key, b""} else 0  # another file of that name
    names: list[str] = []
    found = [block for block in points_in(content, names) if block.end > end]
    refuse_others(path, content, MAGIC, bool(names))
    points, nameless = points_of(names, found, wanted)
    return _Read(points, nameless + sum(block.lost for block in found), found[-1].end if found else end)


def merged_files(files: Iterable[Mapping[str, Points]]) -> dict[str, Points]:
    """Make one series of what several files have of it, each by its name."""
    parts: defaultdict[str, list[Points]] = defaultdict(list)
    for file in files:
        for name, points in file.items():
            parts[name].append(points)
    return {name: _joined(name, each) for name, each in parts.items()}


def _joined(name: str, parts: list[Points]) -> Points:
    if name in _TIMES_OF_A_PROCESS:
        return _slowest(parts)
    return _sum(parts) if name in _COUNTS_OF_A_PROCESS else in_order(parts)


def _sum(parts: list[Points]) -> Points:
    """Merge a counter that each process of a run has of itself: the run has done what all have done."""
    times_us, grown = in_order([(times_us, np.diff(values, prepend=0.0)) for times_us, values in parts])
    return times_us, np.cumsum(grown)


def _slowest(parts: list[Points]) -> Points:
    """Merge a time that each process of a run counts of itself.

    Among processes that run together, such as ranks, the others wait for the one that has counted most: it counts.
    Processes that run one after the other add up.
    """
    before, end_us, shifted = 0.0, 0, list[Points]()
    for times_us, values in sorted(parts, key=lambda part: int(part[0][0])):
        if int(times_us[0]) > end_us:
            before = max((float(each[1][-1]) for each in shifted), default=0.0)
        end_us = max(end_us, int(times_us[-1]))
        shifted.append((times_us, values + before))
    times_us, values = in_order(shifted)
    return times_us, np.maximum.accumulate(values)


def points_of(names: list[str], found: list[Block], wanted: Wanted | None) -> tuple[dict[str, Points], int]:
    """Divide the points in some blocks of a file among the series that they are of; count those without a name."""
    every = np.frombuffer(b"".join(block.body for block in found), POINT)
    every = every[np.argsort(every["number"], kind="stable")]
    bounds = np.searchsorted(every["number"], np.arange(len(names) + 1))
    parts = [(name, every[begin:end]) for name, begin, end in zip(names, bounds, bounds[1:], strict=False)]
    points = {
        name: (part["time_us"].astype(np.int64), part["value"].astype(np.float64))
        for name, part in parts
        if len(part) and name and (wanted is None or wanted(name))
    }
    return points, sum(len(part) for name, part in parts if not name)


def in_order(parts: list[Points]) -> Points:
    """Put points of one series from several writers in the order of their times."""
    times_us, values = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    if (times_us[1:] >= times_us[:-1]).all():
        return times_us, values
    order = np.argsort(times_us, kind="stable")
    return times_us[order], values[order]


def _packed(merged: dict[str, Points], taken: dict[str, tuple[bytes, int]]) -> bytes:
    content = bytearray(_MAGIC)
    times: dict[int, Ints] = {}
    total = sum(len(values) for _, values in merged.values())
    place = before = 0

    def put(item: _Times | _Values, points: int = 0) -> int:
        nonlocal content, place, before
        content += block_of(msgspec.msgpack.encode(item), points, place, before, len(content))
        place, before = place + 1, before + points
        return place - 1

    def place_of(times_us: Ints) -> tuple[int, int]:
        for number, column_us in times.items():
            first = int(np.searchsorted(column_us, times_us[:1])[0])
            if np.array_equal(column_us[first : first + len(times_us)], times_us):
                return number, first
        times[number := put(_Times(coded_ints(times_us), taken, total))] = times_us
        return number, 0

    # The longest first: the times of a series that began later are part of its.
    for name, (times_us, values) in sorted(merged.items(), key=lambda item: -len(item[1][0])):
        put(_Values(name, *place_of(times_us), coded_floats(values)), len(values))
    return bytes(content)


def _items_in(path: Path, content: bytes) -> Iterator[tuple[Block, _Times | _Values]]:
    """Yield what the whole blocks of the compacted file hold."""
    found = [block for block in blocks(content, len(_MAGIC)) if block.body]
    refuse_others(path, content, _MAGIC, bool(found))
    for block in found:
        yield block, _items.decode(block.body)


def _unpacked(path: Path, wanted: Wanted | None) -> tuple[_Read, dict[str, tuple[bytes, int]]]:
    """Return what is compacted, and the files that it holds."""
    if (content := _content(path)) is None:
        return _Read({}, 0), {}
    points: dict[str, Points] = {}
    times: dict[int, _Times] = {}
    times_us: dict[int, Ints] = {}
    read = written = 0
    for block, item in _items_in(path, content):
        written = block.before + block.points
        if isinstance(item, _Times):
            times[block.place] = item
        elif item.times in times:
            read += block.points
            if wanted is None or wanted(item.name):
                if item.times not in times_us:
                    times_us[item.times] = decoded_ints(times[item.times].column)
                its_us = times_us[item.times][item.first : item.first + block.points]
                points[item.name] = its_us, decoded_floats(item.column)
    for known in times.values():
        return _Read(points, known.points - read), known.taken
    return _Read({}, max(1, written)), {}
