"""Pages of JSON that end in the checksum of all before it: the manifest and the journal of a packed data set."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from penstock.errors import BadSetting, PackDamaged
from penstock.sources.packed.plain import read_bytes

FORMAT = "penstock packed 2"

_SEAL = b'"crc32": '


class Page(Protocol):
    """Content of a page; its last field is ``crc32``."""

    @property
    def format(self) -> str: ...

    @property
    def crc32(self) -> int: ...


class _Head(msgspec.Struct):
    format: str
    crc32: int | None = None


P = TypeVar("P", bound=Page)


def sealed(page: Page) -> bytes:
    """Return the text of a page, whose ``crc32`` is the CRC-32 of every byte before that key."""
    body, _, _ = msgspec.json.format(msgspec.json.encode(page), indent=1).rpartition(_SEAL)
    return body + _SEAL + f"{zlib.crc32(body)}\n}}\n".encode()


def read_page(path: Path, kind: type[P], remedy: str) -> P:
    """Read and check a sealed page.

    Raises:
        FileNotFoundError: there is no such page.
        BadSetting: it is undamaged, and of another version of the format.
        PackDamaged: a byte of it has changed.
        ReadFailed: the disk fails.
    """
    text = read_bytes(path).tobytes()
    found = zlib.crc32(text.rpartition(_SEAL)[0])
    try:
        head = msgspec.json.decode(text, type=_Head)
        # A flipped bit hits the format or the seal, not both: a page without a seal is an older Penstock's.
        if head.format != FORMAT and head.crc32 in (None, found):
            raise BadSetting(
                f"{path} is of format {head.format!r}, and this Penstock reads {FORMAT!r}: pack again into a new "
                "folder, or read it with the Penstock that packed it"
            )
        if head.crc32 != found:
            told = "it does not say its own CRC-32" if head.crc32 is None else f"{head.crc32:08x} was packed"
            raise PackDamaged(f"{path} is damaged: its CRC-32 is {found:08x}, and {told}. {remedy}")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PackDamaged(f"{path} is damaged: {error}. {remedy}") from None
