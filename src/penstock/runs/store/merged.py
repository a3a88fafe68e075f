"""The series of a run, whoever wrote them: whole blocks of the writers' files, and one compacted file.

The compacted file is a line that names the format, the CRC-32 of the rest, and a MessagePack. That lists the
files of points that it has taken, by their random bytes, and up to where: if a killed process left one of
them, only its later points count.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np

from penstock.basics.crc32 import crc32
from penstock.errors import BadSetting, StoreUnusable
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
from penstock.runs.store.points import HEAD_BYTES, MAGIC, Block, Series, blocks, locked_file

_COMPACTED = "compacted"
_MAGIC = b"penstock series 1\n"
_TIMES_OF_A_PROCESS = {"feed.wait_s", "feed.loop_s", "feed.train.wait_s", "feed.train.loop_s", "feed.copy_s"}
_COUNTS_OF_A_PROCESS = {f"feed.{of}{what}" for of in ("", "train.", "main.") for what in ("batches", "samples")}
POINT = np.dtype([("number", "<u4"), ("time_us", "<i8"), ("value", "<f8")])

Points = tuple[Ints, Floats]
Wanted = Callable[[str], object]


class _Compacted(msgspec.Struct):
    """What the file holds: for each series its column of times, the first time that is its, and its values.

    A column is decoded when it is wanted.
    """

    taken: dict[str, int]
    columns: list[msgspec.Raw]
    series: dict[str, tuple[int, int, int]]


def read_series(folder: Path, wanted: Wanted | None = None) -> dict[str, Series]:
    """Return the series in a folder, all or those whose names are wanted; blocks that were torn are left out."""
    # Points first: a file that is compacted in the meantime is in what is read afterwards.
    with usable(folder):
        contents = [_content(path) for path in sorted(folder.glob("*.points"))]
        merged, _ = _merged(folder / _COMPACTED, contents, wanted)
    return series_of(merged)


def read_names(folder: Path) -> list[str]:
    """Return the names of the series in a folder; of what is compacted, no checksum is computed."""
    with usable(folder):
        contents = [_content(path) for path in sorted(folder.glob("*.points"))]
        compacted = _named(folder / _COMPACTED)
    named = [name for content in contents for block in blocks(content) for name in block.names]
    return list(dict.fromkeys([*named, *compacted]))


def compact(folder: Path) -> None:
    """Put all series in a folder into one compressed file; files that have a writer stay as they are.

    A death at any moment loses no point and doubles none.

    Raises:
        StoreUnusable: the disk has no room, and all is as it was; or the compacted file is damaged.
    """
    with usable(folder), ExitStack() as locks:
        here = locks.enter_context(locked(folder, os.O_RDONLY))
        paths: list[Path] = []
        for path in sorted(folder.glob("*.points")):
            with suppress(BadSetting):
                locks.callback(os.close, locked_file(path, os.O_RDWR))
                paths.append(path)
        if not paths:
            return
        merged, taken = _merged(folder / _COMPACTED, [_content(path) for path in paths])
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


def _content(path: Path) -> bytes:
    with suppress(FileNotFoundError):  # compacted by now
        return path.read_bytes()
    return b""


def _named(compacted: Path) -> Iterable[str]:
    """Return the names in the compacted file; only the pages with names are read."""
    try:
        with compacted.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return msgspec.msgpack.decode(memoryview(content)[len(_MAGIC) + 4 :], type=_Compacted).series
    except FileNotFoundError:
        return ()
    except (msgspec.DecodeError, ValueError):  # an empty file cannot be mapped
        raise _damaged(compacted) from None


def _merged(
    compacted: Path, contents: list[bytes], wanted: Wanted | None = None
) -> tuple[dict[str, Points], dict[str, int]]:
    """Return what was compacted with the points of these files, and the files that it then holds."""
    points, taken = _unpacked(compacted, wanted)
    files = [points]
    for content in contents:
        if len(content) < HEAD_BYTES or not content.startswith(MAGIC):
            continue
        key = content[len(MAGIC) : HEAD_BYTES].hex()
        found = list(blocks(content))
        if new := [block for block in found if block.end > taken.get(key, 0)]:
            taken[key] = new[-1].end
            files.append(points_of([name for block in found for name in block.names], new, wanted))
    return merged_files(files), taken


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


def points_of(names: list[str], found: list[Block], wanted: Wanted | None) -> dict[str, Points]:
    """Divide the points in some blocks of a file among the series that they are of.

    Args:
        names: What the file has declared until their end.
        found: The blocks.
        wanted: Whether the series of a name is wanted; None for all.
    """
    every = np.concatenate([np.frombuffer(block.points, POINT) for block in found])
    every = every[np.argsort(every["number"], kind="stable")]
    bounds = np.searchsorted(every["number"], np.arange(len(names) + 1))
    return {
        name: (every[begin:stop]["time_us"].astype(np.int64), every[begin:stop]["value"].astype(np.float64))
        for name, begin, stop in zip(names, bounds, bounds[1:], strict=False)
        if begin < stop and (wanted is None or wanted(name))
    }


def in_order(parts: list[Points]) -> Points:
    """Put points of one series from several writers in the order of their times."""
    times_us, values = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    if (times_us[1:] >= times_us[:-1]).all():
        return times_us, values
    order = np.argsort(times_us, kind="stable")
    return times_us[order], values[order]


def _packed(merged: dict[str, Points], taken: dict[str, int]) -> bytes:
    compacted = _Compacted(taken=taken, columns=[], series={})
    times: dict[int, Ints] = {}

    def put(column: Column) -> int:
        compacted.columns.append(msgspec.Raw(msgspec.msgpack.encode(column)))
        return len(compacted.columns) - 1

    def place_of(times_us: Ints) -> tuple[int, int]:
        for number, column_us in times.items():
            first = int(np.searchsorted(column_us, times_us[:1])[0])
            if np.array_equal(column_us[first : first + len(times_us)], times_us):
                return number, first
        times[number := put(coded_ints(times_us))] = times_us
        return number, 0

    # The longest first: the times of a series that began later are part of its.
    for name, (times_us, values) in sorted(merged.items(), key=lambda item: -len(item[1][0])):
        compacted.series[name] = (*place_of(times_us), put(coded_floats(values)))
    content = msgspec.msgpack.encode(compacted)
    return _MAGIC + crc32(content).to_bytes(4, "little") + content


def _unpacked(path: Path, wanted: Wanted | None) -> tuple[dict[str, Points], dict[str, int]]:
    if not (content := _content(path)):
        return {}, {}
    begin = len(_MAGIC) + 4
    if content[:begin] != _MAGIC + crc32(memoryview(content)[begin:]).to_bytes(4, "little"):
        raise _damaged(path)
    compacted = msgspec.msgpack.decode(memoryview(content)[begin:], type=_Compacted)

    def column(number: int) -> Column:
        return msgspec.msgpack.decode(compacted.columns[number], type=Column)

    points: dict[str, Points] = {}
    times_us: dict[int, Ints] = {}
    for name, (times, first, values) in compacted.series.items():
        if wanted is not None and not wanted(name):
            continue
        if times not in times_us:
            times_us[times] = decoded_ints(column(times))
        found = decoded_floats(column(values))
        points[name] = times_us[times][first : first + len(found)], found
    return points, compacted.taken


def _damaged(path: Path) -> StoreUnusable:
    return StoreUnusable(f"{path} is damaged: its checksum is wrong. Restore it, or remove the run")
