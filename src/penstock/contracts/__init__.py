"""The seams of Penstock, one Protocol each; ``penstock.testing`` ships a test suite for each."""

from penstock.contracts.memory import ByteArray, DeviceBytes, Event, Gpu, Ids, Ring, WritableRing
from penstock.contracts.reader import Completed, Extents, Numbers, Opened, Reader
from penstock.contracts.records import Decoder, Place, Records, Region
from penstock.contracts.source import (
    MOST_CHANGES,
    MOST_JOINTS,
    NO_JOINTS,
    Cursor,
    Joints,
    Known,
    Source,
    SourceBlock,
    Tree,
    Wanted,
    last_read,
)

__all__ = [
    "MOST_CHANGES",
    "MOST_JOINTS",
    "NO_JOINTS",
    "ByteArray",
    "Completed",
    "Cursor",
    "Decoder",
    "DeviceBytes",
    "Event",
    "Extents",
    "Gpu",
    "Ids",
    "Joints",
    "Known",
    "Numbers",
    "Opened",
    "Place",
    "Reader",
    "Records",
    "Region",
    "Ring",
    "Source",
    "SourceBlock",
    "Tree",
    "Wanted",
    "WritableRing",
    "last_read",
]
