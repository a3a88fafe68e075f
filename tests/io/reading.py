"""Files to read, and reads of several parts at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from penstock.contracts import ByteArray, Completed, Extents, Numbers, Reader
from penstock.errors import ReadFailed
from penstock.testing.reader import extents_of, read_all


def stored(folder: Path, nbytes: int, seed: int = 1, name: str = "file") -> tuple[str, bytes]:
    """Store random bytes; return their path, and them."""
    content = np.random.default_rng(seed).bytes(nbytes)
    (folder / name).write_bytes(content)
    return str(folder / name), content


def read_at(reader: Reader, path: str, at: list[int], nbytes: int, to: list[int] | None = None) -> Completed:
    """Read parts of a file that begin here, to the same places in memory unless others are given."""
    file = reader.open(path).file
    return read_all(reader, extents_of(file, at, [nbytes] * len(at), at if to is None else to))


def read_once(reader: Reader, path: str, at: list[int], nbytes: int, to: list[int] | None = None) -> Completed:
    """Do the same, and close the reader."""
    with closing(reader):
        return read_at(reader, path, at, nbytes, to)


def in_slots(
    reader: Reader, memory: ByteArray, depth: int, files: Numbers, offsets: Numbers, nbytes: Numbers
) -> Iterator[tuple[int, bytes, ReadFailed | None]]:
    """Read extents into slots of the memory, as many at once as there are; yield each with its bytes when done."""
    room, free, asked = len(memory) // depth, list(range(depth)), 0
    slot_of: dict[int, int] = {}
    while asked < len(nbytes) or slot_of:
        tags = np.arange(asked, min(asked + len(free), len(nbytes)))
        slots = np.array([free.pop() for _ in tags], np.int64)
        slot_of |= dict(zip(tags.tolist(), slots.tolist(), strict=True))
        taken = reader.submit(Extents(tags, files[tags], offsets[tags], nbytes[tags], slots * room))
        assert taken == len(tags)
        asked += taken
        done = reader.completed(1)
        for tag in done.tags.tolist():
            free.append(slot := slot_of.pop(tag))
            yield tag, memory[slot * room : slot * room + nbytes[tag]].tobytes(), done.failures.get(tag)
