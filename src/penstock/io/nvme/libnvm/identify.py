"""Identify pages: NVMe Base Specification 2.0, 5.17.2.1; NVM Command Set Specification 1.0, 4.1.5.1."""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import ReaderUnavailable
from penstock.io.nvme.queue_memory import MAX_READ_BYTES, PAGE_BYTES

_MODEL, _MDTS, _NN = slice(24, 64), 77, 516
_NLBAF, _FLBAS, _LBA_FORMATS = 25, 26, 128


class Disk(NamedTuple):
    """What a controller says of itself.

    Attributes:
        max_read_bytes: Most bytes that one command reads, as far as Penstock uses it.
        namespaces: Highest possible number of a namespace.
    """

    model: str
    max_read_bytes: int
    namespaces: int


class Namespace(NamedTuple):
    """Size of a namespace and of its blocks."""

    block_bytes: int
    nbytes: int


def disk_from(data: bytes) -> Disk:
    """Decode the Identify page of a controller (CNS 1)."""
    limit_log2 = data[_MDTS]  # in pages; 0 is no limit
    max_read_bytes = min(MAX_READ_BYTES, PAGE_BYTES << limit_log2) if limit_log2 else MAX_READ_BYTES
    (namespaces,) = struct.unpack_from("<I", data, _NN)
    return Disk(data[_MODEL].decode("ascii", "replace").strip(), max_read_bytes, namespaces)


def namespace_from(data: bytes, name: str) -> Namespace:
    """Decode the Identify page of a namespace (CNS 0).

    Args:
        name: Name of the namespace, for errors.

    Raises:
        ReaderUnavailable: it has no blocks, or blocks with metadata.
    """
    (blocks,) = struct.unpack_from("<Q", data)
    if blocks == 0:
        raise ReaderUnavailable(f"{name} has no blocks: it is not there, or not active", "read another namespace")
    chosen = data[_FLBAS] & 0xF
    if data[_NLBAF] > 15:
        chosen |= data[_FLBAS] >> 1 & 0x30
    metadata_bytes, block_log2, _ = struct.unpack_from("<HBB", data, _LBA_FORMATS + 4 * chosen)
    if metadata_bytes:
        raise ReaderUnavailable(
            f"{name} is formatted with {metadata_bytes} bytes of metadata a block, which mech='gpu' does not take",
            "format it without (nvme format -m 0; that erases it)",
        )
    return Namespace(1 << block_log2, blocks << block_log2)
