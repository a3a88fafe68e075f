"""Blocks of a file: each has a header with a checksum of its own, which says what the block is, and where.

So a reader finds the next whole block behind a damaged one, and knows how many points are gone between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from penstock.errors import StoreUnusable

_MARK = b"\xffPSB"  # no text has its first byte
_FIELDS = Struct("<4sIIIII")  # the mark, the body's bytes and CRC-32, then as in Block
_HEADER_BYTES = _FIELDS.size + 4
_OF_PENSTOCK = re.compile(rb"penstock [a-z]+ \d+\n")
POINT_BYTES = 20


class Block(NamedTuple):
    """A whole block of a file; the last one has no body if what it stands for is gone."""

    points: int  # in its body
    place: int  # how many names, or blocks, were declared before it
    before: int  # how many points were written before it
    body: memoryview
    end: int  # where it ends in the file
    lost: int  # points that are gone between the whole block before it and this one


def block_of(body: bytes, points: int, place: int, before: int, at: int) -> bytes:
    """Return a block that is whole at one place of a file, and nowhere else."""
    fields = _FIELDS.pack(_MARK, len(body), crc32(body), points, place, before)
    return fields + crc32(fields, at).to_bytes(4, "little") + body


def blocks(content: bytes, at: int, offset: int = 0) -> Iterator[Block]:
    """Yield the whole blocks of a file's content from an offset on, the first at ``at`` or behind it.

    A last one without a body stands for points that are gone behind them. A block whose writer was killed, or
    zeros in its place after a loss of power, do not count as such.
    """
    view = memoryview(content)
    before, known, rest = 0, 0, at
    while (at := _next(content, at, offset)) < len(content):
        _, length, crc, points, place, earlier = _FIELDS.unpack_from(content, at)
        end = at + _HEADER_BYTES + length
        body = view[at + _HEADER_BYTES : end]
        if len(body) == length and crc32(body) == crc:
            yield Block(points, place, earlier, body, offset + end, max(0, earlier - before))
            before = known = earlier + points
            rest = at = end
        else:
            known = earlier + points * (end <= len(content))
            rest, at = min(end, len(content)), at + 1
    left = len(content) - rest
    if left >= _HEADER_BYTES and content.count(0, rest) < left:
        known += max(1, (left - _HEADER_BYTES) // POINT_BYTES)
    if known > before:
        yield Block(0, 0, known, view[:0], offset + len(content), known - before)


def refuse_others(path: Path, content: bytes, magic: bytes, found: bool) -> None:
    """Refuse a file of which nothing was found because another Penstock has written it."""
    if not found and not content.startswith(magic) and (other := _OF_PENSTOCK.match(content)):
        raise StoreUnusable(
            f"{path} has the format {other[0].decode().strip()!r}, this Penstock reads "
            f"{magic.decode().strip()!r} only: read it with the Penstock that wrote it, or remove the run"
        )


def _next(content: bytes, at: int, offset: int) -> int:
    """Return where the next whole header begins; the length of the content if there is none."""
    while 0 <= (at := content.find(_MARK, at)) <= len(content) - _HEADER_BYTES:
        fields = at + _FIELDS.size
        if crc32(content[at:fields], offset + at) == int.from_bytes(content[fields : fields + 4], "little"):
            return at
        at += 1
    return len(content)
