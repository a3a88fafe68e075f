"""Members of tar files, found by walking their headers once, and then read in any order.

Format: POSIX.1-2001 (pax) and GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.contracts import Place
from penstock.errors import BadSetting
from penstock.fingerprint.file_versions import FileVersion
from penstock.sources.records.files import is_remote, read_ahead

_BLOCK = 512
_END = bytes(_BLOCK)
_FILES, _FOLDER = (b"0", b"\0", b"7"), b"5"
_LONG_NAME, _LONG_LINK, _PAX, _SPARSE, _HARD_LINK, _SYMBOLIC_LINK = b"L", b"K", b"x", b"S", b"1", b"2"
_CHECKSUM = slice(148, 156)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}


class Member(NamedTuple):
    """A file within a tar: its name, and where its bytes lie; ``offset`` is -1 for a symbolic link.

    The name of a folder ends in a slash. ``tar`` is the number of the tar that it lies in, where several were
    joined by ``cat``; ``tar -A`` leaves no trace.
    """

    name: str
    offset: int
    nbytes: int
    tar: int = 0


def members(path: str | Path) -> Iterator[Member]:
    """Yield the files of a tar in order, of joined ones (``cat``) those of each; errors are those of ``walk``."""
    where = Path(path)
    try:
        file = where.open("rb", buffering=0)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield from walk(str(path), os.fstat(file.fileno()).st_size, partial(os.pread, file.fileno()))


def members_of(path: str, version: FileVersion) -> Iterator[Member]:
    """Yield the files of a tar that lies on a disk or in a store, as ``members`` does."""
    if is_remote(path):
        return walk(path, version.nbytes, read_ahead(Place(path, 0, version.nbytes, version.etag)))
    return members(path)


def members_in(part: bytes) -> Iterator[Member]:
    """Yield the files of some blocks of a tar, beginning with headers, as ``members`` does."""
    whole = part + _END
    yield from walk("the sample", len(whole), lambda nbytes, at: whole[at : at + nbytes])


def end_of(member: Member) -> int:
    """Return where the blocks of a file end, and the next one's headers begin."""
    return member.offset + -(-member.nbytes // _BLOCK) * _BLOCK


def walk(path: str, size: int, pread: Callable[[int, int], bytes]) -> Iterator[Member]:
    """Yield the files of a tar that lies anywhere, as ``members`` does.

    ``path`` is its name, for errors; ``pread`` reads a number of bytes at an offset.
    """
    at, tar, ended, long_name, long_link, extended = 0, 0, False, "", "", dict[str, str]()
    seen: dict[str, Member] = {}  # which hard links may name
    while at < size:
        header = pread(_BLOCK, at)
        if header == _END:
            at, ended = at + _BLOCK, True
            continue
        kind, nbytes = header[156:157], _checked(path, header, at)
        if "size" in extended:
            nbytes = int(extended["size"])
        start, at = at + _BLOCK, at + _BLOCK + -(-nbytes // _BLOCK) * _BLOCK
        if at > size:
            raise BadSetting(
                f"{path} was cut short: the member at byte {start - _BLOCK:,} ends at {start + nbytes:,}, and "
                f"the file at {size:,}"
            )
        tar, ended = tar + ended, False
        if kind == _LONG_NAME:
            long_name = pread(nbytes, start).rstrip(b"\0").decode(errors="surrogateescape")
        elif kind == _LONG_LINK:
            long_link = pread(nbytes, start).rstrip(b"\0").decode(errors="surrogateescape")
        elif kind == _PAX:
            extended = _pax(path, pread(nbytes, start), start)
        else:
            name = extended.get("path") or long_name or _name(header)
            if kind == _SPARSE or any(key.startswith("GNU.sparse") for key in extended):
                raise BadSetting(f"{path}: {name} is stored as a sparse file; pack it again without --sparse")
            if kind == _FOLDER or (kind in _FILES and name.endswith("/")):
                yield Member(f"{name.rstrip('/')}/", start, 0, tar)
            elif kind in _FILES:
                seen[name] = Member(name, start, nbytes, tar)
                yield seen[name]
            elif kind == _HARD_LINK:
                target = extended.get("linkpath") or long_link or _text(header[157:257])
                if target not in seen:
                    raise BadSetting(f"{path}: {name} is a link to {target}, which does not come before it")
                yield seen[target]._replace(name=name, tar=tar)
            elif kind == _SYMBOLIC_LINK:
                yield Member(name, -1, 0, tar)
            long_name, long_link, extended = "", "", {}
    if not ended:
        raise BadSetting(f"{path} was cut short: it ends without the two empty blocks that end a tar")


def _checked(path: str, header: bytes, at: int) -> int:
    """Return the size of the member whose header this is."""
    if at == 0 and (how := _COMPRESSED.get(header[:2])):
        raise BadSetting(f"{path} is compressed ({how}), so nothing in it can be read by itself: unpack it first")
    try:
        written = int(header[_CHECKSUM].rstrip(b"\0 ") or b"-1", 8)
        field = header[124:136]
        nbytes = int.from_bytes(field[1:]) if field[:1] == b"\x80" else int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        written = nbytes = -1
    if nbytes < 0 or written != sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" "):
        raise BadSetting(f"{path} is no tar, or is damaged: no header lies at byte {at:,}")
    return nbytes


def _name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="surrogateescape")


def _pax(path: str, records: bytes, at: int) -> dict[str, str]:
    """Read extended headers: ``length key=value`` and a line feed, again and again."""
    found: dict[str, str] = {}
    try:
        while records.strip(b"\0"):
            length = int(records.split(b" ", 1)[0])
            key, _, value = records[:length].split(b" ", 1)[1].removesuffix(b"\n").partition(b"=")
            found[key.decode()] = value.decode(errors="surrogateescape")
            if length > len(records) or int(found.get("size", 0)) < 0:
                raise ValueError
            records = records[length:]
    except (ValueError, IndexError):
        raise BadSetting(f"{path} is damaged: no extended header lies at byte {at:,}") from None
    return found
