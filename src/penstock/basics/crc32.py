"""CRC-32 by ISA-L, which takes a sixth of zlib's time."""

from __future__ import annotations

from isal import isal_zlib

from penstock.contracts import ByteArray


def crc32(content: bytes | memoryview | ByteArray) -> int:
    """Return what ``zlib.crc32`` would of content that lies in one piece."""
    return isal_zlib.crc32(content)  # pyright: ignore[reportUnknownMemberType]
